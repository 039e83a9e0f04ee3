"""The seed paper's preset costs what its noise costs, not what it is called."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from methods import PoolPolicy
from platform.config import load_config
from platform.protection.building import protect_run
from privacy import Release, ReleaseKey, epsilons
from tests.trunk._secure import Numbered

TOTALS = {
    # Relation, then rounds: computed with another library (dp_accounting 0.6, PLD).
    ("add_or_remove_one", 1): 226.0,
    ("add_or_remove_one", 10): 2047.0,
    ("replace_one", 1): 842.0,
    ("replace_one", 10): 7985.0,
}


class Pooled(Numbered):
    """Puts into the pool what it uploads, as the preset's method does."""

    def pool_policy(self):
        return PoolPolicy(self.shared_spec(), 3)


def row_of(relation: str) -> Release:
    """What one client's ledger holds after a round of the shipped configuration."""
    config = load_config(Path("published-preset"), [f"privacy.relation={relation}"])
    # A row does not depend on how many numbers a method shares.
    protection = protect_run(config, Pooled()).protection
    key = {"run_id": "run", "attempt": 1, "pseudonym": "ada"}
    (found,) = protection.releases(ReleaseKey(round_number=1, **key))
    assert found.relation == relation
    return found


@pytest.mark.parametrize(("relation", "rounds"), TOTALS)
def test_the_published_preset_has_its_honest_totals(relation, rounds):
    row = row_of(relation)
    rows = [dataclasses.replace(row, round_number=n) for n in range(1, rounds + 1)]
    assert rows[0].standard_deviation / rows[0].clipping_norm == pytest.approx(0.0507)
    spent = epsilons(rows, 0.05)
    assert spent.server == spent.peers == spent.observer
    assert spent.server == pytest.approx(TOTALS[relation, rounds], abs=1.0)

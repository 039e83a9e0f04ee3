"""The seed paper's preset costs what its noise costs, not what it is called."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from platform.bootstrap import Surroundings, plan_run
from platform.config import load_config
from platform.rounds.observing import SilentObserver
from privacy import Release, ReleaseKey, epsilons

TOTALS = {
    # Relation, then rounds: computed with another library (dp_accounting 0.6, PLD).
    ("add_or_remove_one", 1): 226.0,
    ("add_or_remove_one", 10): 2047.0,
    ("replace_one", 1): 842.0,
    ("replace_one", 10): 7985.0,
}


def planned(relation: str, rounds: int, folder: Path) -> list[Release]:
    """What one client's ledger holds after so many rounds of the shipped configuration."""
    changes = [f"privacy.relation={relation}", f"storage.url=sqlite:///{folder}/sotto.db"]
    config = load_config(Path("published-preset"), changes)
    protection = plan_run(config, SilentObserver(), Surroundings()).terms.protection
    key = {"run_id": "run", "attempt": 1, "pseudonym": "ada"}
    (row,) = protection.releases(ReleaseKey(round_number=1, **key))
    return [dataclasses.replace(row, round_number=n) for n in range(1, rounds + 1)]


@pytest.mark.parametrize(("relation", "rounds"), sorted(TOTALS))
def test_the_published_preset_has_its_honest_totals(relation, rounds, tmp_path):
    rows = planned(relation, rounds, tmp_path)
    assert rows[0].standard_deviation / rows[0].clipping_norm == pytest.approx(0.0507)
    spent = epsilons(rows, 0.05)
    assert spent.server == spent.peers == spent.observer
    assert spent.server == pytest.approx(TOTALS[relation, rounds], abs=1.0)

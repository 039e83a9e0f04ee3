"""The seed paper's preset costs what its noise costs, not what it is called."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from platform.config import load_config
from platform.experiment.planning import RunPlan, Surroundings, plan_run
from platform.protection.building import protect_run
from platform.rounds.observing import SilentObserver
from privacy import ReleaseKey, epsilons

TOTALS = {
    # Relation, then rounds: computed with another library (dp_accounting 0.6, PLD).
    ("add_or_remove_one", 1): 226.0,
    ("add_or_remove_one", 10): 2047.0,
    ("replace_one", 1): 842.0,
    ("replace_one", 10): 7985.0,
}


@pytest.fixture(scope="module")
def base(make_storage) -> RunPlan:
    config = load_config(Path("published-preset"), [f"storage.url={make_storage('published').url}"])
    return plan_run(config, SilentObserver(), Surroundings())


@pytest.mark.slow
@pytest.mark.parametrize(("relation", "rounds"), TOTALS)
def test_the_published_preset_has_its_honest_totals(base, relation, rounds):
    config = load_config(Path("published-preset"), [f"privacy.relation={relation}"])
    protection, _ = protect_run(config, base.learning.method)
    key = {"run_id": "run", "attempt": 1, "pseudonym": "ada"}
    (row,) = protection.releases(ReleaseKey(round_number=1, **key))
    assert row.relation == relation
    rows = [dataclasses.replace(row, round_number=n) for n in range(1, rounds + 1)]
    assert rows[0].standard_deviation / rows[0].clipping_norm == pytest.approx(0.0507)
    spent = epsilons(rows, 0.05)
    assert spent.server == spent.peers == spent.observer
    assert spent.server == pytest.approx(TOTALS[relation, rounds], abs=1.0)

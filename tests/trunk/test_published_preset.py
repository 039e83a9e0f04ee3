"""The seed paper's preset costs what its noise costs, not what it is called."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from platform.config import load_config
from platform.experiment.planning import Surroundings, plan_run
from platform.rounds.observing import SilentObserver
from privacy import ReleaseKey, epsilons

TOTALS = {
    # Relation, then rounds: computed with another library (dp_accounting 0.6, PLD).
    ("add_or_remove_one", 1): 226.0,
    ("add_or_remove_one", 10): 2047.0,
    ("replace_one", 1): 842.0,
    ("replace_one", 10): 7985.0,
}


@pytest.mark.slow
def test_the_published_preset_has_its_honest_totals(make_storage):
    url, key = make_storage("published").url, {"run_id": "run", "attempt": 1, "pseudonym": "ada"}
    for (relation, rounds), expected in TOTALS.items():
        changes = [f"storage.url={url}", f"privacy.relation={relation}"]
        plan = plan_run(
            load_config(Path("published-preset"), changes), SilentObserver(), Surroundings()
        )
        (row,) = plan.terms.protection.releases(ReleaseKey(round_number=1, **key))
        assert row.relation == relation
        assert row.standard_deviation / row.clipping_norm == pytest.approx(0.0507)
        rows = [dataclasses.replace(row, round_number=n) for n in range(1, rounds + 1)]
        spent = epsilons(rows, 0.05)
        assert spent.server == spent.peers == spent.observer
        assert spent.server == pytest.approx(expected, abs=1.0)

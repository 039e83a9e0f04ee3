"""PM-MoE's configurations run, with the published networks and all 20 clients, on drawn data.

What makes it quick, and nothing else, is not the paper's: few examples, of which a client has at
least four; one round of one step; a gate trained for one step; validation data in one test only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.config import load_config
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run
from platform.rounds.observing import SilentObserver
from tests.papers._pm_moe import TABLES, data_of
from tests.trunk._runs import opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Run = Callable[..., dict[str, Any]]
QUICK = (
    *("rounds=1", "training.local_epochs=null", "training.local_steps=1"),
    *("evaluation.every=1", "device=cpu", "task.partition.minimum=4"),
)
WITHOUT_VALIDATION = ("evaluation.selection=last", "task.validation_share=0")


@pytest.fixture
def run(drawn: Callable[[str], Path], tmp_path: Path) -> Run:
    def go(name: str, *changes: str) -> dict[str, Any]:
        own = (f"task.root={drawn(data_of(name))}", f"storage.url=sqlite:///{tmp_path / 'db'}")
        config = load_config(Path("papers") / name, (*own, *QUICK, *changes))
        with opened(create_run(config, SilentObserver(), Surroundings())) as simulation:
            return dict(execute(simulation, SilentObserver()))

    return go


def require_measured(summary: dict[str, Any]) -> None:
    accuracy = summary["final"]["accuracy"]
    assert len(accuracy["per_client"]) == 20
    assert 0 <= accuracy["worst"] <= accuracy["mean"] <= 1
    assert summary["local"]["accuracy"]["mean"] is None


def require_mixed(summary: dict[str, Any]) -> None:
    weights = summary["final"]["expert_weights"]
    assert len(weights) == 20
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    phases = summary["phases"]
    assert phases["after"]["mean"] == summary["final"]["accuracy"]["mean"]
    assert 0 <= phases["before"]["mean"] <= 1


@pytest.mark.parametrize("name", [name for name in sorted(TABLES) if "table-3" not in name])
def test_a_round(name: str, run: Run) -> None:
    mixes = TABLES[name][0] == "pm_moe"
    summary = run(name, *WITHOUT_VALIDATION, *(["method.gate_rounds=1"] if mixes else []))
    require_measured(summary)
    if mixes:
        require_mixed(summary)


def test_validation_data_choose_a_round(run: Run) -> None:
    shared = "task.partition.shared_ratio=0.2"
    summary = run("pm-moe/table-3-ag_news", "rounds=2", "method.gate_rounds=1", shared)
    require_mixed(summary)
    chosen = summary["best_on_validation"]
    assert chosen["round"] in (1, 2)
    assert 0 <= chosen["validation"] <= 1

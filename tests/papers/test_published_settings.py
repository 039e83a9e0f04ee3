"""What the commands of TRIP's baselines train with, as their published code does."""

from __future__ import annotations

import pytest

from platform.config import RunConfig
from tests.papers._page import commands

TABLES = ["trip-table-1", "trip-table-2", "trip-table-3", "trip-table-4"]


def cells(table: str) -> dict[str, RunConfig]:
    """The run of each method with the first domain held out."""
    (command,) = [c for c in commands() if c.output == f"sweeps/{table}"]
    found: dict[str, RunConfig] = {}
    for cell in command.grid().cells:
        found.setdefault(cell.method, cell.run)
    return found


def optimiser(run: RunConfig) -> tuple[object, ...]:
    training = run.training
    return training.optimizer, training.learning_rate, training.momentum, training.weight_decay


@pytest.mark.parametrize("table", TABLES)
def test_baselines_train_as_their_code_does(table: str) -> None:
    runs = cells(table)
    assert optimiser(runs["promptfl"]) == ("sgd", 0.002, 0.9, 5e-4)
    assert optimiser(runs["fedotp"]) == ("sgd", 0.001, 0.9, 5e-4)
    assert optimiser(runs["fedapt"]) == ("sgd", 0.01, 0.9, 1e-5)
    assert optimiser(runs["fedclip"]) == ("adam", 5e-5, 0.0, 0.2)
    assert (runs["fedclip"].training.betas, runs["fedclip"].training.eps) == ((0.9, 0.98), 1e-6)
    assert {name: run.method.options.get("weighting") for name, run in runs.items()} == {
        **dict.fromkeys(("promptfl", "fedotp", "trip", "trip_lite")),
        **{"fedclip": "uniform", "fedapt": "uniform"},
    }


@pytest.mark.parametrize("table", TABLES)
def test_trip_itself_is_its_papers(table: str) -> None:
    for name in ("trip", "trip_lite"):
        run = cells(table)[name]
        assert optimiser(run) == ("adamw", 4e-4, 0.0, 0.01)
        assert (run.training.betas, run.training.eps, run.training.schedule) == (None, None, None)

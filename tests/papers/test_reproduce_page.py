"""The page of the papers' tables: its commands are grids that could start, its numbers agree."""

from __future__ import annotations

import pytest

from methods import BUILT_IN_METHODS
from platform.data.catalogue import dataset_info
from platform.results.sweeping.tables import OURS
from tests.papers import _pm_moe
from tests.papers._page import Command, commands, optimiser, tables
from tests.papers._published import TABLES

COMMANDS = commands()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=command.output, marks=pytest.mark.slow if n else ())
        for n, command in enumerate(COMMANDS)
    ],
)
def test_a_command_is_a_grid_whose_every_cell_is_valid(command: Command):
    """Configurations, methods and their options are known; nothing is loaded."""
    grid = command.grid()
    held_out = dict(grid.axes).get("task.held_out_domain")
    for cell in grid.cells:
        domains = dataset_info(cell.run.task.dataset).domains
        # The average is over all domains.
        assert held_out is None or sorted(held_out) == sorted(domains)


def test_every_file_is_swept_and_every_swept_name_is_a_file():
    swept = {config for command in COMMANDS for config in command.configs}
    assert swept == {f"papers/{name}" for name in (*TABLES, *_pm_moe.TABLES)}


def test_exceptions_hold_for_their_method_only():
    (command,) = [c for c in COMMANDS if c.output == "sweeps/pfedmoap-table-2"]
    seen = {c.method: (c.run.rounds, c.run.cohort_size) for c in command.grid().cells}
    # 25 epochs alone for everybody, as pFedMoAP's section 5.1 says of CoOp.
    assert seen["coop"] == (5, 100)
    assert seen["zero_shot"] == (1, 10)
    assert seen["promptfl"] == seen["pfedmoap"] == (120, 10)


# Averages that the papers print otherwise than their own columns give; the page says so.
MISPRINTS = {
    *(("Caltech", "91.92 ± 4.19"), ("Painting", "80.80 ± 11.67")),
    *(("`swad`", "90.44"), ("`swad`", "79.31"), ("`doprompt` ‡", "89.91")),
}


def test_averages_are_those_of_their_columns():
    checked = 0
    for head, rows in tables():
        if head[-2] not in ("Average", "mean ± std"):
            continue
        for row in rows:
            cells = [cell.split(" ")[0] for cell in row[1::2] if cell != "-"]
            *columns, mean = map(float, cells)
            if (row[0], row[-2]) in MISPRINTS:
                continue
            assert mean == pytest.approx(sum(columns) / len(columns), abs=0.0151), row
            checked += 1
    assert checked > 70


SLOW_TABLES = [pytest.param(table, marks=pytest.mark.slow) for table in (2, 3, 4)]


@pytest.mark.parametrize("table", [1, *SLOW_TABLES])
def test_trips_baselines_train_as_their_code_does(table: int):
    (command,) = [c for c in COMMANDS if c.output == f"sweeps/trip-table-{table}"]
    runs = {cell.method: cell.run for cell in command.grid().cells}
    assert optimiser(runs["promptfl"]) == ("sgd", 0.002, 0.9, 5e-4)
    assert optimiser(runs["fedotp"]) == ("sgd", 0.001, 0.9, 5e-4)
    assert optimiser(runs["fedapt"]) == ("sgd", 0.01, 0.9, 1e-5)
    assert optimiser(runs["fedclip"]) == ("adam", 5e-5, 0.0, 0.2)
    assert optimiser(runs["trip"]) == optimiser(runs["trip_lite"]) == ("adamw", 4e-4, 0.0, 0.01)
    assert (runs["fedclip"].training.betas, runs["fedclip"].training.eps) == ((0.9, 0.98), 1e-6)
    for name in ("fedclip", "fedapt"):
        assert runs[name].method.options["weighting"] == "uniform"


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("doprompt", "image tower"),
        ("elcfs", "single images"),
        ("fedpcl", "not at hand"),
        ("fedpr", "Swin"),
        ("pfedpg", "leaves open"),
    ],
)
def test_a_reading_of_ours_says_why_and_is_marked(method: str, why: str):
    """One sentence, which follows a colon below a table."""
    reading = BUILT_IN_METHODS.reading(method)
    assert reading is not None and why in reading
    assert not reading.endswith(".") and ". " not in reading
    for _, rows in tables():
        named = [row[0] for row in rows if row[0].startswith(f"`{method}`")]
        assert all(OURS in name for name in named)

"""`sweep`: a grid of runs, with progress, tables and pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.progress import TaskID, TextColumn

from methods import Registry
from platform.cli import exit_codes
from platform.cli.interrupting import Ended, interruptible, same_again
from platform.cli.options import DEFAULT_STORAGE
from platform.cli.output import WithBar, console, epsilon, fraction, print_json, printable, table
from platform.config import Sources
from platform.errors import ConfigError
from platform.experiment.environment import resolve_device
from platform.sweeping.grid import (
    Cell,
    Grid,
    SweepRequest,
    absolute_storage,
    build_grid,
    for_one_alone,
    parse_names,
    parse_seeds,
)
from platform.sweeping.running import Outcome, only_sweep_in, run_cells
from platform.sweeping.submitting import cluster_of, database_name, submit_cells
from platform.sweeping.tables import Table, announce, document, plain_rows, publish
from platform.sweeping.tidy import BEST, LAST, record_of
from storage.homes import shown

OUTPUTS = Path("sweeps")
CELLS = "cells"
"""Where cells that are jobs of a cluster have their databases, in the folder of results."""
MOST_JOBS = 100
"""Jobs of a cluster at a time."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The command line of a sweep, as text.

    Attributes:
        configs: Files or packaged names.
        methods: Names between commas, None for the configurations' own.
        seeds: Numbers between commas, None for the configurations' own.
        settings: Of `--set`.
        method_settings: Of `--for`.
        device: None for the configurations' own.
        folder: Where the user has methods of their own, None for nowhere.
        storage: The coordinator's database.
    """

    configs: tuple[str, ...]
    methods: str | None
    seeds: str | None
    settings: tuple[str, ...]
    method_settings: tuple[str, ...]
    device: str | None
    folder: Path | None
    storage: str

    def request(self) -> SweepRequest:
        """Return what is asked for.

        Raises:
            ConfigError: If a list of names or seeds is not valid.
        """
        return SweepRequest(
            configs=self.configs,
            methods=() if self.methods is None else parse_names(self.methods),
            seeds=() if self.seeds is None else parse_seeds(self.seeds),
            settings=self.settings,
            method_settings=self.method_settings,
            device=self.device,
            folder=self.folder,
            storage=self.storage,
        )


@dataclass(frozen=True)
class ClusterOptions:
    """Where cells run, as text of the command line.

    Attributes:
        on: `dask` for a job a cell, None for worker processes here.
        settings: Of `--cluster`.
    """

    on: str | None = None
    settings: tuple[str, ...] = ()


def sweep_command(
    options: SweepOptions,
    cluster_options: ClusterOptions,
    *,
    jobs: int | None,
    output: Path | None,
    as_published: bool,
    as_json: bool,
) -> None:
    """Run what is missing of a grid and write its tables.

    Raises:
        ConfigError: If a cell is not valid, or another sweep works in the folder; nothing starts.
    """
    cluster = _cluster(cluster_options, options.storage)
    sources = Sources(registry=Registry(folder=options.folder), as_published=as_published)
    grid = build_grid(options.request(), sources)
    folder = output or _default_output(grid)
    with only_sweep_in(folder):
        announce(grid, folder, [_own_database(cell, cluster) for cell in grid.cells])
        with interruptible(lambda number: _interrupted(number, folder)):
            with ScreenSweepObserver(quiet=as_json) as screen:
                if cluster is None:
                    url = absolute_storage(options.storage)
                    outcomes = run_cells(
                        *(grid.cells, screen, options.folder), jobs=jobs or _jobs(grid), url=url
                    )
                else:
                    outcomes = submit_cells(
                        *(grid.cells, screen, cluster),
                        folder=options.folder,
                        jobs=jobs or MOST_JOBS,
                        place=folder / CELLS,
                    )
            tables = publish(grid, outcomes, folder)
    if as_json:
        print_json(document(grid, outcomes, folder))
    elif tables:
        _print(tables, folder)
    _report_failures(outcomes)


def _own_database(cell: Cell, cluster: Mapping[str, Any] | None) -> str | None:
    return None if cluster is None else f"{CELLS}/{database_name(cell)}"


def _interrupted(number: int, folder: Path) -> Ended:
    return Ended(number, f"sweep {folder} is interrupted", command=same_again())


def _print(tables: Sequence[Table], folder: Path) -> None:
    out = console()
    for one in tables:
        out.print()
        out.print(table(one.caption, *plain_rows(one)))
        for line in one.training:
            out.print(f"note: local training: {line}")
        for warning in one.warnings:
            out.print(f"note: {warning}")
    out.print()
    out.print(f"written to {folder}", soft_wrap=True)


def _cluster(options: ClusterOptions, storage: str) -> Mapping[str, Any] | None:
    """Return where jobs go, None for nowhere.

    Raises:
        ConfigError: If an option is not valid, or means nothing beside another.
    """
    if options.on is None:
        if options.settings:
            raise ConfigError("--cluster: means nothing without --on; valid is --on dask as well")
        return None
    if storage != DEFAULT_STORAGE:
        raise ConfigError(
            f"--storage: {shown(storage)!r} means nothing with --on, under which each cell "
            f"has a database of its own in OUTPUT/{CELLS}; valid is without it"
        )
    return cluster_of(options.on, options.settings)


def _report_failures(outcomes: tuple[Outcome, ...]) -> None:
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        problem = f"{outcome.error}{for_one_alone(str(outcome.error))}"
        typer.echo(printable(f"error: cell ({outcome.cell}): {problem}"), err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} cells failed", err=True)
        raise typer.Exit(exit_codes.FAILED)


def _jobs(grid: Grid) -> int:
    """Return one process a CPU that this one may use.

    One in all where cells share an accelerator.
    """
    devices = {cell.run.device for cell in grid.cells}
    if "cuda" in devices or ("auto" in devices and resolve_device("auto") == "cuda"):
        return 1
    return len(os.sched_getaffinity(0))


def _default_output(grid: Grid) -> Path:
    """Digest the first configuration and the grid, so that the same command finds it again."""
    # A configuration may be called by its path, where two have one name.
    return OUTPUTS / f"{Path(grid.configs[0]).stem}-{grid.digest[:8]}"


class ScreenSweepObserver(WithBar):
    """Shows a sweep: a bar on stderr, one line a run on stdout."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet` leaves stdout to JSON."""
        super().__init__(TextColumn("{task.fields[failed]}"))
        self._quiet = quiet
        self._out = console()
        self._task: TaskID | None = None
        self._total = self._done = self._failed = 0

    def sweep_started(self, total: int, finished: int) -> None:
        """Say how much is there already."""
        self._total, self._done = total, finished
        self._task = self._progress.add_task("cells", total=total, completed=finished, failed="")
        before = f", {finished} of them finished before" if finished else ""
        self._print(f"{total} cells{before}")

    def cell_started(self, cell: Cell) -> None:
        """Name the cell beside the bar."""
        if self._task is not None:
            self._progress.update(self._task, description=str(cell))

    def cell_finished(self, outcome: Outcome) -> None:
        """Print the run's line."""
        self._done += 1
        self._failed += outcome.error is not None
        if self._task is not None:
            failed = f"{self._failed} failed" if self._failed else ""
            self._progress.update(self._task, completed=self._done, failed=failed)
        self._print(f"[{self._done}/{self._total}] {cell_line(outcome)}")

    def _print(self, text: str) -> None:
        if not self._quiet:
            # Through the bar where both share a screen, so that neither overwrites the other.
            shared = self._out.is_terminal and self._error.is_terminal
            (self._error if shared else self._out).print(text)


def cell_line(outcome: Outcome) -> str:
    """Return a cell that has ended, on one line."""
    if outcome.error is not None:
        return f"{outcome.cell}: failed: {outcome.error}"
    record = record_of(outcome)
    chosen = record.headline(BEST)
    validated = "" if chosen is None else f" (best on validation {fraction(chosen)})"
    spent, run = record.epsilon["server"], "continues run" if outcome.continues else "run"
    cost = f", epsilon {epsilon('inf' if math.isinf(spent) else spent)}"
    return (
        f"{outcome.cell}: {fraction(record.headline(LAST))}{validated}"
        f"{cost if record.privacy['unit'] else ''}{', ended early' if record.ended_early else ''}, "
        f"{outcome.seconds:.1f} s, {run} {outcome.run_id}"
    )

"""`sweep`: a grid of runs, with progress, tables and pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.progress import TaskID, TextColumn

from methods.plugins import Plugins
from platform.cli.command_line import DEFAULT_STORAGE
from platform.cli.ending import FAILED, Ended, interruptible, same_again
from platform.cli.output import Said, Whole, WithBar, answer, epsilon, fraction, printable, table
from platform.config import Sources
from platform.errors import ConfigError
from platform.experiment.environment import resolve_device
from platform.results.sweeping.grid import (
    Cell,
    Grid,
    SweepRequest,
    absolute_storage,
    build_grid,
    for_one_alone,
    parse_names,
    parse_seeds,
)
from platform.results.sweeping.running import Outcome, only_sweep_in, run_cells
from platform.results.sweeping.submitting import cluster_of, database_name, submit_cells
from platform.results.sweeping.tables import (
    BEST,
    LAST,
    Table,
    announce,
    document,
    plain_rows,
    publish,
    record_of,
)
from storage.homes import shown

OUTPUTS = Path("sweeps")
CELLS = "cells"
"""The folder in the results for the databases of cells that are jobs of a cluster."""
MOST_JOBS = 100
"""Most jobs of a cluster at a time, unless `--jobs` says otherwise."""


def sweep_command(
    configs: Sequence[str],
    *,
    methods: str | None,
    seeds: str | None,
    settings: Sequence[str] | None,
    method_settings: Sequence[str] | None,
    device: str | None,
    folder: Path | None,
    storage: str,
    on: str | None,
    cluster_settings: Sequence[str] | None,
    jobs: int | None,
    output: Path | None,
    as_published: bool,
    as_json: bool,
) -> None:
    """Run the cells of a grid that have not finished, and write its tables; `sotto sweep --help`.

    Nothing starts if a cell or an option is not valid, or another sweep works in the folder.
    """
    if on is None and cluster_settings:
        raise ConfigError("--cluster: means nothing without --on; valid is --on dask as well")
    if on is not None and storage != DEFAULT_STORAGE:
        raise ConfigError(
            f"--storage: {shown(storage)!r} means nothing with --on, under which each cell "
            f"has a database of its own in OUTPUT/{CELLS}; valid is without it"
        )
    cluster = None if on is None else cluster_of(on, cluster_settings or ())
    sources = Sources.of(Plugins(folder), as_published=as_published)
    request = SweepRequest(
        configs=tuple(configs),
        methods=() if methods is None else parse_names(methods),
        seeds=() if seeds is None else parse_seeds(seeds),
        settings=tuple(settings or ()),
        method_settings=tuple(method_settings or ()),
        device=device,
        folder=folder,
        storage=storage,
    )
    grid = build_grid(request, sources)
    # The same command finds this name again.
    results = output or OUTPUTS / f"{Path(grid.configs[0]).stem}-{grid.digest[:8]}"

    def interrupted(number: int) -> Ended:
        return Ended(number, f"sweep {results} is interrupted", command=same_again())

    with only_sweep_in(results):
        own = [None if cluster is None else f"{CELLS}/{database_name(c)}" for c in grid.cells]
        announce(grid, results, own)
        with interruptible(interrupted):
            with ScreenSweepObserver(quiet=as_json) as screen:
                if cluster is None:
                    url = absolute_storage(storage)
                    outcomes = run_cells(
                        *(grid.cells, screen, folder), jobs=jobs or _jobs(grid), url=url
                    )
                else:
                    outcomes = submit_cells(
                        *(grid.cells, screen, cluster),
                        folder=folder,
                        jobs=jobs or MOST_JOBS,
                        place=results / CELLS,
                    )
            tables = publish(grid, outcomes, results)
    answer(document(grid, outcomes, results), _tables(tables, results), as_json=as_json)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        problem = f"{outcome.error}{for_one_alone(str(outcome.error))}"
        typer.echo(printable(f"error: cell ({outcome.cell}): {problem}"), err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} cells failed", err=True)
        raise typer.Exit(FAILED)


def _tables(tables: Sequence[Table], results: Path) -> Iterator[Said]:
    for one in tables:
        yield ""
        yield table(one.caption, *plain_rows(one))
        yield from (f"note: local training: {line}" for line in one.training)
        yield from (f"note: {warning}" for warning in one.warnings)
    if tables:
        yield ""
        yield Whole(f"written to {results}")


def _jobs(grid: Grid) -> int:
    """Return one process for each CPU that this process may use; 1 if cells share a GPU."""
    devices = {cell.run.device for cell in grid.cells}
    if "cuda" in devices or ("auto" in devices and resolve_device("auto") == "cuda"):
        return 1
    return len(os.sched_getaffinity(0))


class ScreenSweepObserver(WithBar):
    """Shows a sweep: a bar on stderr, one line a run on stdout."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet` leaves stdout to JSON."""
        super().__init__(TextColumn("{task.fields[failed]}"), quiet=quiet)
        self._task: TaskID | None = None
        self._total = self._done = self._failed = 0

    def sweep_started(self, total: int, finished: int) -> None:
        """Say how many cells finished before."""
        self._total, self._done = total, finished
        self._task = self._progress.add_task("cells", total=total, completed=finished, failed="")
        before = f", {finished} of them finished before" if finished else ""
        self.tell(f"{total} cells{before}")

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
        self.tell(f"[{self._done}/{self._total}] {cell_line(outcome)}")


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

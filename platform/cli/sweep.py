"""`sweep`: a grid of runs, with progress, tables and pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from methods.plugins import Plugins
from platform.cli.command_line import DEFAULT_STORAGE
from platform.cli.ending import FAILED, Ended, interruptible, same_again
from platform.cli.output import Said, Whole, WithBar, answer, printable, table
from platform.config import Sources
from platform.config.loading import LEFT_OUT
from platform.errors import ConfigError, renamed
from platform.results.numbers import NO_NOISE
from platform.results.sweeping.grid import (
    Cell,
    SweepRequest,
    build_grid,
    for_one_alone,
    parse_names,
    parse_seeds,
    split_values,
)
from platform.results.sweeping.running import Outcome
from platform.results.sweeping.study import CELLS, carry_out
from platform.results.sweeping.submitting import cluster_of
from platform.results.sweeping.writing import TABLE_FILE, TESTS_FILE, Results, document, plain_rows
from sotto.errors import Error
from sotto.studies import Study
from storage.homes import shown

OUTPUTS: Final = Path("sweeps")
OPTIONS: Final = {
    **{"task.root": "--data", "data": "--data", "--method": "METHOD", "methods": "METHOD"},
    "method.name": "METHOD",
    **{"--seed": "--seeds", "seeds": "--seeds", "epsilon": "--epsilon", "output": "--output"},
    **{"mechanism": "--mechanism", "config": "--config", "CONFIG": "--config"},
}
"""The arguments of `study` by the names that a refusal gives them."""
MOST_TESTS: Final = 3
"""At most so many tests are on the screen."""


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
    cluster = _cluster(on, cluster_settings, storage)
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
    results = output or OUTPUTS / grid.name

    with interruptible(lambda number: _interrupted(number, "sweep", results)):
        with ScreenSweepObserver(quiet=as_json) as screen:
            for text in dict.fromkeys(t for cell in grid.cells for t in cell.run.remarks):
                if text.startswith(LEFT_OUT):
                    screen.tell(f"note: {text}")
            found = carry_out(
                grid, results, screen, url=storage, folder=folder, jobs=jobs, cluster=cluster
            )
    _say(found, document(found), as_json=as_json)


def study_command(
    methods: Sequence[str],
    *,
    epsilon: str,
    seeds: int,
    data: Path | None,
    config: str | None,
    mechanism: str | None,
    settings: Sequence[str] | None,
    method_settings: Sequence[str] | None,
    folder: Path | None,
    storage: str,
    on: str | None,
    cluster_settings: Sequence[str] | None,
    jobs: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a study through the interface for programs; `sotto study --help`."""
    cluster = _cluster(on, cluster_settings, storage)
    try:
        study = Study(
            methods,
            epsilon=parse_epsilons(epsilon),
            seeds=seeds,
            data=data,
            config=config,
            mechanism=mechanism,
            output=output,
            storage=storage,
            settings=settings or (),
            method_settings=method_settings or (),
            plugins=folder,
        )
        with interruptible(lambda number: _interrupted(number, "study", study.output)):
            with ScreenSweepObserver(quiet=as_json) as screen:
                for text in study.filled:
                    screen.tell(f"filled in: {text}")
                for text in study.grid.unequal:
                    screen.tell(f"note: {text}")
                study.run(jobs=jobs, cluster=cluster, observer=screen)
    except Error as error:
        # Either a package's own refusal, or one of the interface itself.
        cause = error.__context__ or ConfigError(str(error))
        if isinstance(cause, ConfigError):
            cause = ConfigError(*(renamed(one, OPTIONS) for one in cause.faults))
        raise cause from None
    _say(study.found, study.results, as_json=as_json)


def parse_epsilons(text: str) -> tuple[float | None, ...]:
    """Return targets between commas; `none` is without noise."""
    try:
        return tuple(None if part == NO_NOISE else float(part) for part in split_values(text))
    except ValueError:
        raise ConfigError(
            f"--epsilon: {text!r} is not valid; it must be numbers or none, such as none,8,2"
        ) from None


def _cluster(
    on: str | None, settings: Sequence[str] | None, storage: str
) -> Mapping[str, Any] | None:
    """Return the settings of the cluster whose jobs the cells shall be, if any."""
    if on is None and settings:
        raise ConfigError("--cluster: means nothing without --on; valid is --on dask as well")
    if on is not None and storage != DEFAULT_STORAGE:
        raise ConfigError(
            f"--storage: {shown(storage)!r} means nothing with --on, under which each cell "
            f"has a database of its own in OUTPUT/{CELLS}; valid is without it"
        )
    return None if on is None else cluster_of(on, settings or ())


def _interrupted(number: int, what: str, results: Path) -> Ended:
    return Ended(number, f"{what} {results} is interrupted", command=same_again())


def _say(found: Results, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the tables and tests, then the cells that failed."""
    answer(document, _tables(found), as_json=as_json)
    failed = [outcome for outcome in found.outcomes if outcome.error is not None]
    for outcome in failed:
        problem = f"{outcome.error}{for_one_alone(str(outcome.error))}"
        typer.echo(printable(f"error: cell ({outcome.cell}): {problem}"), err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(found.outcomes)} cells failed", err=True)
        raise typer.Exit(FAILED)


def _tables(found: Results) -> Iterator[Said]:
    # First, as of many lines only the first are shown.
    if found.tables:
        yield Whole(f"written to {found.output}")
    for one in found.tables:
        yield ""
        yield table(one.title, *plain_rows(one))
        yield from (f"test: {test}" for test in one.tests[:MOST_TESTS])
        if (more := len(one.tests) - MOST_TESTS) > 0:
            yield f"test: {more} more in {TESTS_FILE}"
        if one.warnings:
            yield f"note: {len(one.warnings)} warnings of the runs are in {TABLE_FILE}"


class ScreenSweepObserver(WithBar):
    """Shows where a sweep is, on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        """`quiet` leaves stdout to JSON."""
        super().__init__(quiet=quiet)
        self._task = self._progress.add_task("cells", total=None)
        self._total = self._done = self._failed = self._before = 0
        self._began = time.monotonic()

    def sweep_started(self, total: int, finished: int) -> None:
        """Say how many cells finished before."""
        self._total, self._done, self._before = total, finished, finished
        before = f", {finished} of them finished before" if finished else ""
        self.tell(f"{total} cells{before}")

    def cell_started(self, cell: Cell) -> None:
        """Name the cell beside the bar."""
        self._progress.update(self._task, description=str(cell))

    def cell_finished(self, outcome: Outcome) -> None:
        """Move the bar."""
        self._done += 1
        self._failed += outcome.error is not None
        each = (time.monotonic() - self._began) / (self._done - self._before)
        left = f"about {math.ceil(each * (self._total - self._done) / 60)} min left"
        told = f"{self._done} of {self._total} cells are over, {self._failed} failed, {left}"
        self._progress.update(self._task, description=told, completed=self._done, total=self._total)
        self.beat(told)

    def still_at(self, cells: Sequence[Cell]) -> None:
        """Name the cells that go on, where there is no bar."""
        now = "; ".join(map(str, cells))
        self.beat(f"{self._done} of {self._total} cells are over; now: {now}")

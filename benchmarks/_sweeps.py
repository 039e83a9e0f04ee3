"""Shared by benchmarks that are sweeps: the place of runs, a line for each, and their outcomes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _sizes import RESULTS, SMALLEST

from platform.results.sweeping.grid import Grid
from platform.results.sweeping.running import Outcome, SweepObserver, only_sweep_in, run_cells


class Lines(SweepObserver):
    """Prints one line per run."""

    def __init__(self) -> None:
        self._total = self._done = 0

    def sweep_started(self, total: int, finished: int) -> None:
        """Print how many runs exist already."""
        self._total, self._done = total, finished
        print(f"{total} runs, {finished} of them finished before", flush=True)

    def cell_finished(self, outcome: Outcome) -> None:
        """Print the run."""
        self._done += 1
        what = outcome.error or f"{outcome.seconds:.1f} s"
        print(f"{self._done}/{self._total} {outcome.cell}: {what}", flush=True)


def sweep(grids: Sequence[Grid], storage: str, jobs: int) -> list[list[Outcome]]:
    """The outcomes of each grid.

    Raises:
        RuntimeError: If a run failed; the next call finds the others.
    """
    cells = [cell for grid in grids for cell in grid.cells]
    outcomes = run_cells(cells, Lines(), jobs=jobs, url=storage)
    failed = [f"{outcome.cell}: {outcome.error}" for outcome in outcomes if outcome.error]
    if failed:
        raise RuntimeError(f"{len(failed)} runs failed: {'; '.join(failed)}")
    rest = iter(outcomes)
    return [[next(rest) for _ in grid.cells] for grid in grids]


@contextmanager
def workplace(name: str, *, fresh: bool) -> Iterator[str]:
    """The database that keeps runs until all of them are finished; `fresh` starts again."""
    folder = _folder(name)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with only_sweep_in(folder):
        yield f"sqlite:///{folder}/sotto.db"
    shutil.rmtree(folder)


def _folder(name: str) -> Path:
    """A folder in memory where possible; at the smallest size, beside the results."""
    if SMALLEST:
        return RESULTS / name
    memory = Path("/dev/shm")  # noqa: S108
    if memory.is_dir():
        return memory / f"sotto-{name}-{os.getuid()}"
    return RESULTS.parents[1] / "runs" / name


def percent(value: float | None) -> float | str:
    """A share in percent; empty for None."""
    return "" if value is None else round(100 * value, 3)

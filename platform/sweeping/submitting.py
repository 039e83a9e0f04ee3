"""Running the cells of a grid as jobs of a cluster, each of them one command line.

A job is `python -m platform.coordinator run ...` and nothing else: its configuration is a file, its
results are a database of its own, which no other machine writes to. So all that this process and a
job share is a folder, and a sweep that is started again finds there what has finished.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from platform.config import StorageConfig, dump_config
from platform.disk.files import write_text
from platform.errors import ConfigError
from platform.sweeping.dask_jobs import DaskJob, DaskJobs, dask_jobs
from platform.sweeping.grid import Cell
from platform.sweeping.known_runs import known_runs, read_summary
from platform.sweeping.running import Outcome, SweepObserver

_NAME_DIGITS: Final = 16
_PAUSE: Final = 0.5
_LONGEST_ERROR: Final = 1 << 16


def submit_cells(
    cells: Sequence[Cell],
    observer: SweepObserver,
    cluster: Mapping[str, Any],
    *,
    folder: Path | None,
    jobs: int,
    place: Path,
) -> tuple[Outcome, ...]:
    """Run what has not finished yet, a job a cell.

    Args:
        cells: All of them.
        observer: Told of every cell that ends.
        cluster: Where they run, as `cluster_of` has it.
        folder: Where the user has methods of their own, None for nowhere.
        jobs: Most jobs at a time.
        place: The folder of databases and of jobs' own output; all machines see it.

    Returns:
        One outcome a cell, in the cells' order.

    Raises:
        ConfigError: If nothing can be submitted here, or cells share clients.
        KeyboardInterrupt: After the jobs were cancelled; the same call goes on later.
    """
    _require_apart(cells)
    place = place.absolute()
    outcomes = {i: done for i, cell in enumerate(cells) if (done := _finished(cell, place))}
    observer.sweep_started(len(cells), len(outcomes))
    missing = [index for index in range(len(cells)) if index not in outcomes]
    with _queue(cluster, place, folder) as queue:
        while missing or queue.running:
            while missing and len(queue.running) < jobs:
                queue.submit(missing[0], cells[missing[0]])
                observer.cell_started(cells[missing.pop(0)])
            for index in queue.ended():
                outcomes[index] = queue.outcome(index, cells[index])
                observer.cell_finished(outcomes[index])
            time.sleep(_PAUSE if queue.running else 0.0)
    return tuple(outcomes[index] for index in range(len(cells)))


def command_of(cell: Cell, place: Path, folder: Path | None) -> list[str]:
    """Return the command line that runs a cell, or goes on with its unfinished run.

    Its configuration is written beside its database.
    """
    url = database_of(cell, place)
    known = known_runs(url).get(cell.identity)
    if known is None:
        config = place / f"{_name(cell)}.yaml"
        stored = cell.run.model_copy(update={"storage": StorageConfig(url=url)})
        write_text(config, dump_config(stored))
        what = [str(config)]
    else:
        what = ["--resume", known.run_id]
    methods = [] if folder is None else ["--methods", str(folder.absolute())]
    start = [sys.executable, "-m", "platform.coordinator", "run"]
    return [*start, *what, *methods, "--storage", url]


def database_of(cell: Cell, place: Path) -> str:
    """Return the URL of a cell's own database."""
    return f"sqlite:///{place}/{database_name(cell)}"


def database_name(cell: Cell) -> str:
    """Return the name of a cell's own database in the folder of all."""
    return f"{_name(cell)}.db"


def _name(cell: Cell) -> str:
    return cell.identity[:_NAME_DIGITS]


def _require_apart(cells: Collection[Cell]) -> None:
    for cell in cells:
        if cell.run.privacy.lifetime_budget is not None:
            raise ConfigError(
                f"--on: cell ({cell}) has privacy.lifetime_budget, so cells spend from one ledger "
                "of each client; valid is a sweep without --on, or without that key"
            )


def _finished(cell: Cell, place: Path, *, seconds: float = 0.0) -> Outcome | None:
    url = database_of(cell, place)
    run = known_runs(url).get(cell.identity)
    if run is None or not run.finished:
        return None
    summary = read_summary(url, run.run_id)
    return Outcome(cell=cell, run_id=run.run_id, summary=summary, seconds=seconds)


@dataclass(kw_only=True)
class _Queue:
    """Jobs that were handed over.

    Attributes:
        jobs: Takes command lines.
        running: By cell the job, and when it was handed over.
    """

    jobs: DaskJobs
    place: Path
    folder: Path | None
    running: dict[int, tuple[DaskJob, float]] = field(default_factory=dict)
    last: dict[int, tuple[DaskJob, float]] = field(default_factory=dict)

    def submit(self, index: int, cell: Cell) -> None:
        """Hand over a cell's command line."""
        job = self.jobs.submit(command_of(cell, self.place, self.folder))
        self.running[index] = (job, time.perf_counter())

    def ended(self) -> Iterator[int]:
        """Yield the cells whose jobs have ended, however."""
        for index, (job, _) in list(self.running.items()):
            if job.done():
                self.last[index] = self.running.pop(index)
                yield index

    def outcome(self, index: int, cell: Cell) -> Outcome:
        """Return what a job that has ended left in its database."""
        job, begun = self.last.pop(index)
        seconds = time.perf_counter() - begun
        found = _finished(cell, self.place, seconds=seconds)
        return found or Outcome(cell=cell, error=_error_of(job), seconds=seconds)

    def cancel(self) -> None:
        """Ask for all jobs to be ended."""
        for job, _ in self.running.values():
            with suppress(Exception):
                job.cancel()


def _error_of(job: DaskJob) -> str:
    said: list[str] = []
    with suppress(OSError):
        with job.errors.open("rb") as file:
            said = file.read(_LONGEST_ERROR).decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    why = errors[-1] if errors else "it ended without finishing its run"
    return f"{why} (job {job.name}, {job.errors})"


@contextmanager
def _queue(cluster: Mapping[str, Any], place: Path, folder: Path | None) -> Iterator[_Queue]:
    with dask_jobs(cluster, place / "jobs") as jobs:
        queue = _Queue(jobs=jobs, place=place, folder=folder)
        try:
            yield queue
        finally:
            queue.cancel()

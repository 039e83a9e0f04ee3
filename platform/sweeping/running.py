"""Running the cells of a grid in worker processes; what has finished before is taken over."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, Protocol

from platform.disk.opening import open_storage
from platform.sweeping.grid import Cell
from platform.sweeping.known_runs import known_runs, mark_cells_interrupted, read_summary
from platform.sweeping.worker import serve

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CELLS_A_WORKER: Final = 40
"""A run leaves some ten megabytes that no collection frees, so workers are replaced in time."""
# How long a worker that has nothing to do may take to end.
_PATIENCE: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: The cell.
        run_id: Its run, None if it failed.
        summary: Of the run, None if it failed.
        error: Why it failed, one sentence, else None.
        seconds: What it took here; 0 where an earlier sweep had finished it.
        continues: Whether its run had been begun before.
    """

    cell: Cell
    run_id: str | None = None
    summary: Mapping[str, Any] | None = field(default=None, repr=False)
    error: str | None = None
    seconds: float = 0.0
    continues: bool = False


class SweepObserver(Protocol):
    """Watches a sweep. Every method may do nothing, as it does where it is inherited."""

    def sweep_started(self, total: int, finished: int) -> None:
        """Hear how many cells there are, and how many of them had finished before."""
        ...

    def cell_started(self, cell: Cell) -> None:
        """Hear that a worker has taken a cell."""
        ...

    def cell_finished(self, outcome: Outcome) -> None:
        """Hear that a cell has finished or failed."""
        ...


def run_cells(
    cells: Sequence[Cell],
    observer: SweepObserver,
    folder: Path | None = None,
    *,
    jobs: int,
    url: str,
) -> tuple[Outcome, ...]:
    """Run what has not finished yet.

    Cells under a lifetime budget spend from the same clients' ledgers: they run one after another
    in their order, so that which of them ends early does not depend on who was faster.

    Args:
        cells: All in one database.
        observer: Told of every cell that ends.
        folder: Where the user has methods of their own, None for nowhere.
        jobs: Number of worker processes.
        url: The database, its path absolute.

    Returns:
        One outcome a cell, in the cells' order.

    Raises:
        ConfigError: If the database's folder cannot be made.
        KeyboardInterrupt: After the workers have ended; the same call goes on later.
    """
    # Made here, so that the workers do not all make it at once.
    open_storage(url).close()
    known, outcomes = known_runs(url), dict[int, Outcome]()
    begun = {run.run_id for run in known.values() if not run.finished}
    for index, cell in enumerate(cells):
        run = known.get(cell.identity)
        if run is not None and run.finished:
            outcomes[index] = Outcome(
                cell=cell, run_id=run.run_id, summary=read_summary(url, run.run_id)
            )
    observer.sweep_started(len(cells), len(outcomes))
    missing = [index for index in range(len(cells)) if index not in outcomes]
    with _workers(cells, url, folder) as pool:
        while missing or pool.busy:
            while len(pool.busy) < jobs and (start := _next(cells, missing, pool.busy)) is not None:
                missing.remove(start)
                pool.give(start, cells[start])
                observer.cell_started(cells[start])
            for index, answer in pool.answers():
                outcomes[index] = _outcome(cells[index], answer, url, begun)
                observer.cell_finished(outcomes[index])
    return tuple(outcomes[index] for index in range(len(cells)))


def _next(cells: Sequence[Cell], missing: Iterable[int], busy: Iterable[int]) -> int | None:
    """Return the first cell that may start beside those that run, None where all must wait."""
    one_runs = any(_spends_for_life(cells[index]) for index in busy)
    free = (index for index in missing if not (one_runs and _spends_for_life(cells[index])))
    return next(free, None)


def _spends_for_life(cell: Cell) -> bool:
    return cell.run.privacy.lifetime_budget is not None


def _outcome(cell: Cell, answer: Mapping[str, Any], url: str, begun: Collection[str]) -> Outcome:
    run_id, seconds = answer["run_id"], answer["seconds"]
    if run_id is None:
        return Outcome(cell=cell, error=answer["error"], seconds=seconds)
    summary = read_summary(url, run_id)
    return Outcome(
        cell=cell, run_id=run_id, summary=summary, seconds=seconds, continues=run_id in begun
    )


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    served: int = 0

    def end(self) -> None:
        """Let it end by itself where it waits for a cell."""
        self.connection.close()
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


@dataclass(frozen=True)
class _Pool:
    """Workers that wait, and workers with a cell."""

    folder: Path | None
    idle: list[_Worker] = field(default_factory=list)
    busy: dict[int, _Worker] = field(default_factory=dict)

    def give(self, index: int, cell: Cell) -> None:
        """Hand a cell to a worker that waits, or to a new one."""
        worker = self.idle.pop() if self.idle else _start(self.folder)
        self.busy[index] = worker
        message = {"config": cell.run.model_dump(mode="json"), "code": cell.code}
        worker.connection.send_bytes(json.dumps(message).encode())

    def answers(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Wait until a worker has answered or died; then all that there are."""
        by_connection = {worker.connection: index for index, worker in self.busy.items()}
        for ready in wait(list(by_connection)):
            index = by_connection[ready]  # type: ignore[index]
            worker = self.busy.pop(index)
            try:
                answer = json.loads(worker.connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                yield index, _death(worker)
                continue
            if worker.served + 1 < CELLS_A_WORKER:
                self.idle.append(replace(worker, served=worker.served + 1))
            else:
                worker.end()
            yield index, answer

    def end(self) -> None:
        """End all workers, those with a cell in the midst of it."""
        for worker in self.busy.values():
            worker.process.kill()
        for worker in (*self.busy.values(), *self.idle):
            worker.end()
        self.busy.clear()
        self.idle.clear()


def _death(worker: _Worker) -> Mapping[str, Any]:
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    worker.end()
    why = "killed, for example for want of memory" if code == -signal.SIGKILL else "ended"
    error = f"its process was {why} (exit code {code}); the same sweep goes on with the run"
    return {"run_id": None, "error": error, "seconds": 0.0}


@contextmanager
def _workers(cells: Sequence[Cell], url: str, folder: Path | None) -> Iterator[_Pool]:
    pool = _Pool(folder)
    try:
        yield pool
    except KeyboardInterrupt:
        interrupted = [cells[index].identity for index in pool.busy]
        pool.end()
        mark_cells_interrupted(url, interrupted)
        raise
    finally:
        pool.end()


def _start(folder: Path | None) -> _Worker:
    """Return a new process, with one thread for everything."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs, None if folder is None else str(folder))
    )
    # A child inherits what is blocked: Ctrl-C while it imports would print a trace.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _one_thread():
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set what children read when they import numpy, before any configuration."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

"""Running the cells of a grid in worker processes; a sweep takes over runs that have finished.

A sweep finds the run of a cell by its configuration alone. It keeps no state of its own: the
database and the folders of the runs hold all state. Messages to a worker are JSON. A worker ends
with its parent, however the parent ends. The parent alone reacts to Ctrl-C at the terminal: it ends
its workers in the midst of their runs, which a later sweep resumes as after any kill.
"""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from methods import MethodError
from platform.agreement import require_agreement
from platform.config import RunConfig, parse_config
from platform.config.run import code_of, identity, origins_of
from platform.disk.files import open_lock, wait_until_free
from platform.disk.opening import (
    database_file,
    is_there,
    mark_interrupted,
    open_existing,
    open_storage,
    run_folder,
)
from platform.errors import ConfigError, PlatformError, RecordsDisagree
from platform.experiment.finishing import execute
from platform.experiment.planning import Surroundings, create_run, reopen_run
from platform.results.reading import KnownRun, runs_by_cell
from platform.results.sweeping.grid import Cell
from platform.rounds.observing import SilentObserver
from privacy import PrivacyError
from storage import StorageError
from storage.files import make_folder

LOCK_NAME: Final = "sweep.lock"
OUTPUT_LOCK_NAME: Final = ".lock"
# These digits of a cell's identity give the number of its byte in the lock file.
_LOCK_HEX_DIGITS: Final = 15


def known_runs(url: str) -> dict[str, KnownRun]:
    """Return runs of a database by their cell's identity, as `runs_by_cell` does."""
    if not is_there(url):
        return {}
    with closing(open_existing(url, read_only=False)) as database:
        return runs_by_cell(database, url)


def mark_cells_interrupted(url: str, cells: Sequence[str]) -> None:
    """Label the runs of cells that have stopped; the command `runs` shows the label."""
    # An error while reading or opening must not hide that the sweep was interrupted.
    with suppress(StorageError, RecordsDisagree):
        known = known_runs(url)
        with closing(open_existing(url, read_only=False)) as database:
            for run in (known[cell] for cell in cells if cell in known):
                # A worker may have finished it since it was read.
                mark_interrupted(database, run.run_id)


def read_summary(url: str, run_id: str, config: RunConfig) -> Mapping[str, Any]:
    """Return a finished run's summary, if its records agree; `config` knows its mechanism."""
    with closing(open_existing(url, read_only=False)) as database:
        summary = require_agreement(database, run_id, config.mechanisms).summary
    if summary is None:
        raise RecordsDisagree(run_id, "its audit log does not say that it has finished")
    return summary


@contextmanager
def only_worker_of(url: str, cell: str) -> Iterator[None]:
    """Wait until no other process works on the cell, and lock it; the lock ends with the process.

    Two sweeps may share cells. Both would go on with the same unfinished run, so the second waits
    and then finds the run finished. One file serves all cells: each locks its own byte.
    """
    with open_lock(database_file(url).parent / LOCK_NAME) as file:
        byte = int(cell[:_LOCK_HEX_DIGITS], 16)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


@contextmanager
def only_sweep_in(output: Path) -> Iterator[None]:
    """Lock the folder of results for one sweep; a missing folder is made."""
    try:
        make_folder(output)
        file = open_lock(output / OUTPUT_LOCK_NAME)
    except OSError as error:
        raise ConfigError(
            f"--output: {str(output)!r} cannot be written to ({error.strerror}); valid is a folder "
            "that can"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"--output: another sweep works in {str(output)!r} just now; wait until it has "
                "ended, or give another folder"
            ) from error
        yield


LOGGER = logging.getLogger(__name__)
FORESEEN = (PlatformError, MethodError, PrivacyError, StorageError, OSError)
"""Errors whose message is a sentence for the user."""


def serve(connection: Connection, folder: str | None) -> None:
    """Answer cells until the parent closes the pipe; `folder` has the user's plug-ins.

    A message is `{"config", "code"}` as JSON; an answer is `{"run_id", "error", "seconds"}`.
    """
    surroundings = Surroundings.with_plugins(None if folder is None else Path(folder))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    try:
        while True:
            message = json.loads(connection.recv_bytes())
            answer = answer_cell(message["config"], message["code"], surroundings)
            connection.send_bytes(json.dumps(answer).encode())
            # Objects of a run form cycles, so only the collector frees them.
            gc.collect()
    except (EOFError, BrokenPipeError):
        return


def answer_cell(
    tree: dict[str, Any], code: str | None = None, surroundings: Surroundings | None = None
) -> dict[str, Any]:
    """Run a cell, given as its whole configuration; errors become part of the answer."""
    started = time.perf_counter()
    sources = None if surroundings is None else surroundings.sources
    run_id: str | None = None
    error: str | None = None
    try:
        run_id = run_cell(parse_config(tree, sources=sources), code, surroundings)
    except FORESEEN as failure:
        error = str(failure)
    except Exception as failure:
        # A mistake in a method must not end the other cells; its trace is worth keeping.
        LOGGER.exception("a cell failed")
        error = f"{type(failure).__name__}: {failure}"
    return {"run_id": run_id, "error": error, "seconds": time.perf_counter() - started}


def run_cell(
    config: RunConfig, code: str | None = None, surroundings: Surroundings | None = None
) -> str:
    """Run a cell, go on with its unfinished run, or find its finished run; return the run's id.

    The code is the digest of the plug-ins, None without any; a file that has changed
    since the sweep began is refused.
    """
    surroundings = surroundings or Surroundings()
    origins = origins_of(config.model_dump(mode="json"), surroundings.registry.plugins)
    if code_of(origins) != code:
        raise ConfigError(
            "--plugins: the file of a plug-in of the cell with method "
            f"{config.method.name!r} has changed since the sweep began; start it again"
        )
    url, cell = config.storage.url, identity(config.model_dump(mode="json"), code)
    with only_worker_of(url, cell):
        known = known_runs(url).get(cell)
        if known is not None and not known.finished:
            # `run` and `run --resume` do not lock cells; a run that they finish is not repeated.
            wait_until_free(run_folder(url, known.run_id))
            known = known_runs(url).get(cell)
        if known is not None and known.finished:
            return known.run_id
        observer = SilentObserver()
        if known is None:
            simulation = create_run(config, observer, surroundings)
        else:
            simulation = reopen_run(known.run_id, url, observer, surroundings)
        try:
            execute(simulation, observer)
        finally:
            simulation.database.close()
        return simulation.run_id


def _end_with_parent() -> None:
    """End this process with its parent, so that no second process continues the same run."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CELLS_A_WORKER: Final = 40
"""A run leaves some ten megabytes that no collection frees, so workers are replaced in time."""
# Seconds that an idle worker may take to end.
_PATIENCE: Final = 10.0
# Seconds after which an observer hears that cells go on.
_SPELL: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a cell.

    Attributes:
        run_id: Its run, None after a failure.
        error: The reason of a failure in one sentence, else None.
        seconds: Its time in this sweep; 0 if an earlier sweep had finished it.
    """

    cell: Cell
    run_id: str | None = None
    summary: Mapping[str, Any] | None = field(default=None, repr=False)
    error: str | None = None
    seconds: float = 0.0


class SweepObserver(Protocol):
    """Watches a sweep. The inherited methods do nothing."""

    def sweep_started(self, total: int, finished: int) -> None:
        """Hear how many cells there are, and how many of them had finished before."""
        ...

    def cell_started(self, cell: Cell) -> None:
        """Hear that a worker has taken a cell."""
        ...

    def cell_finished(self, outcome: Outcome) -> None:
        """Hear that a cell has finished or failed."""
        ...

    def still_at(self, cells: Sequence[Cell]) -> None:
        """Hear every few seconds which cells go on."""
        return


def run_cells(
    cells: Sequence[Cell],
    observer: SweepObserver,
    folder: Path | None = None,
    *,
    jobs: int,
    url: str,
) -> tuple[Outcome, ...]:
    """Run the cells that have not finished yet; return one outcome a cell, in their order.

    Cells under a lifetime budget spend from the same clients' ledgers: they run one after another
    in their order, so that speed does not decide which of them ends early. The URL of the one
    database has an absolute path. After Ctrl-C the workers have ended; the same call goes on later.
    """
    # Made here, so that the workers do not make the database at the same time.
    open_storage(url).close()
    known, outcomes = known_runs(url), dict[int, Outcome]()
    for index, cell in enumerate(cells):
        run = known.get(cell.identity)
        if run is not None and run.finished:
            outcomes[index] = Outcome(
                cell=cell, run_id=run.run_id, summary=read_summary(url, run.run_id, cell.run)
            )
    observer.sweep_started(len(cells), len(outcomes))
    missing = [index for index in range(len(cells)) if index not in outcomes]
    with _workers(cells, url, folder) as pool:
        while missing or pool.busy:
            while len(pool.busy) < jobs:
                one_runs = any(_spends_for_life(cells[index]) for index in pool.busy)
                free = (i for i in missing if not (one_runs and _spends_for_life(cells[i])))
                start = next(free, None)
                if start is None:
                    # All must wait.
                    break
                missing.remove(start)
                pool.give(start, cells[start])
                observer.cell_started(cells[start])
            observer.still_at([cells[index] for index in pool.busy])
            for index, answer in pool.answers():
                run_id, cell = answer["run_id"], cells[index]
                outcomes[index] = Outcome(
                    cell=cell,
                    run_id=run_id,
                    summary=None if run_id is None else read_summary(url, run_id, cell.run),
                    error=answer["error"] if run_id is None else None,
                    seconds=answer["seconds"],
                )
                observer.cell_finished(outcomes[index])
    return tuple(outcomes[index] for index in range(len(cells)))


def _spends_for_life(cell: Cell) -> bool:
    return cell.run.privacy.lifetime_budget is not None


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    served: int = 0

    def end(self) -> None:
        """Close the pipe, at which an idle worker ends; kill a worker that does not end."""
        self.connection.close()
        self.process.join(_PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


class _Pool:
    """Idle workers, and busy workers by their cell."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.idle: list[_Worker] = []
        self.busy: dict[int, _Worker] = {}

    def give(self, index: int, cell: Cell) -> None:
        """Hand a cell to an idle worker, or to a new worker."""
        worker = self.idle.pop() if self.idle else _start(self.folder)
        self.busy[index] = worker
        message = {"config": cell.run.model_dump(mode="json"), "code": cell.code}
        worker.connection.send_bytes(json.dumps(message).encode())

    def answers(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Wait, but not for long, until a worker has answered or died, and yield all answers."""
        by_connection = {worker.connection: index for index, worker in self.busy.items()}
        for ready in wait(list(by_connection), _SPELL):
            index = by_connection[ready]  # type: ignore[index]
            worker = self.busy.pop(index)
            try:
                answer = json.loads(worker.connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                worker.process.join(_PATIENCE)
                code = worker.process.exitcode
                worker.end()
                killed = "killed, for example for want of memory"
                why = killed if code == -signal.SIGKILL else "ended"
                told = (
                    f"its process was {why} (exit code {code}); the same sweep goes on with the run"
                )
                yield index, {"run_id": None, "error": told, "seconds": 0.0}
                continue
            if worker.served + 1 < CELLS_A_WORKER:
                self.idle.append(replace(worker, served=worker.served + 1))
            else:
                worker.end()
            yield index, answer

    def end(self) -> None:
        """End all workers; busy workers end in the midst of their cells."""
        for worker in self.busy.values():
            worker.process.kill()
        for worker in (*self.busy.values(), *self.idle):
            worker.end()
        self.busy.clear()
        self.idle.clear()


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
    # The child inherits blocked signals. Ctrl-C during its imports would otherwise print a trace.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # A child reads at import how many threads numpy shall have.
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    # A child would run the caller's program again, which nothing here needs.
    program = sys.modules["__main__"]
    try:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        sys.modules["__main__"] = ModuleType("__main__")
        process.start()
    finally:
        sys.modules["__main__"] = program
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    theirs.close()
    return _Worker(process, ours)

"""Running the cells of a grid as jobs of a Dask cluster, each of them one command line.

A job is the command `python -m platform.coordinator run ...`: its configuration is a file, and its
results are a database of its own, to which no other machine writes. This process and a job share a
folder and nothing else. A restarted sweep finds the finished runs there.

A task is a call of the standard library's `subprocess.call` with a list of texts. Dask starts a
task again after the loss of a worker, while the first worker's command may still run. So each task
begins by making a folder of its own, which succeeds once.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platform.config import StorageConfig, dump_config
from platform.disk.files import write_text
from platform.errors import ConfigError
from platform.sweeping.grid import Cell
from platform.sweeping.running import Outcome, SweepObserver, known_runs, read_summary

_ONCE: Final = 'mkdir -- "$0" || exit 75; exec "$@" >"$0/stdout" 2>"$0/stderr" </dev/null'
_PATIENCE: Final = "30s"
_SECONDS: Final = 60.0
_ADDRESS: Final = re.compile(r"(tcp|tls|ucx|ws|wss)://[A-Za-z0-9_.:\[\]-]{1,200}")


def _minutes(text: str) -> int:
    with suppress(ValueError):
        if (found := int(text)) > 0:
            return found
    raise ValueError("a number above 0")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("such as tcp://HOST:PORT or tls://HOST:PORT")
    return text


def _file(text: str) -> Path:
    if not (path := Path(text)).is_file():
        raise ValueError("a file that is there")
    return path.absolute()


SETTINGS: Final[Mapping[str, Callable[[str], Any]]] = {
    "timeout_min": _minutes,
    "scheduler": _address,
    "scheduler_file": _file,
}


def cluster_of(engine: str, settings: Sequence[str]) -> Mapping[str, Any]:
    """Return the scheduler and the time limit of jobs from the command line's texts.

    Raises:
        ConfigError: If a text is not valid, or a setting is missing.
    """
    if engine != "dask":
        raise ConfigError(
            f"--on: {engine!r} is not valid; it must be dask, which dask-jobqueue starts on Slurm"
        )
    found = dict(map(_setting, settings))
    if "timeout_min" not in found:
        # Any default would be too short for some jobs and too long for some queues.
        raise ConfigError(
            "--cluster: timeout_min is missing; valid is --cluster timeout_min=MINUTES, the most "
            "that one cell may take"
        )
    if len({"scheduler", "scheduler_file"} & set(found)) != 1:
        raise ConfigError(
            "--cluster: one of scheduler and scheduler_file must be given with --on dask, such as "
            "--cluster scheduler=tcp://HOST:8786"
        )
    return found


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if key not in SETTINGS or not equals:
        raise ConfigError(
            f"--cluster: {text!r} is not valid; it must be KEY=VALUE, KEY one of "
            f"{', '.join(SETTINGS)}"
        )
    try:
        return key, SETTINGS[key](value)
    except ValueError as error:
        raise ConfigError(f"--cluster: {text!r} is not valid; it must be {error}") from error


@dataclass(frozen=True)
class DaskJob:
    """A task, and the folder of its output."""

    future: Any
    folder: Path

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.folder.name

    @property
    def errors(self) -> Path:
        """The file of its standard error."""
        return self.folder / "stderr"

    def done(self) -> bool:
        """Return whether the task has ended."""
        return bool(self.future.done())

    def cancel(self) -> None:
        """Take the task out of the queue; a started command goes on until it ends or times out."""
        self.future.cancel(force=True)


@dataclass(frozen=True)
class DaskJobs:
    """A connection to the scheduler."""

    client: Any
    folder: Path
    seconds: float

    def submit(self, command: Sequence[str]) -> DaskJob:
        """Submit a command line."""
        place = self.folder / secrets.token_hex(8)
        line = ["/bin/sh", "-c", _ONCE, str(place), *command]
        future = self.client.submit(
            *(subprocess.call, line),
            cwd=str(Path.cwd()),
            timeout=self.seconds,
            key=f"sotto-{place.name}",
            retries=0,
            pure=False,
        )
        return DaskJob(future, place)


@contextmanager
def dask_jobs(settings: Mapping[str, Any], folder: Path) -> Iterator[DaskJobs]:
    """Connect to the scheduler; the output of tasks goes to a folder.

    Raises:
        ConfigError: If the scheduler cannot be reached, or Dask is not installed.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            f"--on: needs {error.name}, which is not installed; valid after "
            "`.venv/bin/pip install -e '.[dask]'` in the checkout"
        ) from error
    # Its methods carry no types.
    connect: Any = Client
    file, address = settings.get("scheduler_file"), settings.get("scheduler")
    where = {"address": address} if file is None else {"scheduler_file": str(file)}
    try:
        client = connect(**where, timeout=_PATIENCE, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(f"--on: dask cannot be reached at {file or address}: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield DaskJobs(client, folder, _SECONDS * settings["timeout_min"])
    finally:
        client.close(timeout=_PATIENCE)


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
    """Run the cells that have not finished yet, a job a cell.

    Args:
        cells: All cells.
        observer: Hears of every cell that ends.
        cluster: From `cluster_of`.
        folder: The user's folder of own methods, None without one.
        jobs: Most jobs at a time.
        place: The folder of databases and of jobs' output; all machines see it.

    Returns:
        One outcome a cell, in the cells' order.

    Raises:
        ConfigError: If the scheduler cannot be reached, or cells share clients.
        KeyboardInterrupt: After the jobs were cancelled; the same call goes on later.
    """
    for cell in cells:
        if cell.run.privacy.lifetime_budget is not None:
            raise ConfigError(
                f"--on: cell ({cell}) has privacy.lifetime_budget, so cells spend from one ledger "
                "of each client; valid is a sweep without --on, or without that key"
            )
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


def _finished(cell: Cell, place: Path, *, seconds: float = 0.0) -> Outcome | None:
    url = database_of(cell, place)
    run = known_runs(url).get(cell.identity)
    if run is None or not run.finished:
        return None
    summary = read_summary(url, run.run_id)
    return Outcome(cell=cell, run_id=run.run_id, summary=summary, seconds=seconds)


class _Queue:
    """The submitted jobs, by cell, with the time of their submission."""

    def __init__(self, jobs: DaskJobs, place: Path, folder: Path | None) -> None:
        self.jobs, self.place, self.folder = jobs, place, folder
        self.running: dict[int, tuple[DaskJob, float]] = {}

    def submit(self, index: int, cell: Cell) -> None:
        """Submit a cell's command line."""
        job = self.jobs.submit(command_of(cell, self.place, self.folder))
        self.running[index] = (job, time.perf_counter())

    def ended(self) -> list[int]:
        """Return the cells whose jobs have ended."""
        return [index for index, (job, _) in self.running.items() if job.done()]

    def outcome(self, index: int, cell: Cell) -> Outcome:
        """Return the outcome of an ended job from its database, and forget the job."""
        job, begun = self.running.pop(index)
        seconds = time.perf_counter() - begun
        if found := _finished(cell, self.place, seconds=seconds):
            return found
        said: list[str] = []
        with suppress(OSError), job.errors.open("rb") as file:
            said = file.read(_LONGEST_ERROR).decode("utf-8", "replace").splitlines()
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        why = errors[-1] if errors else "it ended without finishing its run"
        error = f"{why} (job {job.name}, {job.errors})"
        return Outcome(cell=cell, error=error, seconds=seconds)

    def cancel(self) -> None:
        """Cancel all jobs."""
        for job, _ in self.running.values():
            with suppress(Exception):
                job.cancel()


@contextmanager
def _queue(cluster: Mapping[str, Any], place: Path, folder: Path | None) -> Iterator[_Queue]:
    with dask_jobs(cluster, place / "jobs") as jobs:
        queue = _Queue(jobs, place, folder)
        try:
            yield queue
        finally:
            queue.cancel()

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
from pathlib import Path
from typing import Any, Final, NamedTuple

from platform.config import StorageConfig, dump_config
from platform.disk.files import write_text
from platform.errors import ConfigError
from platform.results.sweeping.grid import Cell
from platform.results.sweeping.running import Outcome, SweepObserver, known_runs, read_summary

_ONCE: Final = 'mkdir -- "$0" || exit 75; exec "$@" >"$0/stdout" 2>"$0/stderr" </dev/null'
_PATIENCE: Final = "30s"
_SECONDS: Final = 60.0
_ADDRESS: Final = re.compile(r"(tcp|tls|ucx|ws|wss)://[A-Za-z0-9_.:\[\]-]{1,200}")
SETTINGS: Final[Mapping[str, str]] = {
    "timeout_min": "a number above 0",
    "scheduler": "such as tcp://HOST:PORT or tls://HOST:PORT",
    "scheduler_file": "a file that is there",
}
"""The settings of a cluster, and their valid values."""


def cluster_of(engine: str, settings: Sequence[str]) -> Mapping[str, Any]:
    """Return the scheduler and the time limit of jobs from the command line's texts."""
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
    found: Any = None
    if key == "timeout_min":
        with suppress(ValueError):
            found = max(int(value), 0)
    elif key == "scheduler":
        found = value if _ADDRESS.fullmatch(value) else None
    else:
        found = Path(value).absolute() if Path(value).is_file() else None
    if not found:
        raise ConfigError(f"--cluster: {text!r} is not valid; it must be {SETTINGS[key]}")
    return key, found


class Job(NamedTuple):
    """A task of the scheduler, and the folder of its output."""

    future: Any
    folder: Path


Submit = Callable[[Sequence[str]], Job]


@contextmanager
def dask_jobs(settings: Mapping[str, Any], folder: Path) -> Iterator[Submit]:
    """Connect to the scheduler, and yield what submits a command line.

    The output of tasks goes to a folder. A cancelled task leaves the queue; a command that has
    started goes on until it ends or times out.
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

    def submit(command: Sequence[str]) -> Job:
        place = folder / secrets.token_hex(8)
        future = client.submit(
            *(subprocess.call, ["/bin/sh", "-c", _ONCE, str(place), *command]),
            cwd=str(Path.cwd()),
            timeout=_SECONDS * settings["timeout_min"],
            key=f"sotto-{place.name}",
            retries=0,
            pure=False,
        )
        return Job(future, place)

    try:
        yield submit
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
    """Run the cells that have not finished yet, a job a cell; return outcomes in the cells' order.

    All machines see `place`, the folder of databases and of jobs' output. After Ctrl-C the jobs
    were cancelled; the same call goes on later. Cells that share clients are refused.
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
    running: dict[int, tuple[Job, float]] = {}
    with dask_jobs(cluster, place / "jobs") as submit:
        try:
            while missing or running:
                while missing and len(running) < jobs:
                    job = submit(command_of(cells[missing[0]], place, folder))
                    running[missing[0]] = (job, time.perf_counter())
                    observer.cell_started(cells[missing.pop(0)])
                for index in [index for index, (job, _) in running.items() if job.future.done()]:
                    outcomes[index] = _outcome(cells[index], place, *running.pop(index))
                    observer.cell_finished(outcomes[index])
                time.sleep(_PAUSE if running else 0.0)
        finally:
            for job, _ in running.values():
                with suppress(Exception):
                    job.future.cancel(force=True)
    return tuple(outcomes[index] for index in range(len(cells)))


def command_of(cell: Cell, place: Path, folder: Path | None) -> list[str]:
    """Write a cell's configuration beside its database; return the command line that runs it."""
    name = database_name(cell)
    url = f"sqlite:///{place}/{name}"
    known = known_runs(url).get(cell.identity)
    if known is None:
        config = (place / name).with_suffix(".yaml")
        stored = cell.run.model_copy(update={"storage": StorageConfig(url=url)})
        write_text(config, dump_config(stored))
        what = [str(config)]
    else:
        what = ["--resume", known.run_id]
    plugins = [] if folder is None else ["--plugins", str(folder.absolute())]
    start = [sys.executable, "-m", "platform.coordinator", "run"]
    return [*start, *what, *plugins, "--storage", url]


def database_name(cell: Cell) -> str:
    """Return the name of a cell's own database in the folder of all."""
    return f"{cell.identity[:_NAME_DIGITS]}.db"


def _finished(cell: Cell, place: Path, *, seconds: float = 0.0) -> Outcome | None:
    url = f"sqlite:///{place}/{database_name(cell)}"
    run = known_runs(url).get(cell.identity)
    if run is None or not run.finished:
        return None
    summary = read_summary(url, run.run_id, cell.run)
    return Outcome(cell=cell, run_id=run.run_id, summary=summary, seconds=seconds)


def _outcome(cell: Cell, place: Path, job: Job, begun: float) -> Outcome:
    """Return the outcome of a job that has ended, from its database."""
    seconds = time.perf_counter() - begun
    if found := _finished(cell, place, seconds=seconds):
        return found
    said: list[str] = []
    with suppress(OSError), (job.folder / "stderr").open("rb") as file:
        said = file.read(_LONGEST_ERROR).decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    why = errors[-1] if errors else "it ended without finishing its run"
    error = f"{why} (job {job.folder.name}, {job.folder / 'stderr'})"
    return Outcome(cell=cell, error=error, seconds=seconds)

"""Command lines as tasks of a Dask cluster, and what the command line says of it.

A task is a call of the standard library's `subprocess.call`; what travels is its name and a list of
texts. Dask starts a task again where a worker was lost, while what that worker had started may
still run; so each task begins by making a folder of its own, which succeeds once.
"""

from __future__ import annotations

import math
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platform.errors import ConfigError

_ONCE: Final = 'mkdir -- "$0" || exit 75; exec "$@" >"$0/stdout" 2>"$0/stderr" </dev/null'
_PATIENCE: Final = "30s"
_SECONDS: Final = 60.0
_ADDRESS: Final = re.compile(r"(tcp|tls|ucx|ws|wss)://[A-Za-z0-9_.:\[\]-]{1,200}")


def _minutes(text: str) -> int:
    with suppress(ValueError):
        if 0 < (found := int(text)) < math.inf:
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
    """Return where jobs go and how long one may take, by the command line's texts.

    Raises:
        ConfigError: If one of them is not valid.
    """
    if engine != "dask":
        raise ConfigError(
            f"--on: {engine!r} is not valid; it must be dask, which dask-jobqueue starts on Slurm"
        )
    found = dict(map(_setting, settings))
    if "timeout_min" not in found:
        # Any default would end jobs in their midst, or never start them.
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
    """A task, and the folder of what it says."""

    future: Any
    folder: Path

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.folder.name

    @property
    def errors(self) -> Path:
        """The file of what it says on its standard error."""
        return self.folder / "stderr"

    def done(self) -> bool:
        """Return whether it has ended; what it returned is never asked for."""
        return bool(self.future.done())

    def cancel(self) -> None:
        """Take it out of the queue; what has started goes on until it ends, or its time does."""
        self.future.cancel(force=True)


@dataclass(frozen=True)
class DaskJobs:
    """A scheduler that has workers."""

    client: Any
    folder: Path
    seconds: float

    def submit(self, command: Sequence[str]) -> DaskJob:
        """Hand a command line over."""
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
    """Return block in which tasks can be handed over; their output goes to a folder.

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

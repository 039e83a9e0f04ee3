"""Command lines as jobs of Slurm, through submitit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platform.errors import ConfigError
from platform.sweeping.clusters import Jobs

_LOGGING: Final = "SUBMITIT_LOG_LEVEL"


@dataclass(frozen=True)
class SlurmJob:
    """A job in the queue, or out of it."""

    job: Any

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.job.job_id)

    @property
    def errors(self) -> Path:
        """The file of what it says on its standard error."""
        return Path(str(self.job.paths.stderr))

    def done(self) -> bool:
        """Return whether it has ended; what it returned is never read: it would be unpickled."""
        return bool(self.job.done())

    def cancel(self) -> None:
        """Ask for its end."""
        self.job.cancel(check=False)


@dataclass(frozen=True)
class SlurmJobs:
    """A queue of Slurm."""

    executor: Any

    def submit(self, command: Sequence[str]) -> SlurmJob:
        """Hand a command line over."""
        from submitit.helpers import CommandFunction

        line = CommandFunction(list(command), verbose=False, cwd=Path.cwd())
        return SlurmJob(self.executor.submit(line))


@contextmanager
def slurm_jobs(engine: str, settings: Mapping[str, Any], folder: Path) -> Iterator[Jobs]:
    """Return block in which jobs can be handed over; their output goes to a folder.

    Raises:
        ConfigError: If there is no Slurm here, or submitit is not installed.
    """
    try:
        submitit = _submitit()
    except ImportError as error:
        raise ConfigError(
            f"--on: needs {error.name}, which is not installed; valid after "
            "`.venv/bin/pip install -e '.[slurm]'` in the checkout"
        ) from error
    try:
        executor = submitit.AutoExecutor(folder, cluster=engine)
        executor.update_parameters(name="sotto", **settings)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(f"--on: {engine} cannot be used here: {error}") from error
    yield SlurmJobs(executor)


def _submitit() -> Any:
    """Import it, without its settings of logging: they close all handlers that this process has.

    A handler of another library may close its stream with it, which may be standard error.
    """
    before = os.environ.get(_LOGGING)
    os.environ[_LOGGING] = "NOCONFIG"
    try:
        import submitit
    finally:
        if before is None:
            del os.environ[_LOGGING]
        else:
            os.environ[_LOGGING] = before
    return submitit

"""Which runs of a database belong to which cells, and who works on a cell just now.

A cell is found again by its configuration alone, so a sweep has no state of its own: what the
database and the runs' folders hold is all there is.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from platform.agreement import require_agreement
from platform.disk.files import open_lock
from platform.disk.opening import database_file, is_there, mark_interrupted, open_existing
from platform.errors import ConfigError, RecordsDisagree
from platform.results.reading import KnownRun, runs_by_cell
from storage import StorageError
from storage.files import make_folder

LOCK_NAME: Final = "sweep.lock"
OUTPUT_LOCK_NAME: Final = ".lock"
# Bits of a cell's identity that say which byte of the lock file is its own.
_LOCK_HEX_DIGITS: Final = 15


def known_runs(url: str) -> dict[str, KnownRun]:
    """Return runs of a database by their cell's identity: a finished one first, else the newest.

    Raises:
        ConfigError: If the URL names no database.
        StorageError: If the database cannot be read.
        RecordsDisagree: If the row of a run has no configuration.
    """
    if not is_there(url):
        return {}
    database = open_existing(url, read_only=False)
    try:
        return runs_by_cell(database, url)
    finally:
        database.close()


def mark_cells_interrupted(url: str, cells: Sequence[str]) -> None:
    """Label the runs of cells that are not going on any more, for `runs`."""
    # What cannot be read or opened here must not hide that the sweep was interrupted.
    with suppress(StorageError, RecordsDisagree):
        known = known_runs(url)
        with closing(open_existing(url, read_only=False)) as database:
            for run in (known[cell] for cell in cells if cell in known):
                # A worker may have finished it since it was read.
                mark_interrupted(database, run.run_id)


def read_summary(url: str, run_id: str) -> Mapping[str, Any]:
    """Return a finished run's summary, if its records agree.

    Raises:
        RecordsDisagree: If they do not, or the run has not finished.
        AuditChainBroken: If its audit log was changed.
        NotFound: If there is no such run.
    """
    with closing(open_existing(url, read_only=False)) as database:
        summary = require_agreement(database, run_id).summary
    if summary is None:
        raise RecordsDisagree(run_id, "its audit log does not say that it has finished")
    return summary


@contextmanager
def only_worker_of(url: str, cell: str) -> Iterator[None]:
    """Wait until no other process works on the cell; the lock ends with the process.

    Two sweeps may share cells. Both would go on with the same unfinished run, so the second waits
    and then finds it finished. One file serves all cells: each locks a byte of its own.
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
    """Keep the folder of results to one sweep; made if missing.

    Raises:
        ConfigError: If another process has it, or it cannot be made.
    """
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

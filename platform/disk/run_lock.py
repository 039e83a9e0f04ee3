"""Who runs a run just now: a lock on a file in its folder, which ends with its process.

Two processes that go on with one run would each charge the clients for the same attempts. Every
way to run or resume holds this lock; reading commands take none.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from platform.disk.files import open_lock
from platform.errors import RunBusy
from storage.files import make_folder

LOCK_NAME: Final = "run.lock"


@contextmanager
def only_process_of(folder: Path) -> Iterator[None]:
    """Keep a run to this process.

    Args:
        folder: The run's; made if missing.

    Raises:
        RunBusy: If another process runs it.
    """
    with _opened(folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunBusy(
                f"run {folder.name}: is being run by another process; wait until that has ended"
            ) from error
        yield


def wait_until_free(folder: Path) -> None:
    """Wait until no process runs the run; another may take it directly after."""
    with _opened(folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _opened(folder: Path) -> IO[str]:
    make_folder(folder)
    return open_lock(folder / LOCK_NAME)

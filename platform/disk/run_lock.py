"""Who runs a run just now, or serves a store: a lock on a file, which ends with its process.

Two processes that go on with one run would each charge the clients for the same attempts. Every
way to run or resume holds this lock; reading commands take none. A data holder's process holds one
on its storage folder in the same way.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from platform.disk.files import named, open_lock
from platform.errors import RunBusy
from storage.files import make_folder

LOCK_NAME: Final = "run.lock"
TRIES: Final = 3
PAUSE: Final = 0.02
"""Seconds between two tries: `is_held` asks for much less."""


class Held(Exception):
    """Another process holds a lock."""


@contextmanager
def only_process_of(folder: Path) -> Iterator[None]:
    """Keep a run to this process.

    Args:
        folder: The run's; made if missing.

    Raises:
        RunBusy: If another process runs it.
        Unwritable: If the lock cannot be made.
    """
    try:
        with held(folder / LOCK_NAME):
            yield
    except Held as error:
        raise RunBusy(
            f"run {folder.name}: is being run by another process; wait until that has ended"
        ) from error


def require_free(folder: Path) -> None:
    """Check, before its clients are asked anything, that no process runs a run just now.

    Whoever goes on with it takes the lock later, and is refused then if another was quicker.

    Raises:
        RunBusy: If another process runs it.
    """
    with only_process_of(folder):
        pass


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a lock as long as the block lasts.

    Args:
        lock: Its file; made if missing, with its folder.

    Raises:
        Held: If another process holds it.
        Unwritable: If it cannot be made.
    """
    with _opened(lock) as file:
        if not any(_is_taken(file) for _ in range(TRIES)):
            raise Held(str(lock))
        yield


def _is_taken(file: IO[str]) -> bool:
    """Take the lock, or wait for as long as a question whether somebody has it may last."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(PAUSE)
        return False
    return True


def is_held(folder: Path) -> bool | None:
    """Return whether a process runs the run just now; None where none ever has.

    Nothing is made or kept; `held` waits for as long as the question takes.
    """
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def wait_until_free(folder: Path) -> None:
    """Wait until no process runs the run; another may take it directly after."""
    with _opened(folder / LOCK_NAME) as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _opened(lock: Path) -> IO[str]:
    with named(lock):
        make_folder(lock.parent)
        return open_lock(lock)

"""Files of a run: for their owner only, written whole or not at all, and durable; and a run's lock.

A lock on a file belongs to the process that executes a run or serves a store, and ends with that
process. Two processes that continued one run would each charge the clients for the same attempts.
So every command that runs or resumes holds this lock, while reading commands take no lock. A data
holder's process holds a lock on its storage folder in the same way.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from platform.errors import RunBusy, Unwritable
from storage.files import make_folder, sync_folder

__all__ = [
    "erase",
    "make_folder",
    "named",
    "open_lock",
    "private",
    "sync_folder",
    "write_bytes",
    "write_text",
    "written",
]


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under another name first, so that a reader never sees half of it.

    After a power cut, or `Unwritable`, there is the old file or the new one. Missing folders are
    made for their owner only, as the file is.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with named(path):
        make_folder(path.parent)
        try:
            with written(part) as file:
                file.write(data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(path.parent)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in errors of the operating system: `Unwritable` in place of any `OSError`."""
    try:
        yield
    except OSError as error:
        raise Unwritable(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Return a new file for this user only; it is durable after it is closed."""
    with open(path, "xb", opener=private) as file:
        yield file
        # A file that is renamed before it is durable could be empty after a power cut.
        file.flush()
        os.fsync(file.fileno())


def erase(path: Path) -> None:
    """Write zeros over a file and delete it; a missing file is no error.

    The old contents remain in copies of the file, and on file systems that write elsewhere.
    """
    try:
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def open_lock(path: Path) -> IO[str]:
    """Return a file to hold a lock on, made for this user if missing; its folder must exist."""
    # Opened to append, so that the call never empties a file. Closing it releases the lock.
    return open(path, "a", encoding="utf-8", opener=private)


def private(path: str, flags: int) -> int:
    """Open a file for this user only; an `opener` of `open`."""
    return os.open(path, flags, 0o600)


LOCK_NAME: Final = "run.lock"
TRIES: Final = 3
PAUSE: Final = 0.02
"""Seconds between two tries: `is_held` asks for much less."""


class Held(Exception):
    """Another process holds a lock."""


@contextmanager
def only_process_of(folder: Path) -> Iterator[None]:
    """Reserve a run for this process; `RunBusy` if another process executes it."""
    try:
        with held(folder / LOCK_NAME):
            yield
    except Held as error:
        raise RunBusy(
            f"run {folder.name}: is being run by another process; wait until that has ended"
        ) from error


def require_free(folder: Path) -> None:
    """Raise `RunBusy` if a process executes a run now, before the run asks its clients anything.

    A process that continues the run takes the lock later, and fails if another was quicker.
    """
    with only_process_of(folder):
        pass


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold a lock during the block; `Held` if another process holds it."""
    with _opened(lock) as file:
        for _ in range(TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # `is_held` may hold it for a moment, for less time than this pause.
                time.sleep(PAUSE)
        else:
            raise Held(str(lock))
        yield


def is_held(folder: Path) -> bool | None:
    """Return whether a process executes the run now; None if no process ever has.

    The function makes no file and keeps no lock; `held` waits while it looks.
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
    """Wait until no process executes the run; another process may take it directly after."""
    with _opened(folder / LOCK_NAME) as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _opened(lock: Path) -> IO[str]:
    with named(lock):
        make_folder(lock.parent)
        return open_lock(lock)

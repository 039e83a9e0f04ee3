"""Database files: made whole or not at all, for their owner only, and still in place."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseReplaced,
    NotFound,
    StorageError,
    StorageFull,
)

LOG: Final = "-wal"
INDEX: Final = "-shm"
_LOG_HEADER: Final = 32
"""Bytes of a log without frames (SQLite's file format, section 4.1)."""
_BESIDE: Final = ("", LOG, INDEX, "-journal")
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def beside(path: Path, ending: str) -> Path:
    """Return one of the files that SQLite keeps beside a database."""
    return path.with_name(path.name + ending)


def make_folder(folder: Path) -> None:
    """Make a folder and missing folders above it, each for its owner only.

    An existing folder stays as it is: it may belong to others.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        # Another process may make it at the same time.
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_whole(path: Path, build: Callable[[Path], None]) -> None:
    """Build a new database under another name, then give it its own; an existing file stays.

    So an empty or half-made file is never one of ours. Processes that want to create the same file
    wait for each other. The folder is made; `build` fills and closes the empty file at its path.
    """
    if path.exists():
        return
    part = path.with_name(f".{path.name}.new")
    try:
        make_folder(path.parent)
        with alone_in(path.parent):
            if path.exists():
                return
            # A process that was killed in here may have left a file.
            remove_database(part)
            try:
                os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                build(part)
                if not is_quiet(part):
                    # Closing moves the log into the file, and does not report a failure. A file
                    # that is renamed without its log would be damaged for good.
                    raise StorageFull(f"database {path} cannot be created: the disk is full")
                with part.open("rb") as file:
                    os.fsync(file.fileno())
                part.rename(path)
                sync_folder(path.parent)
            finally:
                remove_database(part)
    except OSError as error:
        kind = StorageFull if error.errno in _UNWRITABLE else StorageError
        raise kind(f"database {path} cannot be created: {error.strerror}") from error


def require_contents(path: Path) -> None:
    """Require a file (`NotFound`) with contents: SQLite takes an empty one for a new database."""
    if not path.is_file():
        raise NotFound(f"there is no database at {path}")
    if path.stat().st_size == 0:
        raise DatabaseDamaged(f"database {path} is damaged: the file is empty")


@dataclass(frozen=True)
class OpenFile:
    """The file that a path named when it was opened, by device and inode.

    SQLite continues to write to a deleted or replaced file, and those writes would be lost without
    a notice.
    """

    path: Path
    device: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> OpenFile:
        """Return the file that the path names now; see `require_contents` for the errors."""
        require_contents(path)
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    def require_same(self) -> None:
        """Require that the path still names this file (`DatabaseReplaced`)."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise DatabaseReplaced(
                f"database {self.path} was deleted while it was open; nothing more is written"
            ) from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise DatabaseReplaced(
                f"database {self.path} was replaced by another file while it was open; nothing"
                " more is written"
            )


def is_quiet(path: Path) -> bool:
    """Return whether all of a database is in its own file, and no process writes to it.

    A writer that was killed before its first frame leaves a log that holds only a header. SQLite
    cannot read such a log without writing: it finds no salt in the empty index that it rebuilds in
    memory, takes the header's salt for that of a writer, and tries again until it gives up with
    SQLITE_PROTOCOL. A live writer leaves this state at once, and `read_while_quiet` then tells the
    reader.
    """
    try:
        # One look: the last writer removes the log when it closes the database.
        size = beside(path, LOG).stat().st_size
    except FileNotFoundError:
        return True
    return size == _LOG_HEADER or (size == 0 and not beside(path, INDEX).exists())


@contextmanager
def read_while_quiet(path: Path) -> Iterator[None]:
    """Read a database in the block as if nobody could write to it, and check that afterwards.

    Without the database's log, SQLite cannot warn a reader of a writer. After a `DatabaseBusy` the
    reads mean nothing.
    """
    before = _stamp(path) if is_quiet(path) else None
    changed = DatabaseBusy(f"database {path} was written to while it was read; try again")
    try:
        yield
    except Exception as error:
        if before is not None and _stamp(path) != before:
            raise changed from error
        raise
    if before is not None and _stamp(path) != before:
        raise changed


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns, is_quiet(path)
    except OSError as error:
        return (error.errno,)


def stamp_of(path: Path) -> str:
    """Return a text that changes whenever a database is written to."""
    told = []
    for file in (path, beside(path, LOG)):
        with suppress(OSError):
            found = file.stat()
            told.append((file.name, found.st_ino, found.st_size, found.st_mtime_ns))
    return hashlib.sha256(repr(told).encode()).hexdigest()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock during the block; processes take it to make or replace files there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_database(path: Path) -> None:
    """Remove a database and what SQLite keeps beside it, as far as they exist."""
    for ending in _BESIDE:
        beside(path, ending).unlink(missing_ok=True)

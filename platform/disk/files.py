"""Files of a run: for their owner only, whole or not at all, and on the disk once they are done."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from platform.errors import Unwritable
from storage.files import make_folder, sync_folder

__all__ = [
    "make_folder",
    "named",
    "open_lock",
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

    After a power cut there is the old file or the new one. Folders that are missing are made for
    their owner only, as the file is.

    Raises:
        Unwritable: If it cannot be written; what was there before is there still.
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
    """Name a file in what the system says of it.

    Raises:
        Unwritable: In place of any `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise Unwritable(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Return a new file for this user only, on the disk once it is closed.

    Raises:
        OSError: If it cannot be written.
    """
    with open(path, "xb", opener=_private) as file:
        yield file
        # Renamed before it is on the disk, it could be found empty after a power cut.
        file.flush()
        os.fsync(file.fileno())


def open_lock(path: Path) -> IO[str]:
    """Return a file to hold a lock on, made for this user only if missing; its folder must exist.

    Raises:
        OSError: If it cannot be opened.
    """
    # To append, as nobody's file is ever emptied, and closing it gives the lock back.
    return open(path, "a", encoding="utf-8", opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

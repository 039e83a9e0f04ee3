"""The coordinator's SQLite file: found by its URL, made and checked.

A URL is kept with every run and shows in lists of processes, so a message never repeats a password
in a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from storage import schema
from storage.engine import checkpoint, make_engine, retried
from storage.errors import InvalidRecordError
from storage.files import OpenFile, create_whole, read_while_quiet, require_contents

PREFIX: Final = "sqlite:///"


def shown(url: str) -> str:
    """Return a URL for a message, also an invalid one: without a password."""
    if url.startswith(PREFIX):
        return url
    hidden = re.sub(r"//[^/]*:.*@", "//***@", url)
    return re.sub(r"(?i)(pass[a-z]*)=[^&]*", r"\1=***", hidden)


def file_of(url: str) -> Path:
    """Return the file that a URL names, existing or not; `InvalidRecordError` for another URL."""
    name = url.removeprefix(PREFIX)
    if name in (url, "", ":memory:") or "?" in name:
        raise InvalidRecordError(
            f"storage.url: {shown(url)!r} is not valid; it must be {PREFIX} and a file's path, "
            "such as sqlite:///runs/sotto.db"
        )
    return Path(name)


_PATIENCE = 5.0


class Home:
    """An open file and the engine of its connections."""

    def __init__(self, path: Path, engine: Engine, *, busy_timeout: float, read_only: bool) -> None:
        """Find the file; see `require_contents` for the errors."""
        self.path = path
        self.engine = engine
        self._file = OpenFile.at(path)
        self._patience = busy_timeout
        self._read_only = read_only

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Yield while a transaction may be held; the file must be the one that was opened."""
        self.require_same()
        with read_while_quiet(self.path) if self._read_only else nullcontext():
            yield

    def require_same(self) -> None:
        """Require that the file is in its place: otherwise a commit is lost with it."""
        self._file.require_same()

    def checkpoint(self) -> None:
        """Empty the write-ahead log, which keeps deleted rows; see `engine.checkpoint`."""
        checkpoint(self.engine, patience=self._patience)


def open_home(path: Path, *, busy_timeout: float, read_only: bool) -> Home:
    """Open a file; make or upgrade it where needed; see `open_database` for the errors."""
    if not read_only:
        create_whole(path, _build)
    require_contents(path)
    engine = make_engine(path, busy_timeout=busy_timeout, read_only=read_only)
    try:
        home = Home(path, engine, busy_timeout=busy_timeout, read_only=read_only)
        if read_only:
            with read_while_quiet(path):
                schema.require_newest(engine)
        else:
            schema.upgrade(engine)
            # A killed process may have left pages of its unfinished transaction in the log.
            home.checkpoint()
    except BaseException:
        engine.dispose()
        raise
    return home


def version_at(path: Path) -> str:
    """Return the version of a file's schema; `DatabaseBusy` if it is written to all the time."""
    require_contents(path)

    def read() -> str:
        engine = make_engine(path, busy_timeout=_PATIENCE, read_only=True)
        try:
            with read_while_quiet(path):
                return schema.version_of(engine)
        finally:
            engine.dispose()

    return retried(read, patience=_PATIENCE)


def _build(path: Path) -> None:
    engine = make_engine(path, busy_timeout=_PATIENCE)
    try:
        schema.create(engine)
    finally:
        engine.dispose()

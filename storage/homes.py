"""The SQLite file that the coordinator's database rests on: found by its URL, made and checked.

A URL is kept with every run and is seen in lists of processes, so a message never repeats a
password that somebody wrote into one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from storage import schema
from storage.engine import Statements, checkpoint, make_engine
from storage.errors import InvalidRecordError
from storage.files import OpenFile, create_whole, read_while_quiet, require_contents
from storage.schema import require_sound

PREFIX: Final = "sqlite:///"


def shown(url: str) -> str:
    """Return a URL as it may be said, also one that cannot be parsed: without a password."""
    if url.startswith(PREFIX):
        return url
    hidden = re.sub(r"//[^/]*:.*@", "//***@", url)
    return re.sub(r"(?i)(pass[a-z]*)=[^&]*", r"\1=***", hidden)


def file_of(url: str) -> Path:
    """Return the file that a URL names, there or not.

    Raises:
        InvalidRecordError: It names no SQLite file.
    """
    name = url.removeprefix(PREFIX)
    if name in (url, "", ":memory:") or "?" in name:
        raise InvalidRecordError(
            f"storage.url: {shown(url)!r} is not valid; it must be {PREFIX} and a file's path, "
            "such as sqlite:///runs/sotto.db"
        )
    return Path(name)


_PATIENCE = 5.0


class Home:
    """An open file.

    Attributes:
        path: Where.
        engine: Its connections.
    """

    def __init__(self, path: Path, engine: Engine, *, busy_timeout: float, read_only: bool) -> None:
        """Look for the file.

        Raises:
            NotFound: There is none.
            DatabaseDamaged: It is empty.
        """
        self.path = path
        self.engine = engine
        self._file = OpenFile.at(path)
        self._patience = busy_timeout
        self._read_only = read_only

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return block in which a transaction may be held.

        Raises:
            DatabaseReplaced: The file was deleted or replaced since it was opened.
            DatabaseBusy: It was opened read-only, and was written to meanwhile.
        """
        self.require_same()
        with read_while_quiet(self.path) if self._read_only else nullcontext():
            yield

    def require_same(self) -> None:
        """Require that the file is where it was: else what is committed is gone with it.

        Raises:
            DatabaseReplaced: It was deleted or replaced.
        """
        self._file.require_same()

    def checkpoint(self) -> None:
        """Empty the write-ahead log, in which deleted rows would live on.

        Raises:
            CheckpointError: A reader was in the way for longer than the busy timeout.
        """
        checkpoint(self.engine, patience=self._patience)

    def verify_structure(self, statements: Statements) -> None:
        """Check all pages, all indices, and the schema with its triggers.

        Raises:
            DatabaseDamaged: Naming what is wrong first.
        """
        require_sound(statements, schema.newest_schema())


def open_home(path: Path, *, busy_timeout: float, read_only: bool) -> Home:
    """Open a file, making or upgrading what is there.

    Raises:
        NotFound: It is to be read only, and there is none.
        SchemaMismatch: It is something else, or of an unknown version.
        StorageError: It cannot be opened.
    """
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
    """Return the version of the schema that is there.

    Raises:
        NotFound: There is no such file.
        SchemaMismatch: It is something else, or of an unknown version.
    """
    require_contents(path)
    engine = make_engine(path, busy_timeout=_PATIENCE, read_only=True)
    try:
        with read_while_quiet(path):
            return schema.version_of(engine)
    finally:
        engine.dispose()


def _build(path: Path) -> None:
    engine = make_engine(path, busy_timeout=_PATIENCE)
    try:
        schema.create(engine)
    finally:
        engine.dispose()

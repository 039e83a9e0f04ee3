"""Copies of databases that other processes may be writing to, all of one moment.

SQLite's own online backup reads one snapshot, even during commits, and includes the write-ahead
log. A plain copy of the file does neither.

Source: SQLite's documentation of the online backup API, `PRAGMA data_version` and WAL snapshots.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from storage.engine import BEGIN_READ, Statements, open_connection, translate
from storage.errors import DatabaseBusy
from storage.files import OpenFile

_BUSY_TIMEOUT: Final = 5.0
_TRIES: Final = 500
_PAUSE: Final = 0.01

Others = Callable[[], Mapping[str, Path]]
Place = Callable[[str], Path]


def copy_databases(main: Path, target: Path, others: Others, place: Place) -> None:
    """Copy a database, and others that are written together with it.

    No commit to the first database came between its snapshot and the last of the others'. So
    together the copies equal the files that a process killed at that moment would leave behind.
    `DatabaseBusy` means that it is written to all the time.

    The main database exists, and its target does not. `others` is called for each try and returns
    the other files that exist at that moment, by name; `place` gives the path of the copy of each.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(_of_one_moment(main, others))
        for name, (path, source) in opened.items():
            _copy(path, source, target if not name else place(name))


@contextmanager
def _of_one_moment(
    main: Path, others: Others
) -> Iterator[dict[str, tuple[Path, sqlite3.Connection]]]:
    """Yield open snapshots by name; the first has no name."""
    with closing(_connect(main)) as watch:
        statements = Statements(lambda: watch, str(main))
        for _ in range(_TRIES):
            with ExitStack() as stack:
                before = statements.run("PRAGMA data_version")
                found = {"": (main, stack.enter_context(_snapshot(main)))}
                for name, path in others().items():
                    found[name] = (path, stack.enter_context(_snapshot(path)))
                if statements.run("PRAGMA data_version") == before:
                    yield found
                    return
            time.sleep(_PAUSE)
    raise DatabaseBusy(f"database {main} is written to all the time; try again later")


@contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(_connect(path)) as connection:
        statements = Statements(lambda: connection, str(path))
        statements.run(BEGIN_READ)
        # The transaction's snapshot is that of its first read.
        statements.run("SELECT count(*) FROM sqlite_master")
        yield connection


def _copy(path: Path, source: sqlite3.Connection, target: Path) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(target, isolation_level=None)) as copy:
            # The copy counts once it is synced as a whole, so there is nothing to undo on the way.
            copy.execute("PRAGMA journal_mode=OFF")
            copy.execute("PRAGMA synchronous=OFF")
            source.backup(copy)
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _connect(path: Path) -> sqlite3.Connection:
    # This refuses a missing file, which SQLite would create.
    OpenFile.at(path)
    return open_connection(path, busy_timeout=_BUSY_TIMEOUT, read_only=False)

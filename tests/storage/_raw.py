"""Connections past our own code, as an attacker or a reader would have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

REFUSED = sqlite3.IntegrityError
"""What is raised where a trigger or a constraint refuses a statement."""


class RawFile:
    """An SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._triggers: list[tuple[str, str]] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.execute(statement, values)

    def unguard(self) -> None:
        """Take all triggers away."""
        asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        self._triggers = self.execute(asked).fetchall()
        for name, _ in self._triggers:
            self.execute(f"DROP TRIGGER {name}")

    def guard(self) -> None:
        """Put them back."""
        for _, made in self._triggers:
            self.execute(made)


@contextmanager
def raw_file(path: Path) -> Iterator[RawFile]:
    """A connection to a file, whose statements are committed one by one."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield RawFile(connection)


def spoil(raw: Callable[[], Any], *statements: str) -> None:
    """Edits past our code and its triggers, which are put back; each must change something."""
    with raw() as connection:
        connection.unguard()
        for statement in statements:
            assert connection.execute(statement).rowcount > 0
        connection.guard()


def on_disk(path: Path) -> bytes:
    """The database's bytes with those of its write-ahead log."""
    files = (path, path.with_name(path.name + "-wal"))
    return b"".join(file.read_bytes() for file in files if file.exists())

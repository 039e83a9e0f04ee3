"""Connections past our own code, as an attacker or a reader would have them, in one dialect."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

try:
    from psycopg import DatabaseError as ServerError
except ImportError:
    ServerError = sqlite3.IntegrityError  # type: ignore[assignment,misc]

# What is raised where a trigger or a constraint refuses a statement.
REFUSED = (sqlite3.IntegrityError, ServerError)


class Raw(Protocol):
    """Statements as SQLite takes them."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any: ...

    def unguard(self) -> None:
        """Take all triggers away."""

    def guard(self) -> None:
        """Put them back."""


class RawFile:
    """An SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._triggers: list[tuple[str, str]] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.execute(statement, values)

    def unguard(self) -> None:
        asked = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        self._triggers = self.execute(asked).fetchall()
        for name, _ in self._triggers:
            self.execute(f"DROP TRIGGER {name}")

    def guard(self) -> None:
        for _, made in self._triggers:
            self.execute(made)


class RawServer:
    """A server's database, by the user who owns its tables."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        text = statement.replace("?", "%s")
        text = text.replace("zeroblob(32)", "decode(repeat('00', 32), 'hex')")
        text = re.sub(r"x'([0-9a-f]*)'", r"decode('\1', 'hex')", text)
        return self._connection.execute(text, values or None)

    def unguard(self) -> None:
        for table in self._guarded():
            self.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")

    def guard(self) -> None:
        for table, name in self.execute(_TRIGGERS).fetchall():
            self.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")

    def _guarded(self) -> set[str]:
        return {table for table, _ in self.execute(_TRIGGERS).fetchall()}


_TRIGGERS = (
    "SELECT relname, tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
    " WHERE NOT tgisinternal"
)


@contextmanager
def unguarded(raw: Raw) -> Iterator[Raw]:
    """Without triggers as long as the block lasts."""
    raw.unguard()
    yield raw
    raw.guard()

"""Connections past our own code, as an attacker or a reader would have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
def unguarded(raw: RawFile) -> Iterator[RawFile]:
    """Without triggers as long as the block lasts."""
    raw.unguard()
    yield raw
    raw.guard()

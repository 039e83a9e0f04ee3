"""Statements of SQL on one open connection; the driver's errors become ours.

What is run here has been written in this package, column by column, so there is nothing for a
query builder to do, which would take longer than SQLite itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from storage.engine import translate


@dataclass(frozen=True)
class Statements:
    """Runs statements.

    Attributes:
        connect: The connection, its transaction begun.
        where: The file, for messages.
    """

    connect: Callable[[], sqlite3.Connection]
    where: str

    @property
    def page_size(self) -> int:
        """Bytes of a page of the file, in whose old pages nothing may be left."""
        ((size,),) = self.run("PRAGMA page_size")
        return int(size)

    def run(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            return self.connect().execute(text, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def count(self, text: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it changed.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            return self.connect().execute(text, values).rowcount
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def run_many(self, text: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each list of values.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            self.connect().executemany(text, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

    def stream(self, text: str, values: Sequence[Any] = ()) -> Generator[tuple[Any, ...]]:
        """Run a statement, and yield its rows one at a time.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            yield from self.connect().execute(text, values)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise translate(error, self.where) from error

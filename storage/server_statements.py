"""Statements of SQL on a connection to a PostgreSQL server, written as for SQLite."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final

from sqlalchemy import Connection

from storage.server import is_drivers, translate
from storage.statements import Statements

_AT_ONCE: Final = 1000
_NUMBERS: Final = count()


class ServerStatements(Statements):
    """Runs statements; what is bound to them stands as ``?``, which no text of ours holds else."""

    @property
    def page_size(self) -> int | None:
        """None: what becomes of a server's old pages is not ours."""
        return None

    def run(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Raises:
            StorageError: What the driver says, in our words.
        """
        cursor = self._executed(text, values)
        found: list[tuple[Any, ...]] = [] if cursor.description is None else cursor.fetchall()
        return found

    def count(self, text: str, values: Sequence[Any] = ()) -> int:
        """Run a statement, and return how many rows it changed.

        Raises:
            StorageError: What the driver says, in our words.
        """
        return int(self._executed(text, values).rowcount)

    def run_many(self, text: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each list of values.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            with self._connection().cursor() as cursor:
                cursor.executemany(_marked(text), values)
        except Exception as error:
            raise self._ours(error) from error

    def stream(self, text: str, values: Sequence[Any] = ()) -> Generator[tuple[Any, ...]]:
        """Run a statement, and yield its rows, of which only some are held at a time.

        Raises:
            StorageError: What the driver says, in our words.
        """
        try:
            with self._connection().cursor(name=f"sotto_{next(_NUMBERS)}") as cursor:
                cursor.itersize = _AT_ONCE
                cursor.execute(_marked(text), values or None)
                yield from cursor
        except Exception as error:
            raise self._ours(error) from error

    def _executed(self, text: str, values: Sequence[Any]) -> Any:
        try:
            return self._connection().execute(_marked(text), values or None)
        except Exception as error:
            raise self._ours(error) from error

    def _connection(self) -> Any:
        return self.connect()

    def _ours(self, error: Exception) -> Exception:
        return translate(error, self.where) if is_drivers(error) else error


def statements_on(connection: Connection, where: str) -> Statements:
    """Return what runs statements within a transaction of SQLAlchemy's."""
    raw: Any = connection.connection.driver_connection
    kind = ServerStatements if connection.dialect.name == "postgresql" else Statements
    return kind(lambda: raw, where)


@lru_cache(maxsize=512)
def _marked(text: str) -> str:
    return text.replace("%", "%%").replace("?", "%s")

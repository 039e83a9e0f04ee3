"""What is known of a sealed table beforehand: its statements, and how its rows are hashed."""

from __future__ import annotations

import hashlib
from collections import namedtuple
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Final, cast

from sqlalchemy import Boolean, LargeBinary

from storage.tables import Sealed

# Changing what is hashed, or how, needs a new marker.
ROW_PREFIX: Final = "sotto-row-v2"

_PAGE: Final = 1000


def row_digest(table: str, values: Mapping[str, object]) -> bytes:
    """Return SHA-256 of a marker, the table's name, and all names and values by name.

    Names and values are hashed as a tuple of Python is written in ASCII, on a line each. In place
    of bytes stands a list of their number, and they follow after the lines in their order. So what
    was hashed can be read back in one way only: no two different rows have the same encoding.

    Args:
        table: The table's name.
        values: By column; text, bytes, integers, floats, truth values or None.

    Raises:
        TypeError: A value is of no such type.
    """
    names = tuple(sorted(values))
    return _hash(_heading(table, names), tuple([values[name] for name in names]))


@dataclass(frozen=True)
class Shape:
    """What is known of a table beforehand.

    Attributes:
        name: The table's.
        columns: All columns, the digest last.
        keys: Those that tell one row from another, in the order of its index.
        truths: Places of columns that hold truth values, which SQLite keeps as 0 and 1.
        ordered: Picks the values that are hashed, by name of column.
        heading: What is hashed of the names.
        made: Makes a row of a list of values.
        insertion: The end of the statement that adds a row.
        replacement: The start of the statement that changes all columns of a row.
        selection: The statement that reads all rows.
        first_page: The statement that reads the first rows by key.
        page: The statement that reads the next rows by key, given the last one's.
        blobs: Places of columns that hold bytes.
    """

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    truths: tuple[int, ...]
    ordered: Callable[[Sequence[Any]], tuple[Any, ...]]
    heading: bytes
    made: Any
    insertion: str
    replacement: str
    selection: str
    first_page: str
    page: str
    blobs: tuple[int, ...]

    @property
    def key_length(self) -> int:
        """Columns of the key."""
        return len(self.keys)

    def condition(self, length: int) -> str:
        """Return the condition on so many of the first columns of the key."""
        return equalities(self.keys[:length])

    def key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key of a row, whose first columns it is."""
        return tuple(row[: len(self.keys)])

    def row(self, values: tuple[Any, ...]) -> Any:
        """Return a row as it was stored."""
        if self.truths:
            known = list(values)
            for place in self.truths:
                # Anything else than 0 or 1 stays what it is, which is then no row of ours.
                if type(known[place]) is int and known[place] in (0, 1):
                    known[place] = bool(known[place])
            return self.made(*known)
        return self.made(*values)

    def digest(self, values: Sequence[Any]) -> bytes:
        """Return the digest of a row's other columns."""
        return _hash(self.heading, self.ordered(values))

    def sealed(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row's values with its digest."""
        values = [row[name] for name in self.columns[:-1]]
        return (*values, self.digest(values))

    def resealed(self, row: Any) -> Any:
        """Return a row with the digest that it must have."""
        return row._replace(digest=self.digest(row[:-1]))


def shape_of(table: type[Sealed]) -> Shape:
    """Return what is known of a table beforehand."""
    return _shape_of(cast("Hashable", table))


@cache
def _shape_of(key: Hashable) -> Shape:
    table = cast("type[Sealed]", key)
    found = [column for column in table.__table__.columns if column.name != "digest"]
    names = tuple(column.name for column in found)
    by_name = tuple(sorted(range(len(names)), key=names.__getitem__))
    keys = tuple(column.name for column in table.__table__.primary_key)
    columns, marks = ", ".join((*names, "digest")), ", ".join("?" * (len(names) + 1))
    selection, order = f"SELECT {columns} FROM {table.__tablename__}", ", ".join(keys)  # noqa: S608
    following, end = (
        f" WHERE ({order}) > ({', '.join('?' * len(keys))})",
        f" ORDER BY {order} LIMIT {_PAGE}",
    )
    return Shape(
        table.__tablename__,
        (*names, "digest"),
        keys,
        tuple(i for i, column in enumerate(found) if isinstance(column.type, Boolean)),
        _picker(by_name),
        _heading(table.__tablename__, tuple(names[i] for i in by_name)),
        namedtuple(table.__name__, (*names, "digest")),
        f" INTO {table.__tablename__} ({columns}) VALUES ({marks})",
        f"UPDATE {table.__tablename__} SET ({columns}) = ({marks})",  # noqa: S608
        selection,
        selection + end,
        selection + following + end,
        tuple(i for i, column in enumerate(found) if isinstance(column.type, LargeBinary)),
    )


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


def _heading(table: str, names: tuple[str, ...]) -> bytes:
    return f"{(ROW_PREFIX, table, names)!a}\n".encode("ascii")


def _hash(heading: bytes, values: tuple[object, ...]) -> bytes:
    kinds = set(map(type, values))
    if not kinds <= _KINDS:
        values = tuple([_plain(value) for value in values])
        kinds = set(map(type, values))
    blobs: list[bytes] = []
    if float in kinds:
        # SQLite keeps no sign of zero.
        values = tuple([v + 0.0 if type(v) is float else v for v in values])
    if bytes in kinds:
        blobs = [value for value in values if type(value) is bytes]
        values = tuple([[len(v)] if type(v) is bytes else v for v in values])
    # Not `repr`, as which letters it escapes changes with Python's tables of them.
    lines = heading + ascii(values).encode("ascii") + b"\n"
    return hashlib.sha256(b"".join((lines, *blobs))).digest()


def _plain(value: object) -> object:
    """Return a value of a type that is derived from a column's, as it is stored."""
    if type(value) in _KINDS:
        return value
    for kind in _KINDS - {bool, type(None)}:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is no type of a column")


_KINDS: Final[frozenset[type[Any]]] = frozenset({type(None), bool, int, float, str, bytes})


@lru_cache(maxsize=256)
def equalities(names: tuple[str, ...]) -> str:
    """Return the condition that columns have given values."""
    return f" WHERE {' AND '.join(f'{name} = ?' for name in names)}" if names else ""

"""Rows of tables that carry a digest, which is checked whenever a row is read.

A `Shape` holds a table's statements and how its rows are hashed. Statements are written from the
tables' own names; other values are bound to them.

The digest covers all other columns of the row, including key and status, so a reader notices a
flipped bit before using the row. It defends against accidents and careless edits, not against an
attacker who edits a row and computes its digest anew. Records elsewhere must agree with the rows,
and show that no row was added, removed or rewritten.
"""

from __future__ import annotations

import hashlib
from collections import namedtuple
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Final, cast

from sqlalchemy import Boolean, LargeBinary

from storage.engine import Statements
from storage.errors import DatabaseDamaged
from storage.tables import Sealed

# A change of contents or encoding of the hash needs a new marker.
ROW_PREFIX: Final = "sotto-row-v2"

_PAGE: Final = 1000


def row_digest(table: str, values: Mapping[str, object]) -> bytes:
    """Return SHA-256 of a marker, the table's name, and all names and values by name.

    The hashed text has two lines, the names and the values, each a Python tuple written in ASCII. A
    list of their number stands for bytes, and the bytes follow after the lines in their order. So
    the text can be read in one way only: two different rows never have the same encoding. Values
    are text, bytes, integers, floats, truth values or None; another type is a `TypeError`.
    """
    names = tuple(sorted(values))
    return _hash(_heading(table, names), tuple([values[name] for name in names]))


@dataclass(frozen=True)
class Shape:
    """A table's columns, statements, and how its rows are made and hashed.

    Attributes:
        name: The table's.
        columns: All columns, the digest last.
        keys: Columns that tell one row from another, in the order of its index.
        truths: Places of columns that hold truth values, which SQLite keeps as 0 and 1.
        ordered: Picks the values that are hashed, by name of column.
        heading: The hashed line of names.
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

    def condition(self, length: int) -> str:
        """Return the condition on the first columns of the key."""
        return equalities(self.keys[:length])

    def key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key of a row, whose first columns it is."""
        return tuple(row[: len(self.keys)])

    def row(self, values: tuple[Any, ...]) -> Any:
        """Return a row as it was stored."""
        if self.truths:
            known = list(values)
            for place in self.truths:
                # A value other than 0 or 1 stays as it is: Sotto did not write that row.
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


def shape_of(table: type[Sealed]) -> Shape:
    """Return the shape of a table."""
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
    # Not `repr`, as Python's tables decide which letters `repr` escapes, and they change.
    lines = heading + ascii(values).encode("ascii") + b"\n"
    return hashlib.sha256(b"".join((lines, *blobs))).digest()


def _plain(value: object) -> object:
    """Return a value of a type derived from a column's type, as it is stored."""
    if type(value) in _KINDS:
        return value
    for kind in _KINDS - {bool, type(None)}:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not the type of a column")


_KINDS: Final[frozenset[type[Any]]] = frozenset({type(None), bool, int, float, str, bytes})


@lru_cache(maxsize=256)
def equalities(names: tuple[str, ...]) -> str:
    """Return the condition that columns have given values."""
    return f" WHERE {' AND '.join(f'{name} = ?' for name in names)}" if names else ""


Where = Mapping[str, object]
"""A column's value by its name, or a tuple or list of possible values."""

# Readable words for columns of a key; keys of bytes are secret, or mean nothing to people.
_WORDS: Final = {
    "run_id": "run",
    "round_number": "round",
    "attempt": "attempt",
    "pseudonym": "client",
    "channel": "channel",
    "stage": "stage",
    "slot": "slot",
    "generation": "generation",
    "client": "store",
}


class Rows:
    """The rows of sealed tables within one transaction."""

    def __init__(self, statements: Statements) -> None:
        """Run on this connection."""
        self.statements = statements

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows with their digests; each holds a value for every other column."""
        if rows:
            shape = shape_of(table)
            self.statements.run_many(f"INSERT{shape.insertion}", [shape.sealed(r) for r in rows])

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row, in place of a row with the same key if there is one."""
        shape = shape_of(table)
        self.statements.run_many(f"INSERT OR REPLACE{shape.insertion}", [shape.sealed(row)])

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Replace the row of the same key if its digest is unchanged; return whether it was."""
        shape = shape_of(table)
        condition, values = _condition({name: row[name] for name in shape.keys})
        known = shape.sealed(before)[-1]
        text = f"{shape.replacement}{condition} AND digest = ?"
        return self.statements.count(text, (*shape.sealed(row), *values, known)) == 1

    def read(
        self,
        table: type[Sealed],
        where: Where,
        *,
        order: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Any]:
        """Return the rows that meet all conditions, each checked against its digest.

        `order` are columns to sort by, from the largest down with `newest_first`.

        Raises:
            DatabaseDamaged: Names the file, the table and the row.
        """
        shape = shape_of(table)
        condition, values = _condition(where)
        text = shape.selection + condition + _ordered(order, newest_first=newest_first)
        if limit is not None:
            text += f" LIMIT {limit}"
        return [self._checked(shape, row) for row in self.statements.run(text, values)]

    def selected(self, table: type[Sealed], text: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of a table that a statement chooses, each checked against its digest.

        `text` is the statement from its `FROM` on, with bound `values`.
        """
        shape = shape_of(table)
        columns = ", ".join(f"{shape.name}.{name}" for name in shape.columns)
        found = self.statements.run(f"SELECT {columns} {text}", values)
        return [self._checked(shape, row) for row in found]

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of one column, sorted, without a check of digests."""
        condition, values = _condition(where)
        text = f"SELECT DISTINCT {name} FROM {shape_of(table).name}{condition}"  # noqa: S608
        text += _ordered([name], newest_first=newest_first)
        return tuple(value for (value,) in self.statements.run(text, values))

    def update(self, table: type[Sealed], where: Where, **changes: object) -> int:
        """Change columns outside the key in rows that meet all conditions, if all fit; count."""
        rows = self.read(table, where)
        self.reseal(table, rows, **changes)
        return len(rows)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns outside the key in rows that `read` returned, and seal them anew."""
        shape = shape_of(table)
        changed = [row._replace(**changes) for row in rows]
        condition, _ = _condition(dict.fromkeys(shape.keys))
        settings = ", ".join(f"{name} = ?" for name in (*changes, "digest"))
        self.statements.run_many(
            f"UPDATE {shape.name} SET {settings}{condition}",  # noqa: S608
            [
                (*changes.values(), shape.digest(row[:-1]), *(getattr(row, k) for k in shape.keys))
                for row in changed
            ],
        )

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete the rows that meet all conditions."""
        condition, values = _condition(where)
        self.statements.run(f"DELETE FROM {shape_of(table).name}{condition}", values)  # noqa: S608

    def verify(self, tables: Sequence[type[Sealed]]) -> None:
        """Read every row of some tables, and check it against its digest."""
        for table in tables:
            last: tuple[Any, ...] | None = ()
            while last is not None:
                last = self.verify_page(table, last)

    def verify_page(
        self, table: type[Sealed], after: tuple[Any, ...] = ()
    ) -> tuple[Any, ...] | None:
        """Read the next rows of a table in the order of its key, and check their digests.

        `after` is the key of the last row that was read, empty to begin. The result is the key of
        the last row of this page, None after the last page.
        """
        shape, row = shape_of(table), None
        text = shape.page if after else shape.first_page
        with closing(self.statements.stream(text, after)) as found:
            for values in found:
                row = self._checked(shape, values)
        return None if row is None else tuple(getattr(row, name) for name in shape.keys)

    def _checked(self, shape: Shape, values: tuple[Any, ...]) -> Any:
        row = shape.row(values)
        if shape.digest(row[:-1]) != row.digest:
            known = row._asdict()
            parts = [f"{word} {known[name]!r}" for name, word in _WORDS.items() if name in known]
            raise DatabaseDamaged(
                f"database {self.statements.where} is damaged: the row of table {shape.name} of "
                f"{', '.join(parts)} does not fit its digest"
            )
        return row


def _condition(where: Where) -> tuple[str, list[Any]]:
    values = list(where.values())
    if _SEVERAL.isdisjoint(map(type, values)):
        return equalities(tuple(where)), values
    texts: list[str] = []
    flat: list[Any] = []
    for name, value in where.items():
        is_several = type(value) in _SEVERAL
        several = list(cast("Collection[Any]", value)) if is_several else [value]
        # Nothing equals NULL; an empty list is not valid SQL everywhere.
        texts.append(f"{name} IN ({', '.join('?' * len(several)) or 'NULL'})")
        flat += several
    return f" WHERE {' AND '.join(texts)}", flat


_SEVERAL: Final = frozenset({tuple, list})


def _ordered(names: Sequence[str], *, newest_first: bool) -> str:
    way = " DESC" if newest_first else ""
    return f" ORDER BY {', '.join(name + way for name in names)}" if names else ""


class Repository:
    """Rows of all runs, within one transaction."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

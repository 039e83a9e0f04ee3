"""A digest in every row that matters, checked whenever the row is read.

It covers all other columns of the row, its key and its status included, so a bit that flips on a
disk or in a cable is noticed before anybody computes with it. It defends against accidents and
careless edits, not against somebody who edits a row and computes its digest anew: that no row was
added, removed or rewritten is shown by what must agree with it elsewhere.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, UnaryExpression, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from storage.engine import file_of
from storage.errors import DatabaseDamaged
from storage.tables import Sealed

# Changing what is hashed, or how, needs a new marker.
ROW_PREFIX: Final = b"sotto-row-v1\n"


Condition = ColumnElement[bool]
Order = InstrumentedAttribute[Any] | UnaryExpression[Any]

# What people call a column of a key; keys of bytes are secret, or mean nothing to anybody.
_WORDS: Final = {
    "run_id": "run",
    "round_number": "round",
    "attempt": "attempt",
    "pseudonym": "client",
    "channel": "channel",
    "stage": "stage",
    "slot": "slot",
    "generation": "generation",
}


def row_digest(table: str, values: Mapping[str, object]) -> bytes:
    """Return SHA-256 of a marker, the table's name.

    And all names and values in the order of the names.

    Each item is written as a letter for its type, its length in 8 bytes and its bytes, so what was
    hashed can be read back in one way only: no two different rows have the same encoding.

    Args:
        table: The table's name.
        values: By column; text, bytes, integers, floats, truth values or None.

    Raises:
        TypeError: A value is of no such type.
    """
    hasher = hashlib.sha256(ROW_PREFIX)
    for item in (table, *(item for pair in sorted(values.items()) for item in pair)):
        kind, data = _encoded(item)
        hasher.update(kind + len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def insert_sealed(session: Session, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
    """Add rows with their digests; each holds a value for every other column."""
    if rows:
        session.execute(insert(table), [_sealed(table, row) for row in rows])


def read_sealed(
    session: Session,
    table: type[Sealed],
    *where: Condition,
    order: Sequence[Order] = (),
    limit: int | None = None,
) -> list[Row[Any]]:
    """Return all columns of the rows that meet all conditions, each row checked against its digest.

    Raises:
        DatabaseDamaged: Naming the file, the table and the row.
    """
    query = select(*table.__table__.columns).where(*where).order_by(*order).limit(limit)
    return list(_checked(session, table, query))


def update_sealed(
    session: Session, table: type[Sealed], *where: Condition, **changes: object
) -> int:
    """Change columns that are no key, in all rows that meet all conditions, and seals them anew.

    Returns:
        How many rows were changed.

    Raises:
        DatabaseDamaged: A row did not fit its digest before; then none is changed.
    """
    rows = [row._asdict() | changes for row in read_sealed(session, table, *where)]
    keys = [column.name for column in table.__table__.primary_key]
    changed = [
        {name: row[name] for name in (*keys, *changes)} | {"digest": _digest(table, row)}
        for row in rows
    ]
    if changed:
        session.execute(update(table), changed)
    return len(changed)


def verify_rows(session: Session, tables: Sequence[type[Sealed]]) -> None:
    """Read every row of some tables, one at a time, and checks it against its digest.

    Raises:
        DatabaseDamaged: Naming the first row that does not fit.
    """
    for table in tables:
        query = select(*table.__table__.columns).execution_options(yield_per=1)
        for _ in _checked(session, table, query):
            pass


def _checked(session: Session, table: type[Sealed], query: Select[Any]) -> Iterator[Row[Any]]:
    try:
        for row in session.execute(query):
            if _digest(table, row._asdict()) != row.digest:
                raise _damaged(session, table, row)
            yield row
    # A value of another type than its column's, which SQLite allows, may break the conversion.
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise DatabaseDamaged(
            f"database {file_of(session)} is damaged: a row of table {table.__tablename__} cannot"
            " be read"
        ) from error


def _sealed(table: type[Sealed], row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "digest": _digest(table, row)}


def _digest(table: type[Sealed], row: Mapping[str, Any]) -> bytes:
    values = {name: value for name, value in row.items() if name != "digest"}
    return row_digest(table.__tablename__, values)


def _encoded(item: object) -> tuple[bytes, bytes]:
    match item:
        case None:
            return b"n", b""
        case bool():
            return b"t", b"1" if item else b"0"
        case int():
            return b"i", b"%d" % item
        case float():
            # SQLite keeps no sign of zero.
            return b"f", struct.pack(">d", item + 0.0)
        case str():
            return b"s", item.encode()
        case bytes():
            return b"b", item
        case _:
            raise TypeError(f"{type(item).__name__} is no type of a column")


def _damaged(session: Session, table: type[Sealed], row: Row[Any]) -> DatabaseDamaged:
    known = row._asdict()
    parts = [f"{word} {known[name]!r}" for name, word in _WORDS.items() if name in known]
    return DatabaseDamaged(
        f"database {file_of(session)} is damaged: the row of table {table.__tablename__} of"
        f" {', '.join(parts)} does not fit its digest"
    )

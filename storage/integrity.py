"""Whether a file is what was written: its pages, its indices, its schema with every trigger.

SQLite answers from an index where it can, and does not notice by itself that an index says
something else than its table, or that a trigger is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from storage.errors import DatabaseDamaged
from storage.statements import Statements


class Item(NamedTuple):
    """A table, index or trigger: what it is, its name, its table, and the SQL that makes it."""

    kind: str
    name: str
    table: str
    sql: str | None


Schema = frozenset[Item]


def read_schema(statements: Statements) -> Schema:
    """Return all tables, indices, triggers and views of a database, but SQLite's statistics."""
    rows = statements.run(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
    )
    return frozenset(Item(kind, name, table, _plain(sql)) for kind, name, table, sql in rows)


def require_sound(statements: Statements, expected: Schema) -> None:
    """Require pages and indices that fit together, and the expected schema.

    All pages are read, so it takes as long as reading the file.

    Raises:
        DatabaseDamaged: Naming the file and what is wrong first.
    """
    require_schema(statements.where, read_schema(statements), expected)
    for reason in _reasons(statements):
        raise DatabaseDamaged(f"database {statements.where} is damaged: {reason}")


def require_schema(where: str, found: Schema, expected: Schema) -> None:
    """Require the expected schema.

    Raises:
        DatabaseDamaged: Naming the database and what is wrong first.
    """
    for reason in _differences(found, expected):
        raise DatabaseDamaged(f"database {where} is damaged: {reason}")


def _differences(found: Schema, expected: Schema) -> Iterable[str]:
    for item in sorted(expected - found):
        same = any(other[:3] == item[:3] for other in found)
        yield f"its {item.kind} {item.name} {'was changed' if same else 'is missing'}"
    for item in sorted(found - expected):
        yield f"it has a {item.kind} {item.name!r}, which does not belong there"


def _reasons(statements: Statements) -> Iterable[str]:
    ((problem,),) = statements.run("PRAGMA integrity_check(1)")
    if problem != "ok":
        yield f"SQLite's integrity check says {' '.join(problem.split())!r}"
    for orphan in statements.run("PRAGMA foreign_key_check")[:1]:
        yield f"a row of table {orphan[0]} belongs to no row of table {orphan[2]}"


def _plain(sql: str | None) -> str | None:
    # A flipped bit may have made bytes of the text, which are then no statement of ours.
    return None if sql is None else " ".join(str(sql).split())

"""What a server's database must consist of, and whether it does.

A server's catalogue is read column by column, because how it would write a table or an index down
again is another matter from version to version.

Source: PostgreSQL's documentation of its system catalogues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import CheckConstraint, Column, ForeignKeyConstraint, Table
from sqlalchemy.dialects import postgresql

from storage.integrity import Item, Schema
from storage.server_guards import FUNCTIONS, GUARDS
from storage.statements import Statements
from storage.tables import Base

_VERSIONS: Final = "alembic_version"
_RELATIONS: Final = (
    "SELECT relname, relkind::text, relpersistence::text, relrowsecurity, relhasrules,"
    " relispartition FROM pg_class WHERE relnamespace = 'public'::regnamespace"
)
_COLUMNS: Final = (
    "SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef,"
    " coalesce((SELECT collname FROM pg_collation WHERE pg_collation.oid = attcollation), '')"
    " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
    " WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0"
    " AND NOT attisdropped ORDER BY relname, attnum"
)
_NAMES: Final = (
    "array(SELECT attname::text FROM unnest({key}) WITH ORDINALITY AS k (number, place)"
    " JOIN pg_attribute ON attrelid = {table} AND attnum = number ORDER BY place)"
)
_CONSTRAINTS: Final = (
    "SELECT conname, relname, contype::text, convalidated,"  # noqa: S608
    f" {_NAMES.format(key='conkey', table='conrelid')},"
    " coalesce((SELECT o.relname FROM pg_class AS o WHERE o.oid = confrelid), ''),"
    f" {_NAMES.format(key='confkey', table='confrelid')},"
    " condeferrable, confdeltype::text, pg_get_constraintdef(pg_constraint.oid)"
    " FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid"
    " WHERE connamespace = 'public'::regnamespace AND contype <> 'n'"
)
_INDICES: Final = (
    "SELECT found.relname, whose.relname, indisunique, indisvalid AND indisready,"  # noqa: S608
    " indpred IS NULL AND indexprs IS NULL, amname,"
    f" {_NAMES.format(key='indkey::int2[]', table='indrelid')}"
    " FROM pg_index JOIN pg_class AS found ON found.oid = indexrelid"
    " JOIN pg_class AS whose ON whose.oid = indrelid JOIN pg_am ON pg_am.oid = found.relam"
    " WHERE whose.relnamespace = 'public'::regnamespace"
)
_TRIGGERS: Final = (
    "SELECT tgname, relname, tgtype::int, tgenabled::text, tgqual IS NULL, proname,"  # noqa: S608
    f" {_NAMES.format(key='tgattr::int2[]', table='tgrelid')}, encode(tgargs, 'hex')"
    " FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
    " JOIN pg_proc ON pg_proc.oid = tgfoid"
    " WHERE NOT tgisinternal AND relnamespace = 'public'::regnamespace"
)
_FUNCTIONS: Final = (
    "SELECT proname, prosrc, lanname, prosecdef, proconfig IS NULL FROM pg_proc"
    " JOIN pg_language ON pg_language.oid = prolang WHERE pronamespace = 'public'::regnamespace"
)
_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
_TABLE: Final = ("p", False, False, False)
_CHECKS: Final = re.compile(r"'([^']*)'")


def read_server_schema(statements: Statements) -> Schema:
    """Return all tables, columns, constraints, indices, triggers and functions of a database."""
    return frozenset(_found(statements))


def _found(ask: Statements) -> Iterator[Item]:
    kinds = {"r": "table", "i": "index", "v": "view", "m": "view", "S": "sequence"}
    for name, kind, *facts in ask.run(_RELATIONS):
        if kind != "i":
            yield Item(kinds.get(kind, f"relation {kind}"), name, name, _text(*facts))
    for table, name, *facts in ask.run(_COLUMNS):
        yield Item("column", name, table, _text(*facts))
    for name, table, kind, *facts, said in ask.run(_CONSTRAINTS):
        # A check is called by its column, and known by its words, which are written down in several
        # ways.
        called = f"check of {facts[1][0]}" if kind == "c" and facts[1] else name
        yield Item("constraint", called, table, _text(kind, *facts, *_words(kind, said)))
    for name, table, *facts in ask.run(_INDICES):
        yield Item("index", name, table, _text(*facts))
    for name, table, *facts in ask.run(_TRIGGERS):
        yield Item("trigger", name, table, _text(*facts))
    for name, *facts in ask.run(_FUNCTIONS):
        yield Item("function", name, "", _text(*facts))


def _words(kind: str, said: str) -> list[str]:
    return _CHECKS.findall(said) if kind == "c" else []


@lru_cache(maxsize=1)
def newest_server_schema() -> Schema:
    """Return what the migrations make on a server, as the declared tables say."""
    return frozenset(_expected())


def _expected() -> Iterator[Item]:
    yield Item("table", _VERSIONS, _VERSIONS, _text(*_TABLE))
    number = _text("character varying(32)", True, False, "default")
    yield Item("column", "version_num", _VERSIONS, number)
    yield from _key(f"{_VERSIONS}_pkc", _VERSIONS, ["version_num"])
    for table in Base.metadata.tables.values():
        yield Item("table", table.name, table.name, _text(*_TABLE))
        for column in table.columns:
            yield _of_column(table, column)
        keys = [column.name for column in table.primary_key]
        yield from _key(f"pk_{table.name}", table.name, keys)
        yield from _constraints(table)
        for index in table.indexes:
            names = [cast("Column[Any]", column).name for column in index.expressions]
            yield _index(str(index.name), table.name, names, is_unique=False)
    for guard in GUARDS:
        argument = f"{guard.message}\0".encode().hex()
        facts = (guard.kind, "A", True, guard.function, list(guard.columns))
        yield Item("trigger", guard.name, guard.table, _text(*facts, argument))
    for name, body in FUNCTIONS.items():
        yield Item("function", name, "", _text(body, "plpgsql", False, True))


def _of_column(table: Table, column: Column[Any]) -> Item:
    said = str(column.type.compile(_DIALECT))
    text = said.partition(" COLLATE ")[0].lower()
    collation = "C" if text == "text" else ""
    facts = _text(text, not column.nullable, False, collation)
    return Item("column", column.name, table.name, facts)


def _key(name: str, table: str, columns: list[str]) -> Iterator[Item]:
    yield Item("constraint", name, table, _text("p", True, columns, "", [], False, " "))
    yield _index(name, table, columns, is_unique=True)


def _index(name: str, table: str, columns: list[str], *, is_unique: bool) -> Item:
    return Item("index", name, table, _text(is_unique, True, True, "btree", columns))


def _constraints(table: Table) -> Iterator[Item]:
    for found in table.constraints:
        if isinstance(found, ForeignKeyConstraint):
            names = [column.name for column in found.columns]
            other = [element.column.name for element in found.elements]
            facts = _text("f", True, names, found.referred_table.name, other, False, "a")
            yield Item("constraint", f"fk_{table.name}_{names[0]}", table.name, facts)
        elif isinstance(found, CheckConstraint):
            said = str(found.sqltext)
            column = said.split(" ")[0]
            facts = _text("c", True, [column], "", [], False, " ", *_words("c", said))
            yield Item("constraint", f"check of {column}", table.name, facts)


def _text(*facts: object) -> str:
    return " ".join(map(str, facts))

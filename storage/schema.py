"""The schema of a file: its version, its soundness, and its migration to the newest.

The two schemas count their versions separately; 0.1.0 is the first of each. A file states its
version. Opening a file refuses a newer version by name, and also a version that never existed. A
process that opens a file for writing migrates an older version.

`require_sound` checks a file's pages, indices, and schema with every trigger. SQLite answers from
an index where it can, and does not notice an index that differs from its table, or a missing
trigger.

`upgrade` brings a coordinator's database to the newest schema, or refuses it. Alembic is driven by
its API: no `alembic.ini` and no `env.py` are needed at run time.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self, cast

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, StaticPool, create_engine, inspect

from storage import migrations
from storage.engine import BEGIN_NOTHING, BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, FILE, Statements
from storage.errors import DatabaseDamaged, ForeignFile, SchemaMismatch, StorageError
from storage.tables import Base

_TEXT = re.compile(r"(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})")
_STEP = 1000


class SchemaVersion(NamedTuple):
    """One version; later ones are larger."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the version that a text names, None for another text."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls(*map(int, found.groups()))

    @classmethod
    def of_number(cls, number: int) -> Self:
        """Return the version of a database's `PRAGMA user_version`."""
        left, patch = divmod(number, _STEP)
        return cls(*divmod(left, _STEP), patch)

    @property
    def number(self) -> int:
        """A database's `PRAGMA user_version`."""
        return (self.major * _STEP + self.minor) * _STEP + self.patch

    def __str__(self) -> str:
        """Return the three numbers with points between them."""
        return f"{self.major}.{self.minor}.{self.patch}"


def require_version(where: object, said: str, known: Collection[str]) -> None:
    """Refuse a schema version that is not `known`; `where` is the file, for the message."""
    if said in known:
        return
    versions = sorted(filter(None, map(SchemaVersion.parse, known)))
    found = SchemaVersion.parse(said)
    if found is not None and found > versions[-1]:
        raise SchemaMismatch(
            f"database {where} has schema {said}: it was made by a newer version; valid: up to"
            f" {versions[-1]}"
        )
    raise SchemaMismatch(
        f"database {where} has schema {said!r}, which is not a known version; valid:"
        f" {', '.join(map(str, versions))}"
    )


def older(where: object, said: str, newest: str) -> SchemaMismatch:
    """Return the error for an old schema where nothing may be written."""
    return SchemaMismatch(
        f"database {where} has schema {said}, which is older than {newest}; migrate it with"
        " `sotto upgrade --storage URL`, a client's own by starting the client"
    )


class Item(NamedTuple):
    """A table, index or trigger: its kind, its name, its table, and the SQL that makes it."""

    kind: str
    name: str
    table: str
    sql: str | None


Schema = frozenset[Item]


def read_schema(statements: Statements) -> Schema:
    """Return all tables, indices, triggers and views of a database, without SQLite's statistics."""
    rows = statements.run(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
    )
    return frozenset(Item(kind, name, table, _plain(sql)) for kind, name, table, sql in rows)


def require_sound(statements: Statements, expected: Schema) -> None:
    """Require sound pages, indices and schema; `DatabaseDamaged` has the first fault."""
    for reason in chain(_differences(read_schema(statements), expected), _reasons(statements)):
        raise DatabaseDamaged(f"database {statements.where} is damaged: {reason}")


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
    # A flipped bit may have turned the text into bytes, which equal no expected statement.
    return None if sql is None else " ".join(str(sql).split())


def create(engine: Engine) -> None:
    """Give an empty file the newest schema."""
    with engine.connect() as connection:
        _migrate(connection, _script())


def upgrade(engine: Engine) -> None:
    """Bring a file to the newest schema; `SchemaMismatch` if it has one that we do not know."""
    script = _script()
    if version_of(engine) == newest_version():
        return
    with engine.connect() as connection:
        # SQLite cannot switch this inside a transaction. While it is on, rebuilding a table that
        # others refer to would fail or cascade.
        connection.execution_options(**{BEGIN_OPTION: BEGIN_NOTHING})
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.commit()
        try:
            _migrate(connection, script)
        finally:
            connection.rollback()
            connection.execution_options(**{BEGIN_OPTION: BEGIN_NOTHING})
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
            connection.commit()


def require_newest(engine: Engine) -> None:
    """Require the newest schema, without a change; `SchemaMismatch` for another one."""
    version = version_of(engine)
    if version != newest_version():
        with engine.connect() as connection:
            raise older(connection.info[FILE], version, newest_version())


def newest_version() -> str:
    """Return the version of the newest schema."""
    return str(_script().get_current_head())


def version_of(engine: Engine) -> str:
    """Return the version of a database's schema; see `upgrade` for the error."""
    with engine.connect().execution_options(**{BEGIN_OPTION: BEGIN_READ}) as connection:
        revision = current_revision(connection, _script())
        if revision is None:
            raise _not_ours(connection)
        return revision


@lru_cache(maxsize=1)
def newest_schema() -> Schema:
    """Return the schema that the migrations make, read from a database in memory."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        create(engine)
        with engine.connect() as connection:
            raw = cast("sqlite3.Connection", connection.connection.driver_connection)
            return read_schema(Statements(lambda: raw, ":memory:"))
    finally:
        engine.dispose()


def _script() -> ScriptDirectory:
    # Not through the configuration, which would interpolate a percent sign in the path.
    return ScriptDirectory(str(Path(migrations.__file__).parent))


def current_revision(connection: Connection, script: ScriptDirectory) -> str | None:
    """Return the revision of an open database, or None for an empty one."""
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        if set(inspect(connection).get_table_names()) - {"alembic_version"}:
            raise _not_ours(connection)
        return None
    # Alembic's own look-up would also take the beginning of a name.
    known = {str(step.revision) for step in script.walk_revisions()}
    # A damaged file may give any text here.
    require_version(connection.info[FILE], ", ".join(map(str, heads)), known)
    return str(heads[0])


def _not_ours(connection: Connection) -> ForeignFile:
    return ForeignFile(
        f"file {connection.info[FILE]} is not a coordinator's database of Sotto; valid: one that "
        "`run` has made"
    )


def _migrate(connection: Connection, script: ScriptDirectory) -> None:
    """Run the missing steps in one transaction, under the write lock."""
    connection.execution_options(**{BEGIN_OPTION: BEGIN_WRITE})
    connection.begin()
    # Read again under the lock: another process may have been faster.
    current_revision(connection, script)
    environment = EnvironmentContext(
        Config(), script, fn=lambda revision, _: script._upgrade_revs("head", revision)
    )
    with environment:
        environment.configure(connection=connection, target_metadata=Base.metadata)
        environment.run_migrations()
    if connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
        raise StorageError("the migration left rows that refer to missing rows; nothing changed")
    connection.commit()

"""Brings a coordinator's database to the newest schema, or refuses it; says what that schema is.

Alembic is driven by its API: no ``alembic.ini`` and no ``env.py`` are needed at run time.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache
from pathlib import Path
from typing import cast

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, StaticPool, create_engine, inspect

from storage import migrations
from storage.engine import BEGIN_NOTHING, BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE, FILE
from storage.errors import ForeignFile, StorageError
from storage.integrity import Schema, read_schema
from storage.statements import Statements
from storage.tables import Base
from storage.versions import older, require_version


def create(engine: Engine) -> None:
    """Give an empty file the newest schema."""
    with engine.connect() as connection:
        _migrate(connection, _script())


def upgrade(engine: Engine) -> None:
    """Bring a file to the newest schema; does nothing if it is there already.

    Raises:
        SchemaMismatch: The file is not a coordinator's database, or its schema is unknown.
    """
    script = _script()
    if is_newest(engine):
        return
    with engine.connect() as connection:
        # Cannot be switched inside a transaction; with it on, rebuilding a table that others
        # refer to would fail or cascade.
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


def is_newest(engine: Engine) -> bool:
    """Return whether the database has the newest schema.

    Raises:
        SchemaMismatch: The file is not a coordinator's database, or its schema is unknown.
    """
    return version_of(engine) == newest_version()


def require_newest(engine: Engine) -> None:
    """Require the newest schema; nothing is changed.

    Raises:
        SchemaMismatch: It has another one.
    """
    version = version_of(engine)
    if version != newest_version():
        with engine.connect() as connection:
            raise older(connection.info[FILE], version, newest_version())


def newest_version() -> str:
    """Return the version of the newest schema."""
    return str(_script().get_current_head())


def version_of(engine: Engine) -> str:
    """Return the version of a database's schema.

    Raises:
        SchemaMismatch: The file is not a coordinator's database, or its schema is unknown.
    """
    with engine.connect().execution_options(**{BEGIN_OPTION: BEGIN_READ}) as connection:
        return _revision(connection, _script())


@lru_cache(maxsize=1)
def newest_schema() -> Schema:
    """Return what the migrations make, read from a database in memory."""
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
    """Return the revision of an open database, or None for an empty one.

    Raises:
        SchemaMismatch: There are tables, but no revision that we know.
    """
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        if set(inspect(connection).get_table_names()) - {"alembic_version"}:
            raise _not_ours(connection)
        return None
    # Looked up by its name, Alembic would also take the beginning of one.
    known = {str(step.revision) for step in script.walk_revisions()}
    # Of a damaged file anything may be read here.
    require_version(connection.info[FILE], ", ".join(map(str, heads)), known)
    return str(heads[0])


def _revision(connection: Connection, script: ScriptDirectory) -> str:
    revision = current_revision(connection, script)
    if revision is None:
        raise _not_ours(connection)
    return revision


def _not_ours(connection: Connection) -> ForeignFile:
    return ForeignFile(
        f"file {connection.info[FILE]} is not a coordinator's database of Sotto; valid: one that "
        "`run` has made"
    )


def _migrate(connection: Connection, script: ScriptDirectory) -> None:
    """Run what is missing in one transaction, under the write lock."""
    connection.execution_options(**{BEGIN_OPTION: BEGIN_WRITE})
    connection.begin()
    _run_steps(connection, script)
    if connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
        raise StorageError("the migration left rows that refer to missing rows; nothing changed")
    connection.commit()


def _run_steps(connection: Connection, script: ScriptDirectory) -> None:
    # Asked again under the lock: another process may have been faster.
    current_revision(connection, script)
    environment = EnvironmentContext(
        Config(), script, fn=lambda revision, _: script._upgrade_revs("head", revision)
    )
    with environment:
        environment.configure(connection=connection, target_metadata=Base.metadata)
        environment.run_migrations()

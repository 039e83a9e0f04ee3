"""Brings a coordinator's database to the newest schema, or refuses it.

Alembic is driven by its API: no ``alembic.ini`` and no ``env.py`` are needed at run time.
"""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect

from storage import migrations
from storage.engine import BEGIN_NOTHING, BEGIN_OPTION, BEGIN_READ, BEGIN_WRITE
from storage.errors import SchemaMismatch, StorageError
from storage.tables import Base


def upgrade(engine: Engine) -> None:
    """Bring the database to the newest schema; does nothing if it is there already.

    Raises:
        SchemaMismatch: The file is not a coordinator's database, or its schema is unknown.
    """
    # Not through the configuration, which would interpolate a percent sign in the path.
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    with engine.connect().execution_options(**{BEGIN_OPTION: BEGIN_READ}) as connection:
        if current_revision(connection, script) == script.get_current_head():
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


def current_revision(connection: Connection, script: ScriptDirectory) -> str | None:
    """The revision of an open database, or None for an empty one.

    Raises:
        SchemaMismatch: There are tables, but no revision that we know.
    """
    where = connection.engine.url.database
    heads = MigrationContext.configure(connection).get_current_heads()
    if not heads:
        if set(inspect(connection).get_table_names()) - {"alembic_version"}:
            raise SchemaMismatch(f"file {where} is not a coordinator's database of Sotto")
        return None
    try:
        known = len(heads) == 1 and script.get_revision(heads[0]) is not None
    except CommandError:
        known = False
    if not known:
        raise SchemaMismatch(
            f"database {where} has schema {', '.join(heads)}, which this version does not know"
            f" (its newest is {script.get_current_head()}); use the version that wrote it"
        )
    return heads[0]


def _migrate(connection: Connection, script: ScriptDirectory) -> None:
    """Run what is missing in one transaction, under the write lock."""
    connection.execution_options(**{BEGIN_OPTION: BEGIN_WRITE})
    connection.begin()
    # Asked again under the lock: another process may have been faster.
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

"""Every version of the schema that was kept is migrated on a server too, with all that is in it."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext

import storage
from storage import schema
from storage.address import address_of
from storage.database import schema_version
from storage.engine import BEGIN_OPTION
from storage.server import BEGIN_SCHEMA, make_server_engine
from storage.tables import Base
from tests._postgres import Server
from tests.storage._filling import read_at
from tests.storage._kept_versions import COORDINATOR, kept, unpack, version_in

TABLES = (
    *("runs", "states", "rounds", "attempts", "stages"),
    *("ledger", "audit", "leaves", "tiles", "pool"),
)
TRUTHS = ("is_open", "cohort_drawn")


def make(url: str, version: str) -> None:
    """An empty database of some version."""
    engine = make_server_engine(address_of(url), busy_timeout=5.0, read_only=False)
    script = schema._script()
    with engine.connect() as connection:
        connection.execution_options(**{BEGIN_OPTION: BEGIN_SCHEMA})
        connection.begin()
        steps = EnvironmentContext(
            Config(), script, fn=lambda revision, _: script._upgrade_revs(version, revision)
        )
        with steps:
            steps.configure(connection=connection, target_metadata=Base.metadata)
            steps.run_migrations()
        connection.commit()
    engine.dispose()


def copied(path: Path, connection: Any) -> int:
    """Puts all rows of a file into the tables of a server, and returns how many there were."""
    total = 0
    with closing(sqlite3.connect(path)) as source:
        source.row_factory = sqlite3.Row
        for table in TABLES:
            known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            if source.execute(known, [table]).fetchone() is None:
                continue
            for row in map(dict, source.execute(f"SELECT * FROM {table}")):  # noqa: S608
                for name in TRUTHS:
                    if row.get(name) is not None:
                        row[name] = bool(row[name])
                marks = ", ".join(["%s"] * len(row))
                connection.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})",  # noqa: S608
                    list(row.values()),
                )
                total += 1
    return total


@pytest.mark.parametrize("file", kept(COORDINATOR), ids=lambda file: file.name)
def test_a_kept_version_is_migrated_with_what_is_in_it(
    file: Path, tmp_path: Path, server: Server
) -> None:
    path, name = tmp_path / "kept.db", server.new_database()
    url = server.url(name, tmp_path)
    unpack(file, path)
    make(url, version_in(file))
    with closing(server.connect(name)) as connection:
        assert copied(path, connection) >= 10
    assert schema_version(url) == version_in(file)
    if version_in(file) != schema.newest_version():
        with pytest.raises(storage.SchemaMismatch, match="migrate it with"):
            storage.open_database(url, read_only=True)
    with storage.open_database(url) as database:
        database.verify_integrity()
        size = database.verify_log().size
    assert schema_version(url) == schema.newest_version()
    with storage.open_database(f"sqlite:///{path}") as same:
        assert same.verify_log().size == size
    assert read_at(url) == read_at(f"sqlite:///{path}")
    server.drop(name)


def test_a_step_that_fails_leaves_the_version_before(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = server.new_database()
    url = server.url(name, tmp_path)
    make(url, "0.1.0")
    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_index", lambda *_a, **_k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            storage.open_database(url)
    assert schema_version(url) == "0.1.0"
    storage.open_database(url).close()
    server.drop(name)


def test_what_the_servers_own_tools_copy_opens_again(
    server: Server, with_runs: str, tmp_path: Path
) -> None:
    """As `backup` says: pg_dump, pg_restore, and the folder."""
    name = server.new_database(with_runs)
    url = server.url(name, tmp_path)
    with storage.open_database(url) as database:
        with database.unit_of_work() as unit:
            for at in range(300):
                unit.audit.append("r", actor="a", action=f"event {at}")
            unit.commit()
        before = database.verify_log()
    known, dump = read_rows(url), server.folder / "dump"
    tool = server.binaries / "pg_dump"
    if not tool.exists():
        pytest.skip("pg_dump is not installed (apt-get install postgresql-client)")
    place = ("-h", str(server.folder), "-U", "sotto")
    server.run([str(tool), *place, "-Fc", "-f", str(dump), name])
    server.drop(name)
    server.ask("postgres", f"CREATE DATABASE {name} OWNER sotto")
    restore = str(server.binaries / "pg_restore")
    try:
        server.run([restore, *place, "--no-owner", "-d", name, str(dump)])
    except subprocess.CalledProcessError as error:
        raise AssertionError("pg_restore failed") from error
    with storage.open_database(url) as database:
        database.verify_integrity()
        assert database.verify_log([before]) == before
    assert read_rows(url) == known
    server.drop(name)


def read_rows(url: str) -> list[Any]:
    with storage.open_database(url) as database, database.unit_of_work(read_only=True) as unit:
        return [unit.runs.list(), unit.audit.query(), unit.log.leaves(0, 1000)]

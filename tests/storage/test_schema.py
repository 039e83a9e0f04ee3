"""The migrations: they end in the declared tables, and unknown schemas are refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

import storage
from storage.tables import Base

ROOT = Path(__file__).resolve().parents[2]
TABLES = (
    *("runs", "states", "rounds", "attempts", "stages"),
    *("ledger", "audit", "leaves", "tiles", "pool"),
)

EVENTS = ("update", "delete")


def shape(connection: sqlite3.Connection) -> dict[str, Any]:
    """What SQLite itself says about each table."""
    ask = lambda what: connection.execute(f"PRAGMA {what}").fetchall()  # noqa: E731
    without_rowid = {row[1]: row[4] for row in ask("table_list")}
    return {
        name: (
            ask(f"table_xinfo({name})"),
            ask(f"foreign_key_list({name})"),
            # In which order they were made is nobody's business.
            sorted(row[1:] for row in ask(f"index_list({name})")),
            without_rowid[name],
        )
        for name in TABLES
    }


def test_a_fresh_upgrade_is_the_metadata(database: storage.Database) -> None:
    with database._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_fresh_upgrade_is_what_sqlite_would_make_of_the_metadata(
    path: Path, database: storage.Database, raw: Callable[[], Any], tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/declared.db")
    Base.metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(tmp_path / "declared.db")) as declared, raw() as migrated:
        assert shape(migrated) == shape(declared)
        checks = "SELECT count(*) FROM sqlite_master WHERE sql LIKE '%CONSTRAINT ck_%'"
        assert migrated.execute(checks).fetchone() == declared.execute(checks).fetchone() == (3,)


def test_the_append_only_tables_have_their_triggers(
    path: Path, database: storage.Database, raw: Callable[[], Any]
) -> None:
    with raw() as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        assert {name for (name,) in names} == {
            *(f"{table}_no_{event}" for table in ("audit", "leaves", "tiles") for event in EVENTS),
            "ledger_no_delete",
            "ledger_facts_fixed",
            "ledger_settled_once",
        }


def test_opening_again_changes_nothing(path: Path, database: storage.Database) -> None:
    before = path.read_bytes()
    with storage.open_database(f"sqlite:///{path}"):
        pass
    assert path.read_bytes() == before


OTHER = {
    "0.9.0": r"has schema 0\.9\.0: it was made by a newer version; valid: up to 0\.2\.0",
    "0.0.9": r"has schema '0\.0\.9', which no version that is kept ever had; valid: 0\.1\.0",
    "0001_sealed_v2": r"has schema '0001_sealed_v2', which no version that is kept ever had",
    "0": r"has schema '0', which no version",
}


@pytest.mark.parametrize("revision", OTHER)
@pytest.mark.parametrize("read_only", [False, True])
def test_another_schema_is_refused_and_left_alone(
    path: Path,
    database: storage.Database,
    raw: Callable[[], Any],
    revision: str,
    read_only: bool,
) -> None:
    database.close()
    with raw() as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    with pytest.raises(storage.SchemaMismatch, match=OTHER[revision]):
        storage.open_database(f"sqlite:///{path}", read_only=read_only)
    with raw() as connection:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert found == [(revision,)]


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(storage.SchemaMismatch, match="not a coordinator's database"):
        storage.open_database(f"sqlite:///{tmp_path}/other.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database " * 100)
    with pytest.raises(storage.SchemaMismatch, match="not an SQLite database"):
        storage.open_database(f"sqlite:///{tmp_path}/notes.txt")


def test_the_two_kinds_of_database_refuse_each_other(
    path: Path, tmp_path: Path, database: storage.Database
) -> None:
    storage.open_client_store(tmp_path / "client.db")
    with pytest.raises(storage.SchemaMismatch):
        storage.open_database(f"sqlite:///{tmp_path}/client.db")
    with pytest.raises(storage.SchemaMismatch):
        storage.open_client_store(path)


def test_a_creation_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        real = Operations.create_index
        patch.setattr(Operations, "create_index", lambda *_a, **_k: 1 / 0)
        assert real is not Operations.create_index
        with pytest.raises(ZeroDivisionError):
            storage.open_database(f"sqlite:///{path}")
    assert list(path.parent.iterdir()) == []
    with storage.open_database(f"sqlite:///{path}"):
        pass
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_processes_may_race_to_create_it(path: Path) -> None:
    code = "import sys, storage; storage.open_database(sys.argv[1]).close()"
    children = [
        subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{path}"], cwd=ROOT)
        for _ in range(4)
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0, 0]


def test_pool_has_no_rowid_and_batch_mode_keeps_it_so(
    path: Path, database: storage.Database, raw: Callable[[], Any]
) -> None:
    with database.unit_of_work() as unit:
        unit.pool.add_generation("r", 0, [(b"h1", b"e1"), (b"h2", b"e2")])
        unit.commit()
        before = unit.pool.entries("r")
    with raw() as connection, pytest.raises(sqlite3.OperationalError, match="no such column"):
        connection.execute("SELECT rowid FROM pool")
    with database._engine.begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("pool", recreate="always") as batch:
            batch.add_column(sa.Column("extra", sa.Text(), nullable=True))
    with raw() as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(pool)")]
        assert columns[-1] == "extra"
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            connection.execute("SELECT rowid FROM pool")
    with database.unit_of_work() as unit:
        assert unit.pool.entries("r") == before

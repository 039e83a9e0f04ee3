"""The migrations: they end in the declared tables, keep all rows, and refuse unknown schemas."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.operations import Operations

import storage
from storage import client_files, schema
from storage.schema import SchemaVersion
from storage.tables import Base
from tests.storage._filling import read_database, read_store
from tests.storage._kept_versions import CLIENT, COORDINATOR, kept, unpack


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
        for name in Base.metadata.tables
    }


def test_a_fresh_upgrade_is_what_sqlite_would_make_of_the_metadata(path, database, raw, tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/declared.db")
    Base.metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(tmp_path / "declared.db")) as declared, raw() as migrated:
        assert shape(migrated) == shape(declared)
        checks = "SELECT count(*) FROM sqlite_master WHERE sql LIKE '%CONSTRAINT ck_%'"
        assert migrated.execute(checks).fetchone() == declared.execute(checks).fetchone() == (3,)


def test_opening_again_changes_nothing(path: Path, database: storage.Database) -> None:
    before = path.read_bytes()
    with storage.open_database(f"sqlite:///{path}"):
        pass
    assert path.read_bytes() == before


OTHER = {
    "0.9.0": r"has schema 0\.9\.0: it was made by a newer version; valid: up to 0\.2\.0",
    "0.0.9": r"has schema '0\.0\.9', which is not a known version; valid: 0\.1\.0",
    "0001_sealed_v2": r"has schema '0001_sealed_v2', which is not a known version",
}


@pytest.mark.parametrize("revision", OTHER)
@pytest.mark.parametrize("read_only", [False, True])
def test_another_schema_is_refused_and_left_alone(path, database, raw, revision, read_only):
    database.close()
    with raw() as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    with pytest.raises(storage.SchemaMismatch, match=OTHER[revision]):
        storage.open_database(f"sqlite:///{path}", read_only=read_only)
    with raw() as connection:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert found == [(revision,)]


def test_the_two_kinds_of_database_refuse_each_other(path, tmp_path, database):
    storage.open_client_store(tmp_path / "client.db")
    with pytest.raises(storage.SchemaMismatch, match="not a coordinator's database"):
        storage.open_database(f"sqlite:///{tmp_path}/client.db")
    with pytest.raises(storage.SchemaMismatch, match="not a client's store"):
        storage.open_client_store(path)


def test_a_creation_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_index", lambda *_a, **_k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            storage.open_database(f"sqlite:///{path}")
    assert list(path.parent.iterdir()) == []
    with storage.open_database(f"sqlite:///{path}"):
        pass
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows, past our own code; digests cover columns that may be new."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        found = {}
        for (name,) in names.fetchall():
            rows = [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]  # noqa: S608
            found[name] = [{k: v for k, v in row.items() if k != "digest"} for row in rows]
    return found


def test_every_version_has_its_files() -> None:
    of_clients = (client_files.FIRST, *client_files.STEPS)
    assert [file.name for file in kept(CLIENT)] == [f"client-{v}.db.gz" for v in of_clients]
    revisions = [str(step.revision) for step in schema._script().walk_revisions()]
    assert [file.name for file in kept(COORDINATOR)] == [
        f"coordinator-{version}.db.gz" for version in reversed(revisions)
    ]


@pytest.mark.parametrize("file", [*kept(COORDINATOR), *kept(CLIENT)], ids=lambda file: file.name)
def test_a_kept_version_is_migrated_with_what_is_in_it(file: Path, tmp_path: Path) -> None:
    path, is_store = tmp_path / "kept.db", file.name.startswith(CLIENT)
    unpack(file, path)
    before = tables(path)
    if is_store:
        storage.open_client_store(path).verify_integrity()
    else:
        with storage.open_database(f"sqlite:///{path}") as database:
            database.verify_integrity()
            with database.unit_of_work(read_only=True) as unit:
                assert [unit.audit.verify(run).count for run in ("r", "s")] == [2, 2]
    after = tables(path)
    before.pop("alembic_version", None)
    assert sum(map(len, before.values())) >= 10
    for name, rows in before.items():
        known = [{k: v for k, v in row.items() if k in rows[0]} for row in after[name]]
        assert known == rows, name
    assert read_store(path) if is_store else read_database(path)


@pytest.mark.parametrize(
    ("text", "number"), [("0.1.0", 1000), ("0.2.0", 2000), ("1.0.3", 1_000_003)]
)
def test_a_version_and_its_number(text: str, number: int) -> None:
    version = SchemaVersion.parse(text)
    assert version is not None
    assert version.number == number
    assert SchemaVersion.of_number(number) == version
    assert str(version) == text

"""Databases of every version that was kept are migrated, with all that is in them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import storage
from storage import client_files, schema
from storage.schema import SchemaVersion
from tests.storage._filling import read_database, read_store
from tests.storage._kept_versions import CLIENT, COORDINATOR, kept, unpack

FILES = [*kept(COORDINATOR), *kept(CLIENT)]


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


def open_for_writing(path: Path, kind: str) -> None:
    if kind == COORDINATOR:
        with storage.open_database(f"sqlite:///{path}") as database:
            database.verify_integrity()
            with database.unit_of_work(read_only=True) as unit:
                assert [unit.audit.verify(run).count for run in ("r", "s")] == [2, 2]
    else:
        storage.open_client_store(path).verify_integrity()


def test_every_version_has_its_files() -> None:
    of_clients = (client_files.FIRST, *client_files.STEPS)
    assert [file.name for file in kept(CLIENT)] == [f"client-{v}.db.gz" for v in of_clients]
    revisions = [str(step.revision) for step in schema._script().walk_revisions()]
    assert [file.name for file in kept(COORDINATOR)] == [
        f"coordinator-{version}.db.gz" for version in reversed(revisions)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_kept_version_is_migrated_with_what_is_in_it(file: Path, tmp_path: Path) -> None:
    path, kind = tmp_path / "kept.db", file.name.split("-")[0]
    unpack(file, path)
    before = tables(path)
    open_for_writing(path, kind)
    after = tables(path)
    before.pop("alembic_version", None)
    assert sum(map(len, before.values())) >= 10
    for name, rows in before.items():
        known = [{k: v for k, v in row.items() if k in rows[0]} for row in after[name]]
        assert known == rows, name
    read = read_database(path) if kind == COORDINATOR else read_store(path)
    assert read


@pytest.mark.parametrize(
    ("text", "number"), [("0.1.0", 1000), ("0.2.0", 2000), ("1.0.3", 1_000_003)]
)
def test_a_version_and_its_number(text: str, number: int) -> None:
    version = SchemaVersion.parse(text)
    assert version is not None
    assert version.number == number
    assert SchemaVersion.of_number(number) == version
    assert str(version) == text

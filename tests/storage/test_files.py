"""Files appear whole, for their owner only, and are still there when something is committed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import storage
from storage.files import create_whole
from tests.storage._filling import ROW

ROOT = Path(__file__).resolve().parents[2]


def take_back_an_older_copy(path: Path) -> None:
    older = path.with_name("older")
    shutil.copy2(path, older)
    older.replace(path)


LOSSES = {Path.unlink: "was deleted while", take_back_an_older_copy: "was replaced by another file"}


@pytest.mark.parametrize("lose", LOSSES)
def test_a_database_that_is_lost_in_a_unit_commits_nothing(filled, lose):
    with storage.open_database(f"sqlite:///{filled}") as database:
        with database.unit_of_work() as unit:
            unit.runs.set_status("r", "stopped")
            lose(filled)
            with pytest.raises(storage.DatabaseReplaced, match=f"{filled} {LOSSES[lose]}"):
                unit.commit()
        with pytest.raises(storage.DatabaseReplaced), database.unit_of_work() as unit:
            pytest.fail("a unit of work began on a file that is gone")
        with pytest.raises(storage.DatabaseReplaced):
            database.verify_integrity()
    if lose is not Path.unlink:
        with storage.open_database(f"sqlite:///{filled}") as database, database.unit_of_work() as u:
            assert u.runs.get("r").status == "running"


@pytest.mark.parametrize("lose", LOSSES)
def test_what_was_lost_while_it_was_committed_is_not_called_done(filled, lose):
    """The last moment: the file goes between the check before the commit and the commit."""
    with storage.open_database(f"sqlite:///{filled}") as database, database.unit_of_work() as unit:
        unit.runs.set_status("r", "stopped")
        session = unit.audit._session
        commit = session.commit

        def lose_and_commit() -> None:
            lose(filled)
            commit()

        session.commit = lose_and_commit  # type: ignore[method-assign]
        with pytest.raises(storage.DatabaseReplaced):
            unit.commit()


@pytest.mark.parametrize("lose", LOSSES)
def test_a_store_that_is_lost_releases_nothing(filled_store, lose):
    store = storage.open_client_store(filled_store)
    lose(filled_store)
    row = replace(ROW, round_number=5)
    with pytest.raises(storage.DatabaseReplaced, match=LOSSES[lose]):
        store.reserve_release(row, payload=b"noised")


@pytest.mark.parametrize("lose", LOSSES)
def test_a_store_that_is_lost_in_a_block_keeps_nothing(filled_store, lose):
    store = storage.open_client_store(filled_store)
    with pytest.raises(storage.DatabaseReplaced), store.atomically():
        store.reserve_release(replace(ROW, round_number=5), payload=b"noised")
        lose(filled_store)
    if lose is not Path.unlink:
        assert len(storage.open_client_store(filled_store).rows()) == 4


def test_files_and_folders_are_their_owners(tmp_path: Path) -> None:
    """Also with a umask that would let everybody read them."""
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "sotto.db"
        with storage.open_database(f"sqlite:///{path}") as database:
            with database.unit_of_work() as unit:
                unit.runs.list()
                modes = {name.name: mode(name) for name in path.parent.iterdir()}
        store = storage.open_client_store(path.parent / "clients" / "c.db")
        with store.kept_open():
            store.rows()
            modes |= {name.name: mode(name) for name in (path.parent / "clients").iterdir()}
    finally:
        os.umask(before)
    expected = {
        f"{name}{ending}" for name in ("sotto.db", "c.db") for ending in ("", "-wal", "-shm")
    }
    assert modes == dict.fromkeys(expected, 0o600)
    for folder in (path.parents[1], path.parent, path.parent / "clients"):
        assert mode(folder) == 0o700
    assert [file.name for file in (path.parent / "clients").iterdir()] == ["c.db"]


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    storage.open_database(f"sqlite:///{tmp_path}/sotto.db").close()
    storage.open_client_store(tmp_path / "c.db")
    assert mode(tmp_path) == 0o755


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
def test_processes_may_race_to_create_a_store(tmp_path: Path) -> None:
    path = tmp_path / "clients" / "c.db"
    code = "import sys, storage\nprint(storage.open_client_store(sys.argv[1]).identity.pseudonym)"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    names = {child.communicate(timeout=60)[0] for child in children}
    assert len(names) == 1
    assert len(names.pop()) == 33
    assert [file.name for file in path.parent.iterdir()] == ["c.db"]


def test_what_a_killed_creator_left_is_in_nobodys_way(tmp_path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f".sotto.db.new{ending}").write_bytes(b"half of something")
    with storage.open_database(f"sqlite:///{tmp_path}/sotto.db") as database:
        database.verify_integrity()
    assert [file.name for file in tmp_path.iterdir()] == ["sotto.db"]


def test_a_database_whose_log_could_not_be_moved_into_it_is_not_made(tmp_path: Path) -> None:
    """As on a disk that is full once all is committed: closing it then says nothing."""
    path, held = tmp_path / "sotto.db", []

    def build(part: Path) -> None:
        connection = sqlite3.connect(part, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE all_of_it (x)")
        # Whoever else has it open keeps its log from being moved.
        held.append(connection)

    with pytest.raises(storage.StorageFull, match="disk is full"):
        create_whole(path, build)
    held[0].close()
    assert list(tmp_path.iterdir()) == []

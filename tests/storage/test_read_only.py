"""Opening to read: nothing is written, made or touched, wherever the files lie."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

import storage
from storage import engine, files, homes
from tests.storage._filling import ROW, read_database, read_store

ROOT = Path(__file__).resolve().parents[2]
Contents = dict[str, tuple[int, int, int, bytes]]


@pytest.fixture
def folder(tmp_path: Path, made_once: Mapping[str, bytes]) -> Path:
    made = tmp_path / "a folder # of 50%20 or a@b:c"
    made.mkdir()
    (made / "sotto.db").write_bytes(made_once["filled"])
    (made / "client.db").write_bytes(made_once["store"])
    return made


def contents(folder: Path) -> Contents:
    """Every file with its mode, size, time of change and bytes, and the folder itself."""
    found: Contents = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, data)
    return found


def test_reading_changes_no_file(folder: Path) -> None:
    before = contents(folder)
    first = (read_database(folder / "sotto.db"), read_store(folder / "client.db"))
    assert (read_database(folder / "sotto.db"), read_store(folder / "client.db")) == first
    assert contents(folder) == before


@pytest.fixture
def medium(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder once more, on a medium that nobody can write to."""
    place = tmp_path / "medium"
    place.mkdir()
    command = ["mount", "--bind", "-o", "ro", str(folder), str(place)]
    mounted = shutil.which("mount") and subprocess.run(command, check=False, capture_output=True)
    if not mounted or mounted.returncode:
        pytest.skip("nothing may be mounted here, so there is no read-only medium")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_medium_that_cannot_be_written_to(medium: Path, folder: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        (medium / "x").touch()
    assert read_database(medium / "sotto.db") == read_database(folder / "sotto.db")
    assert read_store(medium / "client.db") == read_store(folder / "client.db")
    with pytest.raises(storage.StorageError, match="cannot be opened"):
        storage.open_database(f"sqlite:///{medium}/sotto.db")


KILLED = """
import os, signal, sys
import storage
from sqlalchemy import event
database = storage.open_database(sys.argv[1])
with database.unit_of_work() as unit:
    unit.runs.set_status("r", "failed")
    database.checkpoint = lambda: os.kill(os.getpid(), signal.SIGKILL)
    unit.commit()
"""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, made_once: Mapping[str, bytes]) -> Path:
    """What a process leaves that is killed after its commit, before its log is emptied."""
    path = tmp_path_factory.mktemp("left") / "sotto.db"
    path.write_bytes(made_once["filled"])
    command = [sys.executable, "-c", KILLED, f"sqlite:///{path}"]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (path.parent / "sotto.db-wal").stat().st_size > 0
    return path.parent


def test_after_a_kill_what_was_committed_is_read_and_nothing_changed(folder, left):
    path = folder / "sotto.db"
    shutil.copytree(left, folder, dirs_exist_ok=True)
    before = contents(folder)
    assert read_database(path)["runs"][0].status == "failed"
    assert contents(folder) == before


def test_a_log_that_holds_only_its_header_is_read_as_empty(folder, left):
    """A writer that is killed before its first frame leaves one, and SQLite refuses to read it."""
    path = folder / "sotto.db"
    first = read_database(path)
    shutil.copytree(left, folder, dirs_exist_ok=True)
    os.truncate(folder / "sotto.db-wal", 32)
    before = contents(folder)
    assert read_database(path) == first
    assert contents(folder) == before
    storage.open_database(f"sqlite:///{path}").close()
    assert read_database(path) == first


def test_a_log_without_its_index_is_named(folder, left):
    """What SQLite would have to write to read it; a writer does so and all is well."""
    path = folder / "sotto.db"
    shutil.copytree(left, folder, dirs_exist_ok=True)
    (folder / "sotto.db-shm").unlink()
    before = contents(folder)
    with pytest.raises(storage.StorageError, match=r"without sotto\.db-shm"):
        read_database(path)
    assert contents(folder) == before
    storage.open_database(f"sqlite:///{path}").close()
    assert read_database(path)["runs"][0].status == "failed"


def test_a_writer_between_its_two_deletions_is_not_taken_for_a_killed_one(folder, left):
    """Where SQLite closes a database last, it deletes the index and then the log."""
    path = folder / "sotto.db"
    shutil.copytree(left, folder, dirs_exist_ok=True)
    (folder / "sotto.db-shm").unlink()
    end = threading.Timer(0.2, (folder / "sotto.db-wal").unlink)
    end.start()
    with pytest.raises(storage.DatabaseBusy, match="closed by a writer"):
        read_database(path)
    end.join()


def test_beside_a_writer_each_unit_reads_one_moment(folder: Path) -> None:
    url = f"sqlite:///{folder}/sotto.db"
    writing = storage.open_database(url, busy_timeout=0.2)
    with writing, storage.open_database(url, read_only=True) as db:
        with db.unit_of_work() as unit:
            before = unit.runs.list()
            with writing.unit_of_work() as writer:
                writer.runs.set_status("r", "stopped")
                with pytest.raises(storage.CheckpointError):
                    writer.commit()
            assert unit.runs.list() == before
        with db.unit_of_work() as unit:
            assert unit.runs.get("r").status == "stopped"
        writing.checkpoint()
        assert (folder / "sotto.db-wal").stat().st_size == 0
    assert sorted(os.listdir(folder)) == ["client.db", "sotto.db"]


def test_a_write_in_the_middle_of_reading_is_noticed(folder: Path) -> None:
    """With no log there is nothing that would keep a reader's view: it is told to try again."""
    url = f"sqlite:///{folder}/sotto.db"
    with storage.open_database(url, read_only=True) as database:
        with (
            pytest.raises(storage.DatabaseBusy, match="written to while"),
            database.unit_of_work() as unit,
        ):
            unit.runs.list()
            with storage.open_database(url) as writing, writing.unit_of_work() as writer:
                writer.runs.set_status("r", "stopped")
                writer.commit()
        with database.unit_of_work() as unit:
            assert unit.runs.get("r").status == "stopped"


def test_the_version_is_read_again_when_a_writer_came_in_between(folder, monkeypatch):
    path = folder / "sotto.db"
    read = homes.schema.version_of

    def written_meanwhile(opened: Engine) -> str:
        monkeypatch.setattr(homes.schema, "version_of", read)
        found = read(opened)
        with storage.open_database(f"sqlite:///{path}") as writing:
            with writing.unit_of_work() as writer:
                writer.runs.set_status("r", "stopped")
                writer.commit()
        return found

    monkeypatch.setattr(homes.schema, "version_of", written_meanwhile)
    assert homes.version_at(path) == homes.schema.newest_version()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_writer_that_ends_while_a_reader_opens_is_no_kill(folder, monkeypatch, nth):
    """It takes log and index along, after the reader has seen that they are there."""
    path = folder / "sotto.db"
    writing = storage.open_database(f"sqlite:///{path}")
    seen: list[bool] = []
    look = files.is_quiet

    def looked(at: Path) -> bool:
        seen.append(look(at))
        if len(seen) == nth:
            writing.close()
        return seen[-1]

    for module in (files, engine):
        monkeypatch.setattr(module, "is_quiet", looked)
    try:
        found = read_database(path)
    except storage.DatabaseBusy as error:
        assert str(error).endswith("try again")
        found = read_database(path)
    finally:
        writing.close()
    assert len(seen) > nth and not seen[nth - 1] and seen[-1]
    assert found["runs"][0].run_id == "r"


def test_nothing_can_be_written(folder: Path) -> None:
    before = contents(folder)
    works: list[Callable[[storage.UnitOfWork], object]] = [
        lambda unit: unit.runs.set_status("r", "failed"),
        lambda unit: unit.states.save("r", 3, b"x"),
        lambda unit: unit.ledger.reserve([replace(ROW, round_number=9)]),
        lambda unit: unit.audit.append("r", actor="a", action="b"),
        lambda unit: unit.pool.keep_generations("r", 0),
    ]
    with storage.open_database(f"sqlite:///{folder}/sotto.db", read_only=True) as database:
        assert database.is_read_only
        for work in works:
            with (
                pytest.raises(storage.StorageError, match="read-only"),
                database.unit_of_work() as unit,
            ):
                work(unit)
        with (
            pytest.raises(storage.StorageError, match="cannot be committed"),
            database.unit_of_work() as unit,
        ):
            unit.commit()
    store = storage.open_client_store(folder / "client.db", read_only=True)
    for act in (
        lambda: store.reserve_release(replace(ROW, round_number=9), payload=b"x"),
        lambda: store.roll("r", (2, 1)),
        lambda: store.sessions.forget("r"),
        lambda: store.remember_serial(9),
    ):
        with pytest.raises(storage.StorageError, match="read-only"):
            act()
    assert contents(folder) == before


@pytest.mark.parametrize("is_store", [False, True])
def test_what_is_not_there_is_not_made(tmp_path: Path, is_store: bool) -> None:
    path = tmp_path / "new" / "sotto.db"
    with pytest.raises(storage.NotFound, match=f"no database at {path}"):
        if is_store:
            storage.open_client_store(path, read_only=True)
        else:
            storage.open_database(f"sqlite:///{path}", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_a_store_is_refused(folder: Path) -> None:
    known = {
        0: "not a client's store",
        # Development counted from one, and so that nothing of it is taken for a later version.
        6: r"schema '0\.0\.6', which is not a known version",
        99_000: r"schema 0\.99\.0: it was made by a newer",
    }
    for version, said in known.items():
        with closing(sqlite3.connect(folder / "client.db")) as connection:
            connection.execute(f"PRAGMA user_version={version}")
        for read_only in (False, True):
            with pytest.raises(storage.SchemaMismatch, match=said):
                storage.open_client_store(folder / "client.db", read_only=read_only)

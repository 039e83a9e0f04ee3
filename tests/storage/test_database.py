"""Transactions, crashes, a full disk, and what every connection must be set to."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

import storage
from storage import InvalidRecordError, open_database
from storage.database import schema_version
from storage.engine import checkpoint, configure_connection, make_engine
from storage.homes import file_of, shown
from tests.storage._raw import on_disk

ROOT = Path(__file__).resolve().parents[2]


def wal_size(path: Path) -> int:
    wal = path.with_name(path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


def test_an_exception_rolls_back_every_table(database, make_row):
    with pytest.raises(ZeroDivisionError), database.unit_of_work() as unit:
        unit.states.save("r", 0, b"lost")
        unit.rounds.add("r", 0, 0, {"accuracy": 1.0})
        unit.ledger.reserve([make_row()])
        unit.pool.add_generation("r", 0, [(b"h1", b"e1"), (b"h2", b"e2")])
        unit.audit.append("r", actor="a", action="b")
        unit.runs.set_status("r", "finished")
        raise ZeroDivisionError
    with database.unit_of_work(read_only=True) as unit:
        assert unit.states.latest("r") is None
        assert unit.rounds.all("r") == ()
        assert unit.ledger.rows("r") == ()
        assert unit.pool.entries("r") == ()
        assert unit.audit.head("r").count == 0
        assert unit.runs.get("r").status == "running"


def test_work_after_a_commit_is_a_new_transaction(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        unit.states.save("r", 0, b"kept")
        unit.commit()
        unit.states.save("r", 1, b"lost")
    with database.unit_of_work() as unit:
        assert unit.states.latest("r") == (0, b"kept")


def test_a_second_writer_waits_and_then_is_told(path: Path, database: storage.Database) -> None:
    other = storage.open_database(f"sqlite:///{path}", busy_timeout=0.05)
    with other, database.unit_of_work() as first:
        first.states.save("r", 0, b"x")
        with pytest.raises(storage.DatabaseBusy, match="in use"), other.unit_of_work() as second:
            second.states.save("r", 0, b"y")


KILLED = """
import sys, time
import storage
with storage.open_database(sys.argv[1]) as database:
    with database.unit_of_work() as unit:
        unit.states.save("r", 1, b"committed")
        unit.commit()
    with database.unit_of_work() as unit:
        # More than SQLite's page cache, so that uncommitted pages are in the log already.
        unit.states.save("r", 2, b"UNCOMMITTED" * 1_000_000)
        unit.rounds.add("r", 2, 0, {})
        unit.audit.append("r", actor="a", action="b")
        print("ready", flush=True)
        time.sleep(60)
"""


@pytest.mark.slow
def test_kill_9_in_a_transaction_leaves_the_previous_state(path, database):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"sqlite:///{path}"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    assert b"UNCOMMITTED" in on_disk(path)
    with storage.open_database(f"sqlite:///{path}") as reopened, reopened.unit_of_work() as unit:
        assert unit.states.latest("r") == (1, b"committed")
        assert unit.rounds.all("r") == ()
        assert unit.audit.verify("r").count == 0
    assert b"UNCOMMITTED" not in on_disk(path)


def limit_pages(database: storage.Database, spare: int) -> None:
    """Let the file grow by so many pages only, as on a disk that is nearly full."""

    def limit(connection: sqlite3.Connection, _: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + spare}")

    database._engine.dispose()
    event.listen(database._engine, "connect", limit)


@pytest.mark.parametrize("size", [40_000, 4_000_000])
def test_a_full_disk_leaves_nothing_half_written(path, database, make_row, size):
    with database.unit_of_work() as unit:
        unit.states.save("r", 0, b"before")
        unit.commit()
    limit_pages(database, spare=4)
    with pytest.raises(storage.StorageFull, match="full"), database.unit_of_work() as unit:
        unit.ledger.reserve([make_row()])
        unit.audit.append("r", actor="a", action="b")
        unit.states.save("r", 1, os.urandom(size))
        unit.commit()
    with database.unit_of_work() as unit:
        assert unit.states.latest("r") == (0, b"before")
        assert unit.ledger.rows("r") == ()
        assert unit.audit.verify("r").count == 0
        unit.states.save("r", 1, b"small enough")
        unit.commit()


def test_what_cannot_be_written_says_so(path: Path, database: storage.Database) -> None:
    def lock(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    database._engine.dispose()
    event.listen(database._engine, "connect", lock)
    with pytest.raises(storage.StorageFull, match="read-only"), database.unit_of_work() as unit:
        unit.states.save("r", 0, b"x")


def test_set_up_does_not_rely_on_how_sqlite_was_built(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        for pragma in ("secure_delete", "foreign_keys", "synchronous"):
            connection.execute(f"PRAGMA {pragma}=OFF")
        configure_connection(connection, busy_timeout=0.25)
        ask = lambda name: connection.execute(f"PRAGMA {name}").fetchone()[0]  # noqa: E731
        assert [ask(n) for n in ("secure_delete", "foreign_keys", "synchronous")] == [1, 1, 2]
        assert (ask("temp_store"), ask("journal_mode")) == (2, "wal")
        assert ask("busy_timeout") == 250


def test_a_checkpoint_in_a_readers_way_is_reported_and_made_up_for(path, raw):
    with storage.open_database(f"sqlite:///{path}", busy_timeout=0.1) as database, raw() as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        with database.unit_of_work() as unit:
            unit.runs.create("r", name="n", config_json="{}", config_digest="d", versions_json="{}")
            with pytest.raises(storage.CheckpointError, match="is committed"):
                unit.commit()
        assert wal_size(path) > 0
        reader.execute("COMMIT")
        with database.unit_of_work() as unit:
            assert unit.runs.get("r").name == "n"
        database.checkpoint()
        assert wal_size(path) == 0


def test_the_busy_flag_is_read_and_retried(path, database, raw):
    engine = make_engine(path, busy_timeout=0.0)
    naps: list[float] = []
    with raw() as reader, raw() as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        writer.execute("UPDATE runs SET name = 'changed'")

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 3:
                reader.execute("COMMIT")

        checkpoint(engine, patience=10.0, clock=lambda: 0.0, sleep=sleep)
    engine.dispose()
    assert len(naps) == 3
    assert wal_size(path) == 0


HANDLE, ENTRY = b"handle-of-somebody", b"words-of-somebody" * 1000


def test_values_are_in_no_message_and_no_log(path, caplog, database):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="sqlalchemy.engine")
    with storage.open_database(f"sqlite:///{path}") as logged:
        limit_pages(logged, spare=12)
        with pytest.raises(storage.StorageFull) as caught, logged.unit_of_work() as unit:
            unit.audit.query(actor="somebody")
            unit.pool.add_generation("r", 0, [(HANDLE, ENTRY), (b"other", ENTRY)])
            unit.pool.add_generation("r", 1, [(HANDLE, ENTRY), (b"other", ENTRY)])
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "FROM audit" in caplog.text
    assert "parameters hidden" in caplog.text
    assert "somebody" not in shown


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(storage.StorageError, match="cannot be created"):
        storage.open_database(f"sqlite:///{tmp_path}/file/sotto.db")


def test_what_holds_nothing_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(storage.NotFound):
        schema_version(f"sqlite:///{tmp_path}/none.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(storage.DatabaseDamaged, match="the file is empty"):
        schema_version(f"sqlite:///{tmp_path}/empty.db")


def test_a_missing_parent_row_is_not_found(database, make_row):
    calls: list[Callable[[storage.UnitOfWork], object]] = [
        lambda unit: unit.runs.get("x"),
        lambda unit: unit.attempts.open("x", 1, 1, {}),
        lambda unit: unit.runs.set_status("x", "finished"),
        lambda unit: unit.states.save("x", 0, b""),
        lambda unit: unit.states.latest("x"),
        lambda unit: unit.rounds.add("x", 0, 0, {}),
        lambda unit: unit.rounds.all("x"),
        lambda unit: unit.ledger.reserve([make_row(run_id="x")]),
        lambda unit: unit.ledger.set_status("x", 0, 0, "released"),
        lambda unit: unit.ledger.rows("x"),
        lambda unit: unit.audit.append("x", actor="a", action="b"),
        lambda unit: unit.audit.query(run="x"),
        lambda unit: unit.audit.head("x"),
        lambda unit: unit.audit.verify("x"),
        lambda unit: unit.pool.add_generation("x", 0, [(b"1", b"1"), (b"2", b"2")]),
        lambda unit: unit.pool.entries("x"),
        lambda unit: unit.pool.generations("x"),
        lambda unit: unit.pool.keep_generations("x", 1),
    ]
    for call in calls:
        with pytest.raises(storage.NotFound, match=r"run 'x'"), database.unit_of_work() as unit:
            call(unit)


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://db/sotto", "postgresql:///sotto?host=/run/pg", "sqlite://", "sqlite:///", ""),
        *("sqlite:///x.db?mode=ro", "sqlite:///:memory:", "sqlite+pysqlite:///x.db", "x.db"),
    ],
)
def test_what_names_no_file_is_refused(url: str) -> None:
    for ask in (file_of, open_database):
        with pytest.raises(InvalidRecordError, match="sqlite:///"):
            ask(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://lab:secret@db/sotto?folder=f",
        "postgresql://lab:se@secret/x@db/sotto?folder=f",
        "postgresql://:secret@db/sotto",
        "postgresql://db/sotto?folder=f&password=secret",
        "postgresql://db/sotto?PASSWORD=secret&folder=f",
        "postgresql://db/sotto?passfile=secret",
        "nonsense://lab:secret@",
    ],
)
def test_no_message_holds_a_password(url: str) -> None:
    assert "secret" not in shown(url)
    with pytest.raises(InvalidRecordError) as caught:
        file_of(url)
    assert "secret" not in str(caught.value)

"""A database on a server: what it must be, what it refuses, and writers that take turns."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import storage
from storage.server import BEGIN_WRITE, begin_on
from tests._postgres import Server
from tests.storage._raw import REFUSED
from tests.storage.conftest import START
from tests.storage.test_log import fill, past_opening

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def name(server: Server, with_runs: str) -> Iterator[str]:
    """A database that knows the runs ``r`` and ``s``."""
    made = server.new_database(with_runs)
    yield made
    server.drop(made)


@pytest.fixture
def url(server: Server, name: str, tmp_path: Path) -> str:
    return server.url(name, tmp_path)


@pytest.fixture
def opened(url: str) -> Iterator[storage.Database]:
    with storage.open_database(url, busy_timeout=1.0) as database:
        yield database


@contextmanager
def raw(server: Server, name: str, user: str = "sotto") -> Iterator[Any]:
    with closing(server.connect(name, user)) as connection:
        yield connection


# --- what guards its rows -------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["audit", "ledger", "leaves", "tiles"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "TRUNCATE {}", "TRUNCATE {} CASCADE"])
def test_nothing_is_ever_taken_away(
    opened: storage.Database, server: Server, name: str, table: str, statement: str
) -> None:
    fill(opened, rounds=30)
    kept = opened.verify_log()
    with (
        raw(server, name) as connection,
        pytest.raises(REFUSED, match=r"append-only|never deleted"),
    ):
        connection.execute(statement.format(table))
    assert opened.verify_log([kept]) == kept


def test_truncating_what_the_log_refers_to_is_refused(
    opened: storage.Database, server: Server, name: str
) -> None:
    fill(opened, rounds=1)
    with raw(server, name) as connection, pytest.raises(REFUSED, match=r"append-only|never"):
        connection.execute("TRUNCATE runs CASCADE")


def test_a_session_that_poses_as_a_replicas_is_refused(
    opened: storage.Database, server: Server, name: str
) -> None:
    fill(opened, rounds=1)
    with raw(server, name, "postgres") as connection:
        connection.execute("SET session_replication_role = replica")
        with pytest.raises(REFUSED, match="append-only"):
            connection.execute("DELETE FROM leaves")
        with pytest.raises(REFUSED, match="settled"):
            connection.execute("UPDATE ledger SET status = 'reserved'")


CHANGES = {
    "ALTER TABLE audit DISABLE TRIGGER audit_no_delete": "its trigger audit_no_delete was changed",
    "ALTER TABLE tiles ENABLE TRIGGER tiles_no_update": "its trigger tiles_no_update was changed",
    "DROP TRIGGER ledger_settled_once ON ledger": "its trigger ledger_settled_once is missing",
    "CREATE OR REPLACE FUNCTION sotto_refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " 'BEGIN RETURN NEW; END'": "its function sotto_refuse was changed",
    "CREATE TRIGGER more BEFORE INSERT ON audit EXECUTE FUNCTION sotto_refuse('x')": "a trigger",
    "DROP INDEX ix_audit_time": "its index ix_audit_time is missing",
    "CREATE UNIQUE INDEX more ON audit (time)": "it has a index 'more'",
    "ALTER TABLE tiles DROP CONSTRAINT pk_tiles": "its constraint pk_tiles is missing",
    "ALTER TABLE states DROP CONSTRAINT fk_states_run_id": "its constraint fk_states_run_id",
    "ALTER TABLE runs DROP CONSTRAINT ck_runs_ck_runs_status": "its constraint check of status",
    "ALTER TABLE audit ALTER actor DROP NOT NULL": "its column actor was changed",
    "ALTER TABLE audit ALTER actor SET DEFAULT 'x'": "its column actor was changed",
    'ALTER TABLE audit ALTER actor TYPE text COLLATE "default"': "its column actor was changed",
    "ALTER TABLE tiles ALTER level TYPE integer": "its column level was changed",
    "ALTER TABLE states ADD COLUMN more text": "it has a column 'more'",
    "CREATE TABLE theirs (x int)": "it has a column 'x', which does not belong there",
    "CREATE VIEW theirs AS SELECT 1 AS x": "'theirs', which does not belong there",
    "CREATE SEQUENCE theirs": "'theirs', which does not belong there",
    "CREATE RULE gone AS ON INSERT TO audit DO INSTEAD NOTHING": "its table audit was changed",
    "ALTER TABLE audit ENABLE ROW LEVEL SECURITY": "its table audit was changed",
    "ALTER TABLE stages SET UNLOGGED": "its table stages was changed",
    "DROP TABLE pool": "its column cover is missing",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read_only", [False, True])
def test_another_schema_is_named(
    server: Server, name: str, url: str, change: str, read_only: bool
) -> None:
    with raw(server, name) as connection:
        connection.execute(change)
    with pytest.raises(storage.DatabaseDamaged, match=CHANGES[change]):
        storage.open_database(url, read_only=read_only)


def test_an_edited_row_is_named(opened: storage.Database, server: Server, name: str) -> None:
    with raw(server, name) as connection:
        connection.execute("UPDATE runs SET name = 'other' WHERE run_id = 'r'")
    with pytest.raises(storage.DatabaseDamaged, match="table runs of run 'r' does not fit"):
        opened.verify_integrity()
    with opened.unit_of_work() as unit, pytest.raises(storage.DatabaseDamaged):
        unit.runs.get("r")


# --- what is opened -------------------------------------------------------------------------------


def test_an_empty_database_is_filled_only_to_be_written_to(server: Server, tmp_path: Path) -> None:
    name = server.new_database()
    url = server.url(name, tmp_path)
    with pytest.raises(storage.NotFound, match="no database of Sotto"):
        storage.open_database(url, read_only=True)
    with raw(server, name) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname='public'"
        ).fetchall() == [(0,)]
    storage.open_database(url).close()
    with storage.open_database(url, read_only=True) as database:
        assert database.verify_log().size == 0
    server.drop(name)


def test_a_database_of_another_program_is_refused(server: Server, tmp_path: Path) -> None:
    name = server.new_database()
    with raw(server, name) as connection:
        connection.execute("CREATE TABLE theirs (x int)")
    for read_only in (False, True):
        with pytest.raises(storage.SchemaMismatch, match=f"{name} on .* is not a coordinator's"):
            storage.open_database(server.url(name, tmp_path), read_only=read_only)
    server.drop(name)


@pytest.mark.parametrize("version", ["0.9.0", "0.0.9", "x"])
def test_an_unknown_schema_is_refused_and_left_alone(
    server: Server, name: str, url: str, version: str
) -> None:
    with raw(server, name) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [version])
        with pytest.raises(storage.SchemaMismatch, match=f"has schema '?{version}"):
            storage.open_database(url)
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert found == [(version,)]


def test_what_is_not_there(server: Server, tmp_path: Path) -> None:
    with pytest.raises(storage.StorageError, match="does not exist"):
        storage.open_database(server.url("nothing", tmp_path))
    gone = f"postgresql+psycopg:///x?host={tmp_path}&folder={tmp_path}"
    with pytest.raises(storage.StorageError, match=r"server of database x on .* cannot be reached"):
        storage.open_database(gone)


SETTINGS = {
    "fsync=off": ("ALTER SYSTEM SET fsync = off", "ALTER SYSTEM RESET fsync"),
    "full_page_writes=off": (
        "ALTER SYSTEM SET full_page_writes = off",
        "ALTER SYSTEM RESET full_page_writes",
    ),
    "synchronous_commit=off": (
        "ALTER ROLE sotto SET synchronous_commit = off",
        "ALTER ROLE sotto RESET synchronous_commit",
    ),
    "session_replication_role=replica": (
        "ALTER ROLE sotto SET session_replication_role = replica",
        "ALTER ROLE sotto RESET session_replication_role",
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_server_that_may_lose_what_it_committed_is_refused(
    server: Server, url: str, setting: str
) -> None:
    wrong, right = SETTINGS[setting]
    server.ask("postgres", wrong)
    server.control("reload")
    try:
        until(server, setting)
        with pytest.raises(storage.StorageError, match=f"server with {setting}"):
            storage.open_database(url)
    finally:
        server.ask("postgres", right)
        server.control("reload")
        until(server, f"{setting.partition('=')[0]}=")
    storage.open_database(url).close()


def until(server: Server, setting: str) -> None:
    """A reload is asked for, and comes when it comes."""
    name, _, value = setting.partition("=")
    usual = {"session_replication_role": "origin"}.get(name, "on")
    for _ in range(10_000):
        with raw(server, "postgres") as connection:
            ((found,),) = connection.execute(f"SHOW {name}").fetchall()
            if found == (value or usual):
                return
        time.sleep(0.02)
    raise AssertionError(setting)


def test_a_database_in_another_encoding_is_refused(server: Server, tmp_path: Path) -> None:
    server.ask(
        "postgres",
        "CREATE DATABASE latin OWNER sotto ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )
    with pytest.raises(storage.StorageError, match="server_encoding=LATIN1; valid: UTF8"):
        storage.open_database(server.url("latin", tmp_path))
    server.drop("latin")


def test_texts_are_in_the_order_of_their_bytes_in_any_language(
    server: Server, tmp_path: Path
) -> None:
    server.ask(
        "postgres",
        "CREATE DATABASE german OWNER sotto TEMPLATE template0 ENCODING 'UTF8'"
        " LOCALE_PROVIDER icu ICU_LOCALE 'de' LOCALE 'C.UTF-8'",
    )
    names = ["B", "a", "Z", "\u00e4", "z"]
    with storage.open_database(server.url("german", tmp_path), now=lambda: START) as database:
        with database.unit_of_work() as unit:
            for run in names:
                facts = {"config_json": "{}", "config_digest": "d", "versions_json": "{}"}
                unit.runs.create(run, name="n", **facts)
                unit.audit.append(run, actor=run, action="x")
            unit.commit()
            assert [run.run_id for run in unit.runs.list()] == ["B", "Z", "a", "z", "\u00e4"]
            assert unit.audit.known("actor") == ("B", "Z", "a", "z", "\u00e4")
    server.drop("german")


# --- who writes -----------------------------------------------------------------------------------


def test_one_coordinators_folder_writes_at_a_time(
    server: Server, name: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = server.url(name, tmp_path / "other")
    with storage.open_database(url):
        with pytest.raises(storage.DatabaseBusy, match="from another machine or folder"):
            storage.open_database(other)
        # Beside it, and to read, it may be opened.
        storage.open_database(url).close()
        storage.open_database(other, read_only=True).close()
    with storage.open_database(other), pytest.raises(storage.DatabaseBusy):
        storage.open_database(url)


def test_who_loses_the_connection_asks_anew_whether_it_may_write(
    server: Server, name: str, url: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with storage.open_database(url) as first:
        end_connections(server, name)
        with storage.open_database(server.url(name, tmp_path / "other")):
            with pytest.raises(storage.DatabaseBusy), first.unit_of_work() as unit:
                unit.runs.list()
        with first.unit_of_work() as unit:
            unit.runs.set_status("r", "stopped")
            unit.commit()


def end_connections(server: Server, name: str) -> None:
    ended = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{}'"
    server.ask("postgres", ended.format(name))


def test_a_writer_waits_and_then_sees_what_was_written(
    opened: storage.Database, server: Server, name: str, url: str
) -> None:
    """The lock comes before the snapshot: else a chain would go on from where it was before."""
    with raw(server, name) as first:
        begin_on(first, BEGIN_WRITE, "here")
        with pytest.raises(storage.DatabaseBusy, match="in use"), opened.unit_of_work() as unit:
            unit.runs.list()
        first.execute("INSERT INTO states VALUES ('r', 7, 'x', 'x')")
        child = subprocess.Popen([sys.executable, "-c", WAITS, url], cwd=ROOT)
        until_somebody_waits(server, name)
        first.execute("COMMIT")
        assert child.wait(120) == 0


WAITS = """
import sys, storage
with storage.open_database(sys.argv[1], busy_timeout=120.0) as database:
    with database.unit_of_work() as unit:
        try:
            unit.states.save("r", 7, b"y")
        except storage.InvalidRecordError:
            sys.exit(0)
    sys.exit(1)
"""


def until_somebody_waits(server: Server, name: str) -> None:
    while server.ask(name, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(0,)]:
        time.sleep(0.02)


WRITES = """
import sys, storage
with storage.open_database(sys.argv[1], busy_timeout=120.0) as database:
    for at in range(25):
        with database.unit_of_work() as unit:
            unit.audit.append("r", actor=sys.argv[2], action=f"event {at}")
            unit.commit()
"""


def test_writers_that_race_make_one_chain_and_one_tree(opened: storage.Database, url: str) -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", WRITES, url, f"writer {n}"], cwd=ROOT)
        for n in range(4)
    ]
    assert [child.wait(240) for child in children] == [0] * 4
    assert opened.verify_log().size == 100
    with opened.unit_of_work(read_only=True) as unit:
        assert unit.audit.verify("r").count == 100


CREATES = "import sys, storage; storage.open_database(sys.argv[1], busy_timeout=60.0).close()"


def test_processes_may_race_to_create_it(server: Server, tmp_path: Path) -> None:
    url = server.url(server.new_database(), tmp_path)
    children = [subprocess.Popen([sys.executable, "-c", CREATES, url], cwd=ROOT) for _ in range(4)]
    assert [child.wait(120) for child in children] == [0] * 4
    with storage.open_database(url) as database:
        database.verify_integrity()


# --- what is committed ----------------------------------------------------------------------------


def test_after_a_failure_nothing_is_committed(opened: storage.Database) -> None:
    """A server answers such a commit as if nothing were wrong."""
    with opened.unit_of_work() as unit:
        unit.runs.set_status("r", "stopped")
        with pytest.raises(storage.StorageError):
            unit.states._rows.statements.run("DELETE FROM audit; SELECT nonsense")
        with pytest.raises(storage.StorageError, match="nothing is committed"):
            unit.commit()
    with opened.unit_of_work(read_only=True) as unit:
        assert unit.runs.get("r").status == "running"


KILLED = """
import sys, time, storage
with storage.open_database(sys.argv[1]) as database:
    with database.unit_of_work() as unit:
        unit.states.save("r", 1, b"committed")
        unit.commit()
    with database.unit_of_work() as unit:
        unit.states.save("r", 2, b"UNCOMMITTED" * 100_000)
        unit.audit.append("r", actor="a", action="b")
        print("ready", flush=True)
        time.sleep(600)
"""


def test_kill_9_in_a_transaction_leaves_the_previous_state(url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
    with storage.open_database(url, busy_timeout=60.0) as database, database.unit_of_work() as unit:
        assert unit.states.latest("r") == (1, b"committed")
        assert unit.audit.verify("r").count == 0


def test_what_was_committed_outlives_the_server(
    opened: storage.Database, server: Server, name: str
) -> None:
    """Killed as by a power cut, with connections open."""
    fill(opened, rounds=2)
    kept = opened.verify_log()
    server.control("-m", "immediate", "restart")
    assert opened.verify_log([kept]) == kept
    with opened.unit_of_work() as unit:
        unit.audit.append("r", actor="a", action="b")
        unit.commit()
    assert opened.verify_log([kept]).size == kept.size + 1


def test_a_connection_that_ends_in_a_transaction_is_told_of(
    opened: storage.Database, server: Server, name: str
) -> None:
    with pytest.raises(storage.StorageError), opened.unit_of_work() as unit:
        unit.runs.set_status("r", "stopped")
        end_connections(server, name)
        unit.commit()
    with opened.unit_of_work() as unit:
        assert unit.runs.get("r").status == "running"


def test_another_database_in_its_place_is_noticed(
    server: Server, with_runs: str, tmp_path: Path
) -> None:
    name = server.new_database(with_runs)
    with storage.open_database(server.url(name, tmp_path)) as database:
        server.drop(name)
        server.ask("postgres", f"CREATE DATABASE {name} OWNER sotto TEMPLATE {with_runs}")
        with pytest.raises(storage.DatabaseReplaced, match=name), database.unit_of_work() as unit:
            unit.runs.list()
    server.drop(name)


HANDLE, ENTRY = b"handle-of-somebody", b"words-of-somebody" * 1000


def test_values_are_in_no_message_and_no_log(
    opened: storage.Database, server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="sqlalchemy.engine")
    shown = ""
    for attempt in (
        lambda unit: unit.pool.add_generation("r", 0, [(HANDLE, ENTRY), (b"other", b"\0")]),
        lambda unit: unit.audit.query(actor="somebody"),
        lambda unit: unit.runs.create("somebody\0", **FACTS),
        lambda unit: unit.pool._rows.insert(*keyless()),
    ):
        with opened.unit_of_work() as unit:
            try:
                attempt(unit)
                end_connections(server, name)
                unit.commit()
            except storage.StorageError as error:
                shown += "".join(traceback.format_exception(error)[-1:])
    assert shown.count("database") >= 3
    assert "FROM audit" in caplog.text
    assert "somebody" not in shown + caplog.text


FACTS = {"name": "n", "config_json": "{}", "config_digest": "d", "versions_json": "{}"}


def keyless() -> tuple[Any, ...]:
    from storage.tables import Rounds

    row = {"run_id": "of-somebody", "round_number": 1, "attempt": 1, "document": "of somebody"}
    return Rounds, row


@pytest.mark.parametrize("text", ["nul\0", "\ud800"])
def test_a_text_that_no_server_holds_is_refused(opened: storage.Database, text: str) -> None:
    with pytest.raises(storage.InvalidRecordError), opened.unit_of_work() as unit:
        unit.runs.create(text, **FACTS)


def test_a_log_of_many_tiles_is_streamed(opened: storage.Database, url: str) -> None:
    fill(opened, rounds=60, clients=6)
    head = opened.verify_log()
    with past_opening(url) as other:
        assert other.verify_log([head]) == head
    assert head.size > 256 * 3

"""Rows that wait in memory for the end of a transaction: everybody there finds them all the same.

Each history of calls is played on rows that wait and on rows that SQLite is sent at once; what is
read on the way, what is undone, and the file in the end must be alike.
"""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage
from storage import client_files
from storage.client_files import WorkingRows
from storage.client_tables import Failures, Sessions
from storage.engine import BEGIN_WRITE, Statements
from storage.sealing import Rows

MOST_BYTES = 1 << 20
CLIENTS = ("a", "b")
RUNS = ("r", "s")


@pytest.fixture(autouse=True)
def less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_files, "MOST_BYTES", MOST_BYTES)


class Counted(sqlite3.Connection):
    """Remembers the statements it was sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.texts: list[str] = []

    def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
        self.texts.append(text)
        return super().execute(text, *values)

    def executemany(self, text: str, *values: Any) -> sqlite3.Cursor:
        self.texts.append(text)
        return super().executemany(text, *values)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Counted]:
    storage.open_client_stores(tmp_path / "stores.db", CLIENTS)
    with closing(sqlite3.connect(tmp_path / "stores.db", factory=Counted)) as opened:
        opened.isolation_level = None
        yield opened


@pytest.fixture
def told(connection: Counted) -> Statements:
    return Statements(lambda: connection, "stores.db")


def failure(client: str, run: str, number: int, reason: str = "why") -> dict[str, Any]:
    key = {"client": client, "run_id": run, "round_number": number, "attempt": 1}
    return {**key, "reason": reason}


def session(client: str, number: int, state: bytes = b"") -> dict[str, Any]:
    place = {"round_number": number, "attempt": 1, "noiseless_round": 0}
    return {"client": client, "run_id": "r", **place, "state": state}


def contents(rows: Rows) -> list[Any]:
    return sorted(row for client in CLIENTS for row in rows.read(Failures, {"client": client}))


def play(rows: Rows, call: tuple[Any, ...]) -> Any:
    """Do one call, and return what it answers."""
    name, client, run, number, reason = call
    start = {"client": client, "run_id": run}
    if name == "insert":
        try:
            return rows.insert(Failures, failure(client, run, number, reason))
        except storage.AlreadyExistsError:
            return "exists"
    if name == "put":
        return rows.put(Failures, failure(client, run, number, reason))
    if name == "clear":
        return rows.delete(Failures, start)
    if name == "delete":
        return rows.delete(Failures, {**start, "round_number": number, "attempt": 1})
    if name == "swap":
        before = failure(client, run, number, "why")
        return rows.swap(Failures, before, failure(client, run, number, reason))
    if name == "update":
        return rows.update(Failures, start, reason=reason)
    where = {"client": client} if name == "read all" else start
    return sorted(rows.read(Failures, where, order=("round_number",)))


CALL = st.tuples(
    st.sampled_from(
        ("insert", "put", "clear", "delete", "swap", "update", "read", "read all", "insert")
    ),
    st.sampled_from(CLIENTS),
    st.sampled_from(RUNS),
    st.integers(1, 2),
    st.sampled_from(("why", "or not")),
)
BLOCKS = st.lists(st.tuples(st.lists(CALL, max_size=6), st.booleans()), max_size=5)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(CALL, max_size=5), BLOCKS, st.booleans())
def test_a_history_is_the_same_as_if_nothing_had_waited(told, before, blocks, together):
    ends = []
    for waits in (False, True):
        told.run(BEGIN_WRITE)
        told.run("DELETE FROM failures")
        plain = Rows(told)
        answers = [play(plain, call) for call in before]
        rows = WorkingRows(told, CLIENTS if together else ()) if waits else plain
        for calls, fails in blocks:
            answers.append(_block(rows, calls, fails=fails))
        if isinstance(rows, WorkingRows):
            answers.append(contents(rows))
            rows.flush()
        else:
            answers.append(contents(rows))
        answers.append(contents(Rows(told)))
        told.run("ROLLBACK")
        ends.append(answers)
    assert ends[0] == ends[1]


def _block(rows: Rows, calls: list[tuple[Any, ...]], *, fails: bool) -> list[Any]:
    """Play calls that are undone if they fail: by a savepoint, or as rows that wait do it."""
    answers: list[Any] = []
    if not isinstance(rows, WorkingRows):
        rows.statements.run("SAVEPOINT one")
        answers += [play(rows, call) for call in calls]
        if fails:
            rows.statements.run("ROLLBACK TO one")
        rows.statements.run("RELEASE one")
        return answers
    try:
        with rows.undone_together():
            answers += [play(rows, call) for call in calls]
            if fails:
                raise KeyError
    except KeyError:
        pass
    return answers


def test_one_statement_writes_what_all_clients_changed(connection, told):
    told.run(BEGIN_WRITE)
    rows = WorkingRows(told, CLIENTS)
    for client in CLIENTS:
        rows.read(Sessions, {"client": client, "run_id": "r"})
        rows.insert(Sessions, session(client, 1))
    sent = len(connection.texts)
    assert [text for text in connection.texts if text.startswith("INSERT")] == []
    rows.flush()
    assert len(connection.texts) == sent + 1
    assert len(Rows(told).read(Sessions, {"run_id": "r"})) == 2


def test_a_deletion_by_other_columns_finds_rows_that_wait(told: Statements) -> None:
    told.run(BEGIN_WRITE)
    rows = WorkingRows(told, CLIENTS)
    rows.read(Sessions, {"client": "a", "run_id": "r"})
    rows.insert(Sessions, session("a", 1))
    rows.delete(Sessions, {"round_number": 1})
    rows.flush()
    assert Rows(told).read(Sessions, {"run_id": "r"}) == []


def test_a_statement_that_fails_names_the_file(told: Statements) -> None:
    with pytest.raises(storage.StorageError, match=r"stores\.db"):
        told.count("DELETE FROM nothing")


def test_what_one_client_reads_is_read_for_all(connection, told):
    rows = WorkingRows(told, CLIENTS)
    for asked, run in enumerate(("r", "s", "t"), 1):
        for client in CLIENTS:
            assert rows.read(Sessions, {"client": client, "run_id": run}) == []
        assert len(connection.texts) == asked
    # Wrong guesses cost no more than three: the next question of that length is one client's.
    for client in CLIENTS:
        assert rows.read(Sessions, {"client": client, "run_id": "u"}) == []
    assert len(connection.texts) == 5


def test_rows_are_checked_however_they_are_read(connection, told):
    Rows(told).insert(Sessions, session("a", 1), session("b", 1))
    connection.execute("UPDATE sessions SET round_number = 2 WHERE client = 'b'")
    with pytest.raises(storage.DatabaseDamaged, match=r"table sessions of run 'r'.*store 'b'"):
        WorkingRows(told, CLIENTS).read(Sessions, {"client": "a", "run_id": "r"})


def test_more_than_fits_into_memory_is_written_before_the_next_client(told: Statements) -> None:
    told.run(BEGIN_WRITE)
    rows = WorkingRows(told)
    with rows.undone_together():
        rows.insert(Sessions, session("a", 1, bytes(MOST_BYTES + 1)))
    with pytest.raises(KeyError), rows.undone_together():
        rows.insert(Sessions, session("b", 1))
        raise KeyError
    (kept,) = Rows(told).read(Sessions, {"run_id": "r"})
    assert kept.client == "a" and rows.read(Sessions, {"client": "b"}) == []
    told.run("ROLLBACK")


def test_what_may_be_undone_is_never_sent(told: Statements) -> None:
    rows = WorkingRows(told)
    with pytest.raises(RuntimeError, match="undone"), rows.undone_together():
        rows.insert(Sessions, session("a", 1))
        rows.column(Sessions, "client", {})


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_cannot_be_undone_any_more_is_not_kept(told: Statements, is_deleted: bool) -> None:
    """Outside of a block rows that were written over, or deleted, are nobody's any more."""
    rows, size, times = WorkingRows(told), 1 << 20, 8
    told.run(BEGIN_WRITE)
    tracemalloc.start()
    try:
        for number in range(times):
            place = session("a", 1, bytes([number]) * size)
            rows.put(Sessions, place)
            if is_deleted:
                rows.delete(Sessions, {"client": "a", "run_id": "r"})
        rows.flush()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One may still be named by a variable of this loop.
    assert held < 3 * size


@pytest.mark.parametrize("asked", [{"client": "a"}, {"client": "a", "run_id": "r"}])
def test_what_was_known_of_a_deletion_is_forgotten_with_it(told, asked):
    Rows(told).insert(Failures, failure("a", "r", 1))
    rows = WorkingRows(told)
    with pytest.raises(KeyError), rows.undone_together():
        rows.delete(Failures, {"client": "a", "run_id": "r"})
        assert rows.read(Failures, asked) == []
        raise KeyError
    assert len(rows.read(Failures, asked)) == 1


def test_no_more_is_read_for_others_than_there_is_room_for(connection, told):
    told.run(BEGIN_WRITE)
    many = [f"c{i:03d}" for i in range(60)]
    states = (session(c, 1, bytes(MOST_BYTES // 24)) for c in many)
    Rows(told).insert(Sessions, *states)
    rows = WorkingRows(told, many)
    connection.texts.clear()
    for client in many:
        with rows.undone_together():
            (found,) = rows.read(Sessions, {"client": client, "run_id": "r"})
        assert found.client == client
    # 25 at once, which is more than there is room for; the others, and those forgotten, alone.
    assert len(connection.texts) == 60
    told.run("ROLLBACK")

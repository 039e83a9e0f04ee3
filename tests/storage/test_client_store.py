"""A client's own store and its sessions: what it keeps, erases, and gives out once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import storage

MakeRow = Callable[..., storage.LedgerRow]


def put(store: storage.ClientStore, round_number: int, attempt: int = 0) -> None:
    text = f"{round_number}.{attempt}".encode()
    store.put_pending("r", round_number, attempt, personal=b"p" + text, experts=b"e" + text)


def test_identity_is_drawn_once(file: Path) -> None:
    first = storage.open_client_store(file).identity
    assert storage.open_client_store(file).identity == first
    assert len(first.handle_secret) == 32
    assert len(first.pseudonym) == 32
    assert repr(first.handle_secret) not in repr(first)


def test_a_given_pseudonym_must_match(file: Path) -> None:
    assert storage.open_client_store(file, pseudonym="client-3").identity.pseudonym == "client-3"
    assert storage.open_client_store(file).identity.pseudonym == "client-3"
    with pytest.raises(storage.InvalidRecordError, match="belongs to 'client-3'"):
        storage.open_client_store(file, pseudonym="client-4")


@pytest.mark.parametrize(
    ("kept", "last", "committed"),
    [
        ([], (0, 0), "0.0"),
        ([(1, 2)], (1, 2), "1.2"),
        # A new one takes the place of the old.
        ([(1, 0), (1, 1)], (1, 1), "1.1"),
        ([(1, 0)], (0, 0), "0.0"),
        ([(1, 0)], (1, 1), "0.0"),
        ([(1, 0)], (3, 0), "0.0"),
    ],
)
def test_what_is_pending_is_committed_or_goes_back(store, kept, last, committed):
    put(store, 0)
    assert store.slots("r")[1] == (0, 0, b"p0.0", b"e0.0")
    assert store.slots("r")[0] is None
    store.roll("r", (0, 0))
    for key in kept:
        put(store, *key)
    for _ in range(2):
        store.roll("r", last)
        (number, attempt), text = map(int, committed.split(".")), committed.encode()
        assert store.slots("r")[0] == (number, attempt, b"p" + text, b"e" + text)
        assert store.slots("r")[1] is None


def test_runs_are_apart_and_may_go_back_to_nothing(store: storage.ClientStore) -> None:
    store.roll("r", (4, 0))
    put(store, 0)
    store.roll("r", None)
    assert (store.slots("r")[1], store.slots("r")[0]) == (None, None)
    put(store, 0)
    store.put_pending("other", 0, 0, personal=b"o", experts=b"")
    store.roll("r", (0, 0))
    assert store.slots("other")[1] == (0, 0, b"o", b"")
    assert store.slots("other")[0] is None


@pytest.mark.parametrize("last", [None, (0, 5), (1, 0)])
def test_a_coordinator_from_the_past_is_noticed(store, last):
    put(store, 1, 1)
    store.roll("r", (1, 1))
    put(store, 2)
    with pytest.raises(storage.ClientAheadError, match="round 1, attempt 1"):
        store.roll("r", last)
    assert store.slots("r")[0] == (1, 1, b"p1.1", b"e1.1")
    assert store.slots("r")[1] == (2, 0, b"p2.0", b"e2.0")


@pytest.mark.parametrize("key", [(1, 1), (1, 0), (0, 9)])
def test_pending_is_newer_than_committed(store: storage.ClientStore, key: tuple[int, int]) -> None:
    put(store, 1, 1)
    store.roll("r", (1, 1))
    with pytest.raises(storage.InvalidRecordError, match="is not newer"):
        put(store, *key)


def test_one_payload_per_attempt_and_channel(store: storage.ClientStore, make_row: MakeRow) -> None:
    with pytest.raises(storage.InvalidRecordError, match="standard_deviation"):
        store.reserve_release(make_row(standard_deviation=-1.0), payload=b"noised")
    assert store.rows() == ()
    assert store.reserve_release(make_row(), payload=b"noised") == "reserved"
    assert store.reserve_release(make_row(), payload=b"noised") == "resend"
    with pytest.raises(storage.ReleaseRefusedError, match="needs a new attempt"):
        store.reserve_release(make_row(), payload=b"noised again")
    assert store.rows() == (make_row(),)
    for changes in ({"attempt": 1}, {"round_number": 2}, {"channel": "pool"}, {"run_id": "s"}):
        assert store.reserve_release(make_row(**changes), payload=b"other") == "reserved"
    assert len(store.rows()) == 5
    assert store.rows("s") == (make_row(run_id="s"),)


@pytest.mark.parametrize(
    "changes",
    [
        *({"standard_deviation": 9.0}, {"pseudonym": "bob"}, {"relation": "add_or_remove"}),
        *({"count": 301}, {"shares": 8}, {"cohort_drawn": True}, {"sampling_probability": 0.5}),
    ],
)
def test_a_resend_has_the_same_facts(store, make_row, full, changes):
    store.reserve_release(make_row(**full), payload=b"noised")
    with pytest.raises(storage.ReleaseRefusedError):
        store.reserve_release(make_row(**(full | changes)), payload=b"noised")
    assert store.rows() == (make_row(**full),)


def test_a_row_of_the_store_holds_every_fact(file, store, make_row, full):
    rows = (make_row(**full), make_row(round_number=2))
    for row in rows:
        assert store.reserve_release(row, payload=b"noised") == "reserved"
    assert storage.open_client_store(file).rows() == rows
    assert type(store.rows()[0].cohort_drawn) is bool
    assert store.reserve_release(rows[0], payload=b"noised") == "resend"


def test_tombstones_outlive_settling(store: storage.ClientStore, make_row: MakeRow) -> None:
    store.reserve_release(make_row(), payload=b"noised")
    store.set_status("r", 1, 0, "aborted")
    assert [row.status for row in store.rows("r")] == ["aborted"]
    assert store.reserve_release(make_row(), payload=b"noised") == "resend"
    with pytest.raises(storage.ReleaseRefusedError):
        store.reserve_release(make_row(), payload=b"fresh noise")
    with pytest.raises(storage.InvalidTransitionError):
        store.set_status("r", 1, 0, "released")
    with pytest.raises(storage.NotFound):
        store.set_status("r", 7, 0, "released")


def test_old_personal_state_is_erased(file: Path, store: storage.ClientStore) -> None:
    store.put_pending("r", 0, 0, personal=b"OLD-PERSONAL" * 1000, experts=b"OLD-EXPERTS")
    store.roll("r", (0, 0))
    assert b"OLD-PERSONAL" in file.read_bytes()
    store.put_pending("r", 1, 0, personal=b"new" * 1000, experts=b"new")
    store.roll("r", (1, 0))
    assert b"OLD-PERSONAL" not in file.read_bytes()


def test_two_threads_may_use_one_store(store: storage.ClientStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            list(pool.map(lambda _: store.failures("r"), range(8)))


def test_blocks_of_two_stores_may_be_nested(tmp_path: Path) -> None:
    one, two = (storage.open_client_store(tmp_path / f"{name}.db") for name in "ab")
    with one.kept_open():
        put(one, 1)
        with two.kept_open():
            put(two, 2)
            put(one, 3)
        put(one, 4)
    found = []
    for name in "ab":
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            found.append(connection.execute("select round_number from personal").fetchall())
    assert found == [[(4,)], [(2,)]]


def test_noise_that_was_drawn_follows_no_commit(store: storage.ClientStore) -> None:
    """The personal part of an attempt that came to nothing goes back; its noise never does."""
    assert store.noise("r") == b""
    for attempt in (1, 2):
        with store.atomically():
            store.put_pending("r", 1, attempt, personal=b"own", experts=b"")
            store.put_noise("r", b"%d" % attempt)
        store.roll("r", None)
        assert (store.slots("r")[1], store.noise("r")) == (None, b"%d" % attempt)
    assert store.noise("another") == b""
    store.erase_run("r")
    assert store.noise("r") == b""


def test_a_store_that_came_back_starts_its_noise_anew(store: storage.ClientStore) -> None:
    store.put_noise("r", b"drawn")
    store.restoring.mark(datetime(2026, 11, 22, tzinfo=UTC))
    assert store.noise("r") == b""


RUN = "a-run"
FIRST = storage.SessionRecord(RUN, 2, 1, 1, b"a state")


def keep(
    store: storage.ClientStore,
    record: storage.SessionRecord,
    *,
    request: bytes = b"d" * 32,
    reply: bytes = b"a reply",
) -> None:
    after = store.sessions.newest(record.run_id)
    store.sessions.keep(record, after=after, request_digest=request, reply=reply)


def test_a_session_outlives_its_process(file: Path, store: storage.ClientStore) -> None:
    keep(store, FIRST)
    keep(store, replace(FIRST, run_id="other", round_number=7), reply=b"another")
    again = storage.open_client_store(file).sessions
    assert again.newest(RUN) == FIRST
    assert (again.reply(RUN, b"d" * 32), again.reply("other", b"d" * 32)) == (
        b"a reply",
        b"another",
    )


def test_every_reply_of_an_attempt_is_kept_until_the_next(store: storage.ClientStore) -> None:
    keep(store, FIRST, request=b"1" * 32, reply=b"one")
    keep(store, replace(FIRST, state=b"further"), request=b"2" * 32, reply=b"two")
    assert store.sessions.reply(RUN, b"1" * 32) == b"one"
    assert store.sessions.reply(RUN, b"2" * 32) == b"two"
    keep(store, replace(FIRST, attempt=2), request=b"3" * 32, reply=b"three")
    assert store.sessions.reply(RUN, b"1" * 32) is None
    assert store.sessions.reply(RUN, b"3" * 32) == b"three"


@pytest.mark.parametrize("older", [(1, 9, 1), (2, 0, 1), (2, 1, 0), (2, 2, 0), (3, 1, 0)])
def test_a_session_never_goes_back(store: storage.ClientStore, older: tuple[int, int, int]) -> None:
    keep(store, FIRST)
    round_number, attempt, noiseless = older
    with pytest.raises(storage.InvalidRecordError, match="older"):
        keep(
            store,
            replace(FIRST, round_number=round_number, attempt=attempt, noiseless_round=noiseless),
        )
    assert store.sessions.newest(RUN) == FIRST


@pytest.mark.parametrize("is_first", [True, False])
def test_two_processes_of_a_client_do_not_both_answer(file, store, is_first):
    """Both made an answer from the same state; whoever is second must not send it."""
    other = storage.open_client_store(file)
    if not is_first:
        keep(store, FIRST)
    known = other.sessions.newest(RUN)
    keep(store, replace(FIRST, state=b"one way"), request=b"1" * 32)
    with pytest.raises(storage.SessionMovedError):
        other.sessions.keep(
            replace(FIRST, state=b"the other way"),
            after=known,
            request_digest=b"2" * 32,
            reply=b"another reply",
        )
    assert other.sessions.reply(RUN, b"2" * 32) is None
    assert other.sessions.newest(RUN) == replace(FIRST, state=b"one way")


def test_a_forgotten_session_leaves_its_number_and_no_secret(file, store):
    secret, reply = bytes(range(256)) * 40, bytes(reversed(range(256))) * 40
    keep(store, replace(FIRST, state=secret), reply=reply)
    assert secret[:300] in file.read_bytes() and reply[:300] in file.read_bytes()
    store.sessions.forget(RUN)
    assert store.sessions.newest(RUN) == storage.SessionRecord(RUN, 2, 1, 1)
    assert store.sessions.reply(RUN, b"d" * 32) is None
    assert secret[:300] not in file.read_bytes() and reply[:300] not in file.read_bytes()


def test_a_block_is_kept_whole_or_not_at_all(store: storage.ClientStore) -> None:
    with pytest.raises(KeyError), store.atomically():
        keep(store, FIRST)
        store.put_noise(RUN, b"drawn")
        store.put_pending(RUN, 2, 1, personal=b"p", experts=b"")
        raise KeyError
    assert store.sessions.newest(RUN) is None
    assert store.slots(RUN)[1] is None
    assert store.noise(RUN) == b""
    with store.atomically():
        with store.atomically():
            keep(store, FIRST)
        store.put_pending(RUN, 2, 1, personal=b"p", experts=b"")
        assert store.slots(RUN)[1] is not None
    assert store.sessions.newest(RUN) == FIRST
    assert store.slots(RUN)[1] == (2, 1, b"p", b"")


def test_failures_are_kept_by_attempt(store: storage.ClientStore) -> None:
    store.add_failure(RUN, 2, 1, reason="FloatingPointError in client_update")
    store.add_failure(RUN, 1, 1, reason="ValueError in client_update")
    store.add_failure(RUN, 2, 1, reason="the update is not finite")
    assert [(f.round_number, f.attempt, f.reason) for f in store.failures(RUN)] == [
        (1, 1, "ValueError in client_update"),
        (2, 1, "the update is not finite"),
    ]
    assert store.failures("other") == ()


def test_an_older_enrolment_file_is_refused(file: Path, store: storage.ClientStore) -> None:
    store.remember_serial(3)
    store.remember_serial(3)
    store.remember_serial(5)
    with pytest.raises(storage.InvalidRecordError, match="serial 4"):
        storage.open_client_store(file).remember_serial(4)

"""A client's sessions: they go forward only, are erased when asked, and join other writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import storage

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


def test_two_processes_of_a_client_do_not_both_answer(file, store):
    """Both made an answer from the same state; whoever is second must not send it."""
    other = storage.open_client_store(file)
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
    assert store.pending(RUN) is None
    assert store.noise(RUN) == b""
    with store.atomically():
        with store.atomically():
            keep(store, FIRST)
        store.put_pending(RUN, 2, 1, personal=b"p", experts=b"")
        assert store.pending(RUN) is not None
    assert store.sessions.newest(RUN) == FIRST
    assert store.pending(RUN) == (2, 1, b"p", b"")


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

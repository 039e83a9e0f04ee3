"""A client's sessions: they go forward only, are erased when asked, and join other writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import storage

RUN = "a-run"
FIRST = storage.SessionRecord(RUN, 2, 1, 1, b"d" * 32, b"a reply", b"a state")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "c.db"


@pytest.fixture
def store(file: Path) -> storage.ClientStore:
    return storage.open_client_store(file)


def test_none_before_the_first_attempt(store: storage.ClientStore) -> None:
    assert store.sessions.newest(RUN) is None


def test_a_session_outlives_its_process(file: Path, store: storage.ClientStore) -> None:
    store.sessions.keep(FIRST)
    store.sessions.keep(replace(FIRST, run_id="other", round_number=7))
    assert storage.open_client_store(file).sessions.newest(RUN) == FIRST


@pytest.mark.parametrize("older", [(1, 9, 1), (2, 0, 1), (2, 1, 0)])
def test_a_session_never_goes_back(store: storage.ClientStore, older: tuple[int, int, int]) -> None:
    store.sessions.keep(FIRST)
    round_number, attempt, noiseless = older
    with pytest.raises(storage.InvalidRecordError, match="older"):
        store.sessions.keep(
            replace(FIRST, round_number=round_number, attempt=attempt, noiseless_round=noiseless)
        )
    assert store.sessions.newest(RUN) == FIRST


def test_a_forgotten_session_leaves_its_number_and_no_secret(
    file: Path, store: storage.ClientStore
) -> None:
    secret = bytes(range(256)) * 40
    store.sessions.keep(replace(FIRST, state=secret))
    assert secret[:300] in file.read_bytes()
    store.sessions.forget(RUN)
    assert store.sessions.newest(RUN) == storage.SessionRecord(RUN, 2, 1, 1)
    assert secret[:300] not in file.read_bytes()


def test_a_block_is_kept_whole_or_not_at_all(store: storage.ClientStore) -> None:
    with pytest.raises(KeyError), store.atomically():
        store.sessions.keep(FIRST)
        store.put_pending(RUN, 2, 1, personal=b"p", experts=b"")
        raise KeyError
    assert store.sessions.newest(RUN) is None
    assert store.pending(RUN) is None
    with store.atomically():
        store.sessions.keep(FIRST)
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
    with pytest.raises(storage.InvalidRecordError, match="serial 4, but this client has used 5"):
        storage.open_client_store(file).remember_serial(4)

"""A stage: what all clients of a file write in it is durable together, and nobody's alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import storage
from tests.storage._filling import ROW

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("client-0", "client-1", "client-2")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "stores.db"


@pytest.fixture
def opened(file: Path) -> storage.ClientStores:
    return storage.open_client_stores(file, NAMES)


def release(store: storage.ClientStore, payload: bytes = b"noised") -> str:
    return store.reserve_release(ROW, payload=payload)


def ledgers(file: Path) -> list[str]:
    """Whose rows another process finds."""
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT client FROM ledger UNION ALL SELECT client FROM tombstones ORDER BY 1"
        return [client for (client,) in connection.execute(query)]


def test_all_is_durable_at_its_end_and_nothing_before(file, opened):
    with opened.stage():
        for store in opened.stores.values():
            with store.kept_open():
                release(store)
            assert ledgers(file) == []
    assert ledgers(file) == sorted(2 * NAMES)


def test_a_block_that_fails_on_a_kept_connection_leaves_no_transaction(file, opened):
    first = opened.stores[NAMES[0]]
    with first.kept_open():
        with pytest.raises(KeyError), first.atomically():
            release(first, b"undone")
            raise KeyError
        release(first)
    assert ledgers(file) == [NAMES[0]] * 2


def test_a_client_that_fails_undoes_its_own_writes_only(file, opened):
    first, second, third = opened.stores.values()
    with opened.stage():
        # Outside of a block a call may fail half way as well.
        with pytest.raises(KeyError), first.atomically():
            release(first, b"undone")
            raise KeyError
        with first.kept_open():
            release(first)
        with pytest.raises(KeyError), second.kept_open():
            with second.atomically():
                release(second)
            second.add_failure("r", 1, 1, reason="it failed")
            raise KeyError
        assert second.rows() == () and second.failures("r") == ()
        with third.kept_open():
            release(third)
    assert ledgers(file) == sorted([NAMES[0], NAMES[0], NAMES[2], NAMES[2]])
    assert release(second, b"other bytes") == "reserved"


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_before_the_commit_means_that_nobody_has_answered(file: Path, after: bool) -> None:
    code = f"""
import os, signal, sys
import storage
from tests.storage._filling import ROW
opened = storage.open_client_stores(sys.argv[1], {NAMES!r})
with opened.stage():
    for store in opened.stores.values():
        with store.kept_open():
            store.reserve_release(ROW, payload=b"noised")
    if not {after}:
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    opened = storage.open_client_stores(file, NAMES)
    answers = (
        [release(store, b"other bytes") for store in opened.stores.values()] if not after else []
    )
    assert answers == ["reserved"] * (0 if after else 3)
    for store in opened.stores.values():
        with pytest.raises(storage.ReleaseRefusedError):
            release(store, b"yet other bytes")


def test_a_file_that_is_lost_in_a_stage_keeps_nothing_and_says_so(file, opened):
    with pytest.raises(storage.DatabaseReplaced), opened.stage():
        release(next(iter(opened.stores.values())))
        file.unlink()


def test_another_threads_calls_wait_for_the_end_of_a_stage(file, opened):
    """What it wrote would be undone with the stage, after it was told that it is durable."""
    first, second, _ = opened.stores.values()
    done = threading.Event()

    def write() -> None:
        release(second)
        done.set()

    other = threading.Thread(target=write)
    with pytest.raises(KeyError), opened.stage():
        release(first)
        other.start()
        assert not done.wait(0.2)
        raise KeyError
    other.join()
    assert ledgers(file) == [NAMES[1]] * 2


def test_stores_of_one_file_reach_no_other(opened: storage.ClientStores) -> None:
    first, second, third = opened.stores.values()
    session = storage.SessionRecord("r", 1, 1, 0, b"state")
    for store, personal in ((first, b"mine"), (second, b"yours")):
        release(store, personal)
        store.put_pending("r", 1, 1, personal=personal, experts=b"")
        store.sessions.keep(session, after=None, request_digest=b"d" * 32, reply=personal)
    first.roll("r", (1, 1))
    first.release("r", 1, 1)
    first.sessions.forget("r")
    assert [row.status for row in first.rows()] == ["released"]
    assert [row.status for row in second.rows()] == ["reserved"]
    assert second.slots("r")[1] == (1, 1, b"yours", b"")
    assert second.sessions.newest("r") == session
    assert second.sessions.reply("r", b"d" * 32) == b"yours"
    assert (third.rows(), third.slots("r"), third.sessions.newest("r")) == ((), (None, None), None)


def test_identities_are_drawn_once_and_differ(file: Path, opened: storage.ClientStores) -> None:
    known = {name: store.identity for name, store in opened.stores.items()}
    assert len({own.pseudonym for own in known.values()}) == 3
    assert len({own.handle_secret for own in known.values()}) == 3
    more = storage.open_client_stores(file, (*NAMES, "client-3")).stores
    assert {name: more[name].identity for name in NAMES} == known
    assert list(more) == [*NAMES, "client-3"]
    again = storage.open_client_stores(file, read_only=True).stores
    assert {name: store.identity for name, store in again.items()} == {
        name: store.identity for name, store in more.items()
    }


def test_no_connection_outlives_a_stage(opened: storage.ClientStores) -> None:
    """So a process may be forked between two of them."""
    with opened.stage():
        release(next(iter(opened.stores.values())))
    names = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert not [name for name in names if "stores.db" in name]


def test_two_processes_stages_follow_one_another(file: Path, opened: storage.ClientStores) -> None:
    """Two runs on the same clients: a stage waits for the other's, and finds its rows."""
    inside, go_on, found = threading.Event(), threading.Event(), []
    other = storage.open_client_stores(file, NAMES)

    def second() -> None:
        inside.wait()
        go_on.set()
        with other.stage():
            found.extend(other.stores[NAMES[0]].rows())

    thread = threading.Thread(target=second)
    thread.start()
    with opened.stage():
        inside.set()
        go_on.wait()
        release(opened.stores[NAMES[0]])
    thread.join()
    assert found == [ROW]

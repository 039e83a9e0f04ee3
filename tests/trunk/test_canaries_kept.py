"""What is kept of canaries: their coins until the end, and their verdict after it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection

from platform.agreement.checking import faults_of
from platform.disk.opening import open_existing
from platform.errors import RunStopped
from platform.experiment.canaries import KEY_FILE
from platform.experiment.finishing import execute
from platform.parties.client import Client
from platform.rounds.observing import SilentObserver
from privacy.auditing import commitment_to
from tests.trunk._canaries import (
    AUDIT,
    CANARIES,
    CENTRAL,
    CLIENTS,
    KEY,
    details,
    fix_key,
    shown,
)
from tests.trunk._runs import (
    Crash,
    Finished,
    Storage,
    crash_at,
    opened,
)
from tests.trunk._tampering import edit, execute_and_rehash
from tests.trunk.conftest import MakeStorage


def test_a_run_that_was_killed_keeps_coins_and_bound(
    make_storage: MakeStorage, monkeypatch: pytest.MonkeyPatch
):
    fix_key(monkeypatch)
    whole = make_storage("canaries-whole").run(*CENTRAL, AUDIT)
    storage = make_storage("canaries-killed")
    with monkeypatch.context() as patch, opened(storage.create(*CENTRAL, AUDIT)) as simulation:
        # In the middle of round 2, a canary among those who have answered.
        crash_at(patch, Client, "_train", CLIENTS + CANARIES + 20, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    # Whoever draws again would draw another one.
    fix_key(monkeypatch, bytes(32))
    run_id = storage.only_run()
    assert (storage.folder / run_id / KEY_FILE).read_text().strip() == KEY.hex()
    resumed = storage.resume(run_id)
    assert shown(resumed) == shown(whole)
    assert len(details(storage, "canaries.revealed")) == 1


def test_nobody_has_the_coins_before_the_end(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    fix_key(monkeypatch)
    with monkeypatch.context() as patch, opened(storage.create(*CENTRAL, AUDIT)) as simulation:
        crash_at(patch, Client, "_train", 2 * (CLIENTS + CANARIES), after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    run_id = storage.only_run()
    key_file = storage.folder / run_id / KEY_FILE

    def tells(needle: bytes) -> list[str]:
        files = [p for p in storage.folder.rglob("*") if p.is_file() and p != key_file]
        return [p.name for p in files if needle in p.read_bytes()]

    assert not tells(KEY)
    assert not tells(KEY.hex().encode())
    # The needle is one that would be found.
    assert tells(commitment_to(KEY).encode())
    storage.resume(run_id)
    assert tells(KEY.hex().encode())


@pytest.mark.parametrize("damage", ["missing", "another", "no key"])
def test_a_key_that_is_not_the_one_stops_the_run(
    damage: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch, opened(storage.create(*CENTRAL, AUDIT)) as simulation:
        crash_at(patch, Client, "_train", 60, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    run_id = storage.only_run()
    file = storage.folder / run_id / KEY_FILE
    if damage == "missing":
        file.unlink()
    else:
        file.write_text(KEY.hex() if damage == "another" else "heads")
    said = "is not the one whose SHA-256" if damage == "another" else "is missing or no key"
    with pytest.raises(RunStopped, match=said):
        storage.reopen(run_id)
    assert not details(storage, "canaries.revealed")


CHANGE = "UPDATE audit SET detail = replace(detail, ?, ?) WHERE action = ?"
FORGERIES = {
    "another bound": (
        ('"is_refuted":false', '"is_refuted":true', "canaries.revealed"),
        "what canaries showed is not what the audit log has",
    ),
    "another key": (
        (KEY.hex(), bytes(32).hex(), "canaries.revealed"),
        "is not the one that the run began with",
    ),
    "another promise": (
        (commitment_to(KEY), "0" * 64, "run.created"),
        "is not the one that the run began with",
    ),
    "no promise": (
        ('"canaries":"', '"canary":"', "run.created"),
        "commits to no key of canaries",
    ),
}


@pytest.fixture(scope="module")
def known(make_storage: MakeStorage) -> Finished:
    """A finished run whose key is known."""
    with pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        return make_storage("canaries-known").run(*CENTRAL, AUDIT)


@pytest.mark.parametrize("forgery", sorted(FORGERIES))
def test_a_verdict_that_was_changed_later_is_noticed(forgery: str, known: Finished, tmp_path: Path):
    """Also where the whole chain was made to fit it."""
    values, said = FORGERIES[forgery]
    folder = tmp_path / "copy"
    shutil.copytree(known.storage.folder, folder, symlinks=True)
    copy = Storage(folder)

    def change(connection: Connection) -> None:
        (before,) = connection.exec_driver_sql(
            "SELECT detail FROM audit WHERE action = ?", values[2:]
        ).one()
        connection.exec_driver_sql(CHANGE, values)
        (after,) = connection.exec_driver_sql(
            "SELECT detail FROM audit WHERE action = ?", values[2:]
        ).one()
        assert before != after

    edit(copy.file, change)
    execute_and_rehash(copy.file)
    with closing(open_existing(copy.url)) as database:
        _, faults = faults_of(database, known.run_id)
    assert any(said in str(fault) for fault in faults)

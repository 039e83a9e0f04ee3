"""Records of a run that were edited: report and `audit verify` say which, and resume stops."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from platform.agreement import read_records, require_agreement
from platform.agreement.ledgers import client_disagreements, read_own_ledgers
from platform.errors import RunStopped
from platform.experiment.finishing import execute as run_through
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from storage import open_database
from tests.trunk._runs import (
    OS,
    Answer,
    Command,
    Crash,
    Finished,
    Storage,
    crash_at,
    opened,
    stores_of,
)
from tests.trunk._tampering import execute


def verify(sotto: Command, storage: Storage, *arguments: str) -> Answer:
    return sotto("audit", "verify", *arguments, "--storage", storage.url)


EDITS = {
    "rows-deleted": (("DELETE FROM ledger WHERE round_number = 2",), "round 2"),
    "rows-aborted": (
        ("UPDATE ledger SET status = 'aborted' WHERE round_number = 2",),
        "is aborted",
    ),
    "one-row-deleted": (
        (
            "DELETE FROM ledger WHERE round_number = 2 AND channel = 'sum' AND pseudonym ="
            " (SELECT min(pseudonym) FROM ledger)",
        ),
        "4 rows of round 2, attempt 1, channel sum",
    ),
    "more-noise": (
        ("UPDATE ledger SET standard_deviation = 99.0 WHERE round_number = 2",),
        "standard_deviation is 99.0",
    ),
    "fewer-compositions": (("UPDATE ledger SET count = 2 WHERE round_number = 1",), "count"),
    "never-released": (
        ("UPDATE ledger SET status = 'reserved' WHERE round_number = 3",),
        "released rows of round 3",
    ),
    "other-attempt": (("UPDATE ledger SET attempt = 7 WHERE round_number = 3",), "attempt 7"),
    "other-client": (
        (
            "UPDATE ledger SET pseudonym = 'nobody' WHERE round_number = 1 AND pseudonym ="
            " (SELECT min(pseudonym) FROM ledger)",
        ),
        "round 1",
    ),
    "round-deleted": (("DELETE FROM rounds WHERE round_number = 2",), "round 2"),
    "last-round-deleted": (("DELETE FROM rounds WHERE round_number = 3",), "round 3"),
    "round-edited": (
        ("UPDATE rounds SET document = replace(document, '\"cohort\":5', '\"cohort\":6')",),
        "round 1: the SHA-256 of its document",
    ),
    "round-no-json": (("UPDATE rounds SET document = '{' WHERE round_number = 1",), ""),
    "attempt-edited": (("UPDATE rounds SET attempt = 2 WHERE round_number = 1",), "attempt is 2"),
    "states-deleted": (("DELETE FROM states",), "newest state is none"),
    "newest-state-deleted": (
        ("DELETE FROM states WHERE round_number = 3",),
        "newest state is of round 2",
    ),
    "state-edited": (
        ("UPDATE states SET blob = zeroblob(length(blob)) WHERE round_number = 3",),
        "state of round 3",
    ),
    "pool-thinned": (("DELETE FROM pool WHERE key = (SELECT min(key) FROM pool)",), "3 entries"),
    "pool-renumbered": (("UPDATE pool SET generation = 1",), "entries of round 1"),
    "config-edited": (
        ("UPDATE runs SET config_json = replace(config_json, '8.0', '9.0')",),
        "configuration",
    ),
    "config-no-json": (("UPDATE runs SET config_json = '['",), ""),
    "config-digest-edited": (("UPDATE runs SET config_digest = '0'",), "SHA-256"),
    "status-edited": (("UPDATE runs SET status = 'interrupted'",), "status is 'interrupted'"),
    "attempt-opened-again": (
        ("UPDATE attempts SET is_open = 1 WHERE round_number = 3",),
        "attempt 1 at round 3 is open",
    ),
    "audit-emptied": (("DELETE FROM audit",), "run.created"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_database_is_noticed(sotto: Command, own_copy: Finished, name: str) -> None:
    statements, said = EDITS[name]
    execute(own_copy.storage.file, *statements)
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and said in answer.err
    assert own_copy.run_id in answer.err and "Traceback" not in answer.err
    assert "entries hold" not in answer.out
    reported = sotto("report", "latest", "--storage", own_copy.storage.url)
    assert reported.code in (1, 3) and reported.out == ""
    assert reported.err.startswith("error: ") and reported.err.count("\n") == 1


OF_CLIENTS = {
    "rows-deleted": ("DELETE FROM ledger WHERE round_number = 2 AND", "own ledger"),
    "more-noise": (
        "UPDATE ledger SET standard_deviation = 99.0 WHERE",
        "standard_deviation is 99.0",
    ),
}


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_edited_client_store_is_noticed(sotto: Command, own_copy: Finished, name: str) -> None:
    statement, said = OF_CLIENTS[name]
    survivor = own_copy.survivors()[2][0]
    statement += f" client = '{survivor}'"
    execute(stores_of(own_copy.folder), statement, is_store=True)
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and said in answer.err and survivor in answer.err


def test_missing_client_store_is_noticed(sotto: Command, own_copy: Finished) -> None:
    file = stores_of(own_copy.folder)
    execute(file, "DELETE FROM identity WHERE client = 'client-00000'", is_store=True)
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and "a client's store is missing" in answer.err
    file.unlink()
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and "a client's store is missing" in answer.err


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, features: Path) -> tuple[Storage, str]:
    """A run with fresh noise that crashed in its third round, with two committed."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "cache").symlink_to(features, target_is_directory=True)
    storage = Storage(folder)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        with opened(storage.create(OS)) as simulation:
            crash_at(patch, Federation, "_commit", 3)
            run_through(simulation, SilentObserver())
    return storage, storage.only_run()


@pytest.fixture
def crashed(begun: tuple[Storage, str], tmp_path: Path) -> tuple[Storage, str]:
    """A copy of it that a test may damage."""
    folder = tmp_path / "crashed"
    shutil.copytree(begun[0].folder, folder, symlinks=True)
    return Storage(folder), begun[1]


RESUMED = {
    "attempt-forgotten": ("DELETE FROM attempts WHERE round_number = 3", "opened round 3"),
    "attempt-closed": ("UPDATE attempts SET is_open = 0 WHERE round_number = 3", "is closed"),
    "other-cohort": (
        "UPDATE attempts SET plan = json_remove(plan, '$.cohort[0]') WHERE round_number = 3",
        "cohort of its newest attempt",
    ),
    "open-rows-aborted": (
        "UPDATE ledger SET status = 'aborted' WHERE round_number = 3",
        "is aborted",
    ),
    "audit-edited": ("UPDATE audit SET actor = 'x' WHERE sequence = 4", "broken at entry 4"),
}


@pytest.mark.parametrize("name", RESUMED)
def test_run_with_edited_records_does_not_go_on(
    sotto: Command, crashed: tuple[Storage, str], name: str
) -> None:
    storage, run_id = crashed
    statement, said = RESUMED[name]
    execute(storage.file, statement)
    before = storage.rows("SELECT count(*) FROM audit"), storage.rows("SELECT * FROM ledger")
    answer = sotto("run", "--resume", run_id, "--storage", storage.url)
    assert answer.code in (1, 3) and run_id in answer.err and said in answer.err
    assert answer.err.count("\n") == 1
    after = storage.rows("SELECT count(*) FROM audit"), storage.rows("SELECT * FROM ledger")
    assert after == before


def test_what_a_client_sent_is_free_in_no_ledger(begun: tuple[Storage, str]) -> None:
    """An aborted row is charged to nobody, so it may be no upload that a client had made."""
    storage, run_id = begun
    with open_database(storage.url, read_only=True) as database:
        with database.unit_of_work(read_only=True) as uow:
            records = read_records(uow, run_id)
        config = require_agreement(database, run_id).config
    own = read_own_ledgers(config, storage.folder / run_id)
    client = next(one for one in own if any(row.round_number == 3 for row in one.rows))

    def told(row_status: str) -> list[str]:
        ledger = [
            replace(row, status=row_status) if row.round_number == 3 else row
            for row in records.ledger
        ]
        found = client_disagreements(replace(records, ledger=tuple(ledger)), own, records.rounds)
        return [text for text in found if "round 3" in text and f"of {client.client}'s" in text]

    assert "is aborted in the coordinator's" in told("aborted")[0]
    assert not any("is aborted" in text for text in told("reserved"))


def test_epsilon_cannot_be_lowered_by_what_the_coordinator_alone_keeps(
    sotto: Command, crashed: tuple[Storage, str]
) -> None:
    """Ledger, rounds, states and audit log cut back together: the clients remember still."""
    storage, run_id = crashed
    ((first,),) = storage.rows(
        "SELECT min(sequence) FROM audit WHERE round_number = 2 AND action = 'release.reserved'"
    )
    execute(
        storage.file,
        "DELETE FROM ledger WHERE round_number >= 2",
        "DELETE FROM rounds WHERE round_number >= 2",
        "DELETE FROM states WHERE round_number >= 2",
        "UPDATE pool SET generation = 1",
        "DELETE FROM stages WHERE round_number >= 2",
        "DELETE FROM attempts WHERE round_number >= 2",
        f"DELETE FROM audit WHERE sequence >= {first}",  # noqa: S608
    )
    answer = sotto("run", "--resume", run_id, "--storage", storage.url)
    assert answer.code == 1 and "own ledger is not in the coordinator's" in answer.err


def test_what_earlier_runs_spent_counts_only_if_their_records_agree(storage: Storage) -> None:
    """Clients with a budget for life are the same in every run, and so is what they have spent."""
    life = ("privacy.lifetime_budget=30.0", "rounds=1", "evaluation.local_twins=false")
    first = storage.run(*life)
    execute(storage.file, "UPDATE ledger SET standard_deviation = 99.0")
    with opened(storage.create(*life)) as simulation:
        with pytest.raises(RunStopped, match=f"{first.run_id}: .*standard_deviation is 99.0"):
            run_through(simulation, SilentObserver())
    assert storage.rows("SELECT 1 FROM ledger WHERE run_id != ?", first.run_id) == []


def test_a_run_is_read_while_it_goes_on(storage: Storage) -> None:
    """Its records agree at every moment, also between what clients write and what is committed."""
    seen = []

    class Reading(SilentObserver):
        def client_answered(self) -> None:
            with open_database(storage.url, read_only=True) as database:
                agreed = require_agreement(database, storage.only_run())
            seen.append(len(agreed.records.rounds))

    observer = Reading()
    with opened(storage.create(OS, "rounds=2", observer=observer)) as simulation:
        run_through(simulation, observer)
    assert set(seen) == {0, 1}

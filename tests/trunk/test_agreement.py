"""Records that were edited, erased or put back: report and `audit verify` say so, resume stops."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from platform.agreement import read_records, require_agreement
from platform.agreement.trail import client_disagreements, read_own_ledgers
from platform.config import parse_config
from platform.disk.log_files import document_digest
from platform.errors import RecordsDisagree, RunStopped
from platform.experiment.finishing import execute as run_through
from platform.experiment.planning import create_run
from platform.results.sweeping.running import read_summary
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from storage import open_database
from tests.trunk._runs import (
    NO_POOL,
    NONE,
    OS,
    Answer,
    Command,
    Finished,
    Storage,
    opened,
    slow,
    stores_of,
    warnings_of,
)
from tests.trunk._runs import crashed as crashed_run
from tests.trunk._tampering import edit_summary, execute, execute_and_rehash


def verify(sotto: Command, storage: Storage) -> Answer:
    return sotto("audit", "verify", "--storage", storage.url)


EDITS = {
    "one-row-deleted": (
        "DELETE FROM ledger WHERE round_number = 2 AND channel = 'sum' AND pseudonym ="
        " (SELECT min(pseudonym) FROM ledger)",
        "4 rows of round 2, attempt 1, channel sum",
    ),
    "more-noise": (
        "UPDATE ledger SET standard_deviation = 99.0 WHERE round_number = 2",
        "standard_deviation is 99.0",
    ),
    "never-released": (
        "UPDATE ledger SET status = 'reserved' WHERE round_number = 3",
        "released rows of round 3",
    ),
    "round-edited": (
        "UPDATE rounds SET document = replace(document, '\"cohort\":5', '\"cohort\":6')",
        "round 1: the SHA-256",
    ),
    "state-edited": (
        "UPDATE states SET blob = zeroblob(length(blob)) WHERE round_number = 3",
        "state of round 3",
    ),
    "pool-thinned": ("DELETE FROM pool WHERE key = (SELECT min(key) FROM pool)", "3 entries"),
    "config-edited": (
        "UPDATE runs SET config_json = replace(config_json, '8.0', '9.0')",
        "configuration",
    ),
    "audit-emptied": ("DELETE FROM audit", "run.created"),
}
MORE_EDITS = {
    "rows-deleted": ("DELETE FROM ledger WHERE round_number = 2", "round 2"),
    "rows-aborted": ("UPDATE ledger SET status = 'aborted' WHERE round_number = 2", "is aborted"),
    "fewer-compositions": ("UPDATE ledger SET count = 2 WHERE round_number = 1", "count"),
    "other-client": (
        "UPDATE ledger SET pseudonym = 'nobody' WHERE round_number = 1 AND pseudonym ="
        " (SELECT min(pseudonym) FROM ledger)",
        "round 1",
    ),
    "round-deleted": ("DELETE FROM rounds WHERE round_number = 2", "round 2"),
    "attempt-edited": ("UPDATE rounds SET attempt = 2 WHERE round_number = 1", "attempt is 2"),
    "newest-state-deleted": ("DELETE FROM states WHERE round_number = 3", "is of round 2"),
    "pool-renumbered": ("UPDATE pool SET generation = 1", "entries of round 1"),
    "config-digest-edited": ("UPDATE runs SET config_digest = '0'", "SHA-256"),
    "status-edited": ("UPDATE runs SET status = 'interrupted'", "status is 'interrupted'"),
    "attempt-opened-again": (
        "UPDATE attempts SET is_open = 1 WHERE round_number = 3",
        "attempt 1 at round 3",
    ),
}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        *(pytest.param(*edit, id=name) for name, edit in EDITS.items()),
        *(slow(*edit, id=name) for name, edit in MORE_EDITS.items()),
    ],
)
def test_edited_database_is_noticed(sotto, own_copy, statement, said):
    execute(own_copy.storage.file, statement)
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and said in answer.err
    assert own_copy.run_id in answer.err and "Traceback" not in answer.err
    assert "entries hold" not in answer.out
    reported = sotto("report", "latest", "--storage", own_copy.storage.url)
    assert reported.code in (1, 3) and reported.out == ""
    assert reported.err.startswith("error: ") and reported.err.count("\n") == 1


ONE_ROUND = (*NO_POOL, "rounds=1", "task.test_per_class=1")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("DELETE FROM ledger WHERE round_number = 2 AND", "own ledger"),
        ("UPDATE ledger SET standard_deviation = 99.0 WHERE", "standard_deviation is 99.0"),
    ],
)
def test_edited_client_store_is_noticed(sotto, own_copy, edit, said):
    survivor = own_copy.survivors()[2][0]
    execute(stores_of(own_copy.folder), f"{edit} client = '{survivor}'", is_store=True)
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and said in answer.err and survivor in answer.err


def test_missing_client_store_is_noticed(sotto: Command, own_copy: Finished) -> None:
    file = stores_of(own_copy.folder)
    execute(file, "DELETE FROM identity WHERE client = 'client-00000'", is_store=True)
    for damaged in (lambda: None, file.unlink):
        damaged()
        answer = verify(sotto, own_copy.storage)
        assert answer.code == 3 and "store is missing" in answer.err


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, features: Path) -> tuple[Storage, str]:
    """A run with fresh noise that crashed in its third round, with two committed."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "cache").symlink_to(features, target_is_directory=True)
    storage = Storage(folder)
    with pytest.MonkeyPatch.context() as patch:
        simulation = storage.create(OS, "task.test_per_class=1")
        return storage, crashed_run(patch, simulation, Federation, "_commit", 3)


@pytest.fixture
def crashed(begun: tuple[Storage, str], tmp_path: Path) -> tuple[Storage, str]:
    return begun[0].copied(tmp_path / "crashed"), begun[1]


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


@pytest.mark.parametrize(
    "name",
    [
        "attempt-forgotten",
        "open-rows-aborted",
        *map(slow, ("attempt-closed", "other-cohort", "audit-edited")),
    ],
)
def test_run_with_edited_records_does_not_go_on(sotto, crashed, name):
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

    def told(status: str) -> list[str]:
        third = [row.round_number == 3 for row in records.ledger]
        rows = zip(records.ledger, third, strict=True)
        ledger = [replace(row, status=status) if is_third else row for row, is_third in rows]
        found = client_disagreements(replace(records, ledger=tuple(ledger)), own, records.rounds)
        return [text for text in found if "round 3" in text and f"of {client.client}'s" in text]

    assert "is aborted in the coordinator's" in told("aborted")[0]
    assert not any("is aborted" in text for text in told("reserved"))


def test_epsilon_cannot_be_lowered_by_what_the_coordinator_alone_keeps(sotto, crashed):
    storage, run_id = crashed
    query = "SELECT min(sequence) FROM audit WHERE round_number = 2 AND action = ?"
    ((first,),) = storage.rows(query, "release.reserved")
    for table in ("ledger", "rounds", "states", "stages", "attempts"):
        execute(storage.file, f"DELETE FROM {table} WHERE round_number >= 2")  # noqa: S608
    audit = f"DELETE FROM audit WHERE sequence >= {first}"  # noqa: S608
    execute(storage.file, "UPDATE pool SET generation = 1", audit)
    answer = sotto("run", "--resume", run_id, "--storage", storage.url)
    assert answer.code == 1 and "own ledger is not" in answer.err


@pytest.mark.slow
def test_a_run_is_read_while_it_goes_on(storage: Storage) -> None:
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


def refused(sotto: Command, run: Finished, said: str) -> None:
    answer = sotto("report", run.run_id, "--storage", run.storage.url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: run {run.run_id}: ") and said in answer.err
    assert answer.err.count("\n") == 1
    verified = verify(sotto, run.storage)
    assert verified.code == 3 and said in verified.err


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda one: one["rounds"][1]["epsilon"].update(peers=0.1), "rounds[1].epsilon.peers is"),
        (lambda one: one["right_guesses"].update(peers=0.5), "right_guesses.peers is 0.5"),
    ],
)
def test_edited_summary_is_not_reported(sotto, own_copy, edit, said):
    edit_summary(own_copy, edit)
    refused(sotto, own_copy, said)
    chosen = ("--run", own_copy.run_id, "--head", own_copy.head)
    assert sotto("audit", "verify", *chosen, "--storage", own_copy.storage.url).code == 3


def test_every_file_of_a_finished_run_is_bound(sotto: Command, own_copy: Finished) -> None:
    report = ("report", "latest", "--storage", own_copy.storage.url)
    for name in ("summary.json", "metrics.csv", "metrics.jsonl", "config.yaml", "effective.yaml"):
        path = own_copy.folder / name
        whole = path.read_bytes()
        path.write_bytes(whole + b" ")
        assert name in sotto(*report).err
        path.write_bytes(whole)
    path.unlink()
    assert name in sotto(*report).err
    path.write_bytes(whole)
    assert sotto(*report).code == 0


def test_forged_summary_with_a_forged_entry_differs_from_the_ledger(sotto, own_copy):
    edit_summary(own_copy, lambda summary: summary["final"]["epsilon"].update(server=0.1))
    path = own_copy.folder / "summary.json"
    summary = json.loads(path.read_text())
    head = summary.pop("audit_head")
    forged = f"json_set(detail, '$.summary_sha256', '{document_digest(summary)}')"
    execute_and_rehash(
        own_copy.storage.file,
        f"UPDATE audit SET detail = {forged} WHERE action = 'run.finished'",  # noqa: S608
    )
    ((digest,),) = own_copy.storage.rows("SELECT hash FROM audit WHERE action = 'run.finished'")
    summary["audit_head"] = {**head, "hash": digest}
    path.write_text(json.dumps(summary, indent=2) + "\n")
    refused(sotto, own_copy, "final.epsilon.server is 0.1")
    # Nor does it stand in a sweep's table.
    with pytest.raises(RecordsDisagree, match=r"final\.epsilon\.server is 0\.1"):
        read_summary(own_copy.storage.url, own_copy.run_id, own_copy.storage.config())


@pytest.mark.slow
def test_unfinished_run_is_reported_with_what_weakens_its_claim(sotto, storage, monkeypatch):
    """An epsilon of seeded noise must not be read as one that protects, however far it has come."""
    asked = ("privacy.target_delta=0.3", *NO_POOL)
    run_id = crashed_run(monkeypatch, storage.create(*asked), Federation, "_commit", 2)
    document = sotto("report", run_id, "--storage", storage.url, "--json").document
    assert document["finished"] is False
    for text in ("it protects nobody", "above 1/clients"):
        assert any(text in warning for warning in document["warnings"])
    # In the words of the report that it has in the end, where the end is the planned one.
    so_far = {text for text in document["warnings"] if "planned attempts were charged" in text}
    assert len(so_far) == (document["stopping"] is not None)
    assert {*document["warnings"]} - so_far <= {*warnings_of(storage.resume(run_id).summary)}


@pytest.fixture(scope="module")
def two(make_storage: Callable[[str], Storage]) -> tuple[Storage, list[str]]:
    storage = make_storage("two")
    return storage, [storage.run(NONE, *ONE_ROUND).run_id for _ in range(2)]


def erase(storage: Storage, run_id: str, *, folder: bool) -> None:
    tables = ("stages", "attempts", "leaves", "audit", "ledger", "rounds", "states", "pool", "runs")
    for table in tables:
        if storage.rows(f"SELECT 1 FROM {table} WHERE run_id = ?", run_id):  # noqa: S608
            execute(storage.file, f"DELETE FROM {table} WHERE run_id = '{run_id}'")  # noqa: S608
    if folder:
        shutil.rmtree(storage.folder / run_id)


def test_erased_run_is_noticed_by_the_run_after_it(sotto, two, tmp_path):
    storage = two[0].copied(tmp_path / "copy")
    erase(storage, two[1][0], folder=True)
    answer = verify(sotto, storage)
    assert answer.code == 3 and f"run {two[1][0]}" in answer.err and "erased" in answer.err


def test_erased_newest_run_is_noticed_by_its_folder(sotto, two, tmp_path):
    storage = two[0].copied(tmp_path / "copy")
    erase(storage, two[1][1], folder=False)
    answer = sotto("audit", "verify", "--storage", storage.url, "--json")
    assert answer.code == 3
    of_folder, of_head = answer.document["problems"]
    assert two[1][1] in of_folder and "summary.json" in of_folder
    assert "a kept head" in of_head
    shutil.rmtree(storage.folder / two[1][1])
    answer = sotto("audit", "verify", "--storage", storage.url, "--json")
    assert (answer.code, answer.document["problems"]) == (3, [of_head])
    # Nothing here can tell of the newest run once the heads are gone as well, with their key; only
    # who kept one elsewhere can: SECURITY.md.
    for file in storage.folder.glob("sotto.audit.*"):
        file.unlink()
    assert verify(sotto, storage).code == 0


def test_cut_tail_of_an_older_run_is_noticed(sotto, two, tmp_path):
    storage = two[0].copied(tmp_path / "copy")
    ((last,),) = storage.rows("SELECT max(sequence) FROM audit WHERE run_id = ?", two[1][0])
    cut = f"DELETE FROM audit WHERE run_id = '{two[1][0]}' AND sequence = {last}"  # noqa: S608
    execute(storage.file, cut)
    answer = verify(sotto, storage)
    assert answer.code == 3 and f"run {two[1][0]}, which" in answer.err


def test_a_stray_folder_of_any_text_is_named(sotto, own_copy):
    folder = own_copy.storage.folder / "stray"
    folder.mkdir()
    (folder / "config.yaml").write_text("!!map x")
    (folder / "run.lock").touch()
    answer = verify(sotto, own_copy.storage)
    assert answer.code == 3 and "folder 'stray' has run.lock" in answer.err


LIFE = ("privacy.lifetime_budget=30.0", *ONE_ROUND)


@pytest.fixture(scope="module")
def lived(make_storage: Callable[[str], Storage]) -> tuple[Storage, Path, str]:
    """Two runs of the same clients, the folder as it was after the first, the second run's id."""
    storage = make_storage("lived")
    storage.run(*LIFE)
    older = storage.copied(storage.folder.with_name("older"))
    return storage, older.folder, storage.run(*LIFE).run_id


@pytest.fixture
def put_back(lived: tuple[Storage, Path, str], tmp_path: Path) -> tuple[Storage, str]:
    """The older database with its heads, and no trace of the second run but the clients' stores."""
    storage, older, second = lived
    copy = storage.copied(tmp_path / "copy")
    shutil.rmtree(copy.folder / second)
    for name in (copy.file.name, "sotto.audit.heads"):
        shutil.copy(older / name, copy.folder / name)
    return copy, second


def test_clients_remember_what_an_older_database_forgot(sotto, put_back):
    storage, second = put_back
    answer = verify(sotto, storage)
    assert answer.code == 3 and answer.err.count("\n") == 1
    assert f"have charges of run {second}, " in answer.err
    assert "an older copy" in answer.err


def test_what_earlier_runs_spent_counts_only_if_their_records_agree(lived, tmp_path):
    storage = lived[0].copied(tmp_path / "copy")
    changed = "UPDATE ledger SET standard_deviation = 99.0 WHERE run_id = "
    execute(storage.file, f"{changed}'{lived[2]}'")
    before = storage.rows("SELECT count(*) FROM ledger")
    with opened(storage.create(*LIFE)) as simulation:
        with pytest.raises(RunStopped, match=f"{lived[2]}: .*standard_deviation is 99.0"):
            run_through(simulation, SilentObserver())
    assert storage.rows("SELECT count(*) FROM ledger") == before


def test_stores_that_cannot_be_read_are_named(sotto, put_back):
    storage, second = put_back
    (store,) = (storage.folder / "clients").glob("*/stores.db")
    store.write_bytes(store.read_bytes()[:5_000])
    answer = verify(sotto, storage)
    assert answer.code == 3
    assert f"clients' stores clients/{store.parent.name}/stores.db: " in answer.err
    assert second not in answer.err


@pytest.mark.slow
def test_another_databases_run_in_the_same_folder_is_no_trace(sotto, lived, tmp_path):
    """Both share the clients; the run's own folder says whose it is."""
    folder = lived[0].copied(tmp_path / "copy").folder
    other = f"sqlite:///{folder / 'other.db'}"
    tree = lived[0].config(*LIFE).model_dump(mode="json")
    config = parse_config({**tree, "storage": {"url": other}})
    with opened(create_run(config, SilentObserver(), lived[0].surroundings)) as simulation:
        run_through(simulation, SilentObserver())
    known = f"sqlite:///{folder / lived[0].file.name}"
    assert sotto("audit", "verify", "--storage", known).code == 0
    (folder / simulation.run_id / "config.yaml").unlink()
    assert "have charges" in sotto("audit", "verify", "--storage", known).err

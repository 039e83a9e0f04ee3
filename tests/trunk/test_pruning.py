"""`runs --prune`: what is erased, what never is, and who is refused afterwards."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from platform.disk.files import only_process_of
from platform.disk.opening import open_existing
from platform.experiment import pruning
from tests.drawn._pictures import write_picture
from tests.trunk._dying import Plan, die
from tests.trunk._runs import NONE, SMALL, Command, Crash, Finished, Storage, crash_at
from tests.trunk.conftest import MakeStorage

TRAINING = Plan("privacy.training:LocalTrainer.fit", 10, False, signal.SIGKILL)
FOREVER = ("ledger", "audit", "leaves", "rounds", "attempts", "runs")
"""Tables of which no row is ever erased."""


@pytest.fixture(scope="module")
def dead(make_storage: MakeStorage) -> Storage:
    """The place of a run that was killed in its third round; for reading only."""
    storage = make_storage("killed")
    config = storage.folder / "small.yaml"
    config.write_text(SMALL)
    code, output = die(TRAINING, "run", str(config), "--set", NONE, "--storage", storage.url)
    assert code == -signal.SIGKILL, output
    return storage


@pytest.fixture
def storage(dead: Storage, tmp_path: Path) -> Storage:
    return Storage(Path(shutil.copytree(dead.folder, tmp_path / "runs", symlinks=True)))


@pytest.fixture
def killed(storage: Storage) -> str:
    return storage.only_run()


def counted(storage: Storage) -> dict[str, int]:
    return {
        table: storage.rows(f"SELECT count(*) FROM {table}")[0][0]  # noqa: S608
        for table in (*FOREVER, "states", "pool", "stages")
    }


def personal(storage: Storage, run_id: str) -> int:
    path = storage.folder / run_id / "clients" / "stores.db"
    opened = pruning.open_client_stores(path, read_only=True)
    return sum(any(store.slots(run_id)) for store in opened.stores.values())


def test_a_killed_run_reads_interrupted(sotto: Command, storage: Storage, killed: str) -> None:
    (row,) = sotto("runs", "--storage", storage.url, "--json").document
    assert (row["status"], row["pruned"], row["problem"]) == ("interrupted", False, None)
    with only_process_of(storage.folder / killed):
        (row,) = sotto("runs", "--storage", storage.url, "--json").document
        assert row["status"] == "running"
        answer = sotto("runs", killed, "--prune", "--yes", "--storage", storage.url)
    assert answer.code == 1 and "by another process" in answer.err
    assert storage.rows("SELECT status FROM runs") == [("running",)]


def test_it_names_what_goes_and_what_stays_is_all_that_was_spent(sotto, storage, killed):
    before, at = counted(storage), ("--storage", storage.url)
    budget = sotto("budget", killed, *at, "--json").document
    tried = sotto("runs", "--prune", "--dry-run", *at)
    assert tried.code == 0 and "nothing was erased" in tried.out
    for said in (f"- {killed} (running)", "the personal parts", "kept: ledgers"):
        assert said in tried.out
    assert counted(storage) == before and personal(storage, killed) > 0
    answer = sotto("runs", "--prune", "--yes", *at)
    assert answer.code == 0 and "pruned 1 run" in answer.out
    after = counted(storage)
    assert (after["states"], after["pool"], after["stages"]) == (0, 0, 0)
    added = {table: after[table] - before[table] for table in FOREVER}
    assert added == {**dict.fromkeys(FOREVER, 0), "audit": 1, "leaves": 1}
    assert personal(storage, killed) == 0
    assert sotto("budget", killed, *at, "--json").document["clients"] == budget["clients"]
    assert sotto("audit", "verify", *at).code == 0
    answer = sotto("run", "--resume", killed, *at)
    assert answer.code == 1 and "models were erased" in answer.err
    assert killed not in sotto("runs", *at).out
    assert "interrupted, pruned" in sotto("runs", "--all", *at).out
    assert "models were erased" in sotto("report", killed, *at).out
    assert "nothing to prune" in sotto("runs", "--prune", "--yes", *at).out


@pytest.mark.slow
def test_a_finished_run_is_pruned_by_name_only(sotto: Command, own_copy: Finished) -> None:
    storage, run_id = own_copy.storage, own_copy.run_id
    at = ("--storage", storage.url)
    assert "nothing to prune" in sotto("runs", "--prune", "--yes", *at).out
    found = sotto("runs", "latest", "--prune", "--yes", "--json", *at).document
    assert found["erased"] and [one["run_id"] for one in found["runs"]] == [run_id]
    assert sotto("audit", "verify", *at).code == 0
    report = sotto("report", run_id, "--json", *at).document
    assert report == own_copy.summary
    image = own_copy.folder.parent / "x.png"
    write_picture(image, 0, 0)
    for command in (("export", run_id), ("predict", run_id, str(image))):
        answer = sotto(*command, *at)
        assert answer.code == 1 and "models were erased" in answer.err


@pytest.mark.slow
def test_killed_half_way_it_says_so_and_the_rest_goes_the_next_time(
    sotto, storage, killed, monkeypatch
):
    at = ("--storage", storage.url)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, pruning, "_stores", 1)
        with open_existing(storage.url, read_only=False) as database:
            pruning.prune(database, killed)
    assert personal(storage, killed) > 0
    assert sotto("audit", "verify", *at).code == 0
    assert sotto("run", "--resume", killed, *at).code == 1
    assert "pruned 1 run" in sotto("runs", "--prune", "--yes", *at).out
    assert personal(storage, killed) == 0
    assert storage.rows("SELECT count(*) FROM audit WHERE action = 'run.pruned'") == [(1,)]


def test_evidence_is_not_erased_and_a_state_that_came_back_is_noticed(sotto, storage, killed):
    config, at = storage.folder / killed / "config.yaml", ("--storage", storage.url)
    right, kept = config.read_text(), storage.rows("SELECT * FROM states")
    config.write_text("name: another\n")
    answer = sotto("runs", "--prune", "--yes", *at)
    assert answer.code == 1 and "config.yaml is not" in answer.err
    assert storage.rows("SELECT * FROM states") == kept
    config.write_text(right)
    assert sotto("runs", "--prune", "--yes", *at).code == 0
    with closing(sqlite3.connect(storage.file)) as file, file:
        places = ", ".join("?" * len(kept[0]))
        file.execute(f"INSERT INTO states VALUES ({places})", kept[0])  # noqa: S608
    answer = sotto("audit", "verify", *at)
    assert answer.code != 0 and "models were erased" in answer.err


def test_who_does_not_ask_for_it_or_says_no_loses_nothing(sotto, own_copy, monkeypatch):
    for words, said in (
        (("--yes",), "--yes: means nothing"),
        (("latest",), "RUN: 'latest' means nothing"),
        (("--prune", "--json"), "--prune: cannot ask"),
    ):
        answer = sotto("runs", *words, "--storage", own_copy.storage.url)
        assert answer.code == 2 and said in answer.err
    asked: list[str] = []
    monkeypatch.setattr("platform.cli.keeping.can_be_asked", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text: asked.append(text))
    answer = sotto("runs", "latest", "--prune", "--storage", own_copy.storage.url)
    assert answer.code == 0 and "nothing was erased" in answer.out and len(asked) == 1
    assert counted(own_copy.storage)["states"] == 2

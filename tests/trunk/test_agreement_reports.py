"""What `report` refuses to print, unfinished and erased runs, and an older copy put back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from platform.bootstrap import create_run
from platform.config import parse_config
from platform.disk.log_files import document_digest
from platform.errors import RecordsDisagree
from platform.experiment import finishing
from platform.experiment.finishing import execute as run_through
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.sweeping.running import read_summary
from tests._chains import entry_hash
from tests.trunk._runs import (
    Command,
    Crash,
    Finished,
    Storage,
    crash_at,
    opened,
)
from tests.trunk._tampering import edit_summary, execute

ONE_ROUND = ("privacy.mechanism=none", "rounds=1", "evaluation.local_twins=false")


def refused(sotto: Command, run: Finished, *said: str) -> None:
    """Neither `report` nor `audit verify` lets it pass, and each says why in one sentence."""
    for as_json in ((), ("--json",)):
        answer = sotto("report", run.run_id, "--storage", run.storage.url, *as_json)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err.count("\n") == 1
        sentence = f"error: {json.loads(answer.err)['error']}" if as_json else answer.err
        assert sentence.startswith(f"error: run {run.run_id}: ")
        assert all(text in sentence for text in said)
    verified = sotto("audit", "verify", "--storage", run.storage.url)
    assert verified.code == 3 and all(text in verified.err for text in said)
    chosen = ("--run", run.run_id, "--head", run.head)
    assert sotto("audit", "verify", *chosen, "--storage", run.storage.url).code == 3


def set_final_epsilon(summary: dict[str, Any]) -> None:
    summary["final"]["epsilon"]["server"] = 0.1


def set_round_epsilon(summary: dict[str, Any]) -> None:
    summary["rounds"][1]["epsilon"]["peers"] = 0.1


def add_text(summary: dict[str, Any]) -> None:
    summary["method"] = "\x1b[2J"


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "epsilon": (set_final_epsilon, "final.epsilon.server is 0.1 there, but 7.99"),
    "epsilon-of-a-round": (set_round_epsilon, "rounds[1].epsilon.peers is 0.1 there"),
    "control-characters": (add_text, "summary.json"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_summary_is_not_reported(sotto: Command, own_copy: Finished, name: str) -> None:
    change, said = EDITS[name]
    edit_summary(own_copy, change)
    refused(sotto, own_copy, said)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff\xfe", b'{"audit_head": 3}', b"[" * 100_000, b'"\x1b"'],
    ids=["empty", "list", "no-text", "wrong-type", "nested", "escape"],
)
def test_summary_that_is_none_is_one_sentence(
    sotto: Command, own_copy: Finished, data: bytes
) -> None:
    (own_copy.folder / "summary.json").write_bytes(data)
    refused(sotto, own_copy, "summary.json")


def test_every_file_of_a_finished_run_is_bound(sotto: Command, own_copy: Finished) -> None:
    report = ("report", "latest", "--storage", own_copy.storage.url)
    for name in ("summary.json", "metrics.csv", "metrics.jsonl", "config.yaml", "effective.yaml"):
        path = own_copy.folder / name
        whole = path.read_bytes()
        path.write_bytes(whole + b" ")
        assert name in sotto(*report).err
        path.unlink()
        assert name in sotto(*report).err
        path.write_bytes(whole)
    assert sotto(*report).code == 0


def test_forged_summary_with_a_forged_entry_differs_from_the_ledger(
    sotto: Command, own_copy: Finished
) -> None:
    """Its digest in the audit log, recomputed chain and all, does not make an epsilon smaller."""
    edit_summary(own_copy, set_final_epsilon)
    path = own_copy.folder / "summary.json"
    summary = json.loads(path.read_text())
    head = summary.pop("audit_head")
    rows = own_copy.storage.rows("SELECT * FROM audit ORDER BY sequence")
    run, sequence, actor, action, number, channel, time, text, _ = rows[-1]
    detail = {**json.loads(text), "summary_sha256": document_digest(summary)}
    text = json.dumps(detail, sort_keys=True, separators=(",", ":"))
    digest = entry_hash(
        rows[-2][-1],
        **{"sequence": sequence, "run": run, "actor": actor, "action": action, "round": number},
        **{"channel": channel, "time": time, "detail": text},
    )
    change = f"UPDATE audit SET detail = '{text}', hash = '{digest}' WHERE sequence = {sequence}"  # noqa: S608
    execute(own_copy.storage.file, change)
    path.write_text(
        json.dumps({**summary, "audit_head": {**head, "hash": digest}}, indent=2) + "\n"
    )
    refused(sotto, own_copy, "final.epsilon.server is 0.1 there")
    # Nor does it stand in a sweep's table.
    with pytest.raises(RecordsDisagree, match=r"final\.epsilon\.server is 0\.1 there"):
        read_summary(own_copy.storage.url, own_copy.run_id)


def test_unfinished_run_is_reported_with_what_weakens_its_claim(
    sotto: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epsilon of seeded noise must not be read as one that protects, however far it has come."""
    with opened(storage.create("privacy.target_delta=0.3")) as simulation, suppress(Crash):
        with monkeypatch.context() as patch:
            crash_at(patch, Federation, "_commit", 2)
            run_through(simulation, SilentObserver())
    run_id = storage.only_run()
    document = sotto("report", run_id, "--storage", storage.url, "--json").document
    assert document["finished"] is False
    for text in ("it protects nobody", "above 1/clients"):
        assert any(text in warning for warning in document["warnings"])
    # In the words of the report that it has in the end, where the end is the planned one.
    so_far = {text for text in document["warnings"] if "planned attempts were charged" in text}
    assert len(so_far) == (document["stopping"] is not None)
    assert {*document["warnings"]} - so_far <= {*storage.resume(run_id).summary["warnings"]}


def test_kill_between_files_and_database_leaves_an_unfinished_run(
    sotto: Command, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(storage.create()) as simulation, monkeypatch.context() as patch, suppress(Crash):
        crash_at(patch, finishing, "write_run_files", 1, after=True)
        run_through(simulation, SilentObserver())
    run_id = storage.only_run()
    assert (storage.folder / run_id / "summary.json").is_file()
    assert sotto("report", run_id, "--storage", storage.url, "--json").document["finished"] is False
    assert sotto("audit", "verify", "--storage", storage.url).code == 0
    resumed = storage.resume(run_id)
    assert sotto("audit", "verify", "--storage", storage.url).code == 0
    assert sotto("report", run_id, "--storage", storage.url, "--json").document == resumed.summary


@pytest.fixture(scope="module")
def three(make_storage: Callable[[str], Storage]) -> tuple[Storage, list[str]]:
    """Three runs in one database."""
    storage = make_storage("three")
    return storage, [storage.run(*ONE_ROUND).run_id for _ in range(3)]


def copied(storage: Storage, folder: Path) -> Storage:
    """A copy that a test may damage."""
    shutil.copytree(storage.folder, folder / "copy", symlinks=True)
    return Storage(folder / "copy")


def erase(storage: Storage, run_id: str, *, folder: bool) -> None:
    """As if the run had never been, but for what others say of it."""
    tables = ("leaves", "audit", "ledger", "rounds", "states", "pool", "runs")
    have = {name for (name,) in storage.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
    more = sorted(have & {"stages", "attempts"})
    for table in (*more, *tables):
        if storage.rows(f"SELECT 1 FROM {table} WHERE run_id = ?", run_id):  # noqa: S608
            execute(storage.file, f"DELETE FROM {table} WHERE run_id = '{run_id}'")  # noqa: S608
    if folder:
        shutil.rmtree(storage.folder / run_id)


def test_erased_run_is_noticed_by_the_run_after_it(
    sotto: Command, three: tuple[Storage, list[str]], tmp_path: Path
) -> None:
    storage = copied(three[0], tmp_path)
    assert sotto("audit", "verify", "--storage", storage.url).code == 0
    erase(storage, three[1][1], folder=True)
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3 and f"run {three[1][1]}" in answer.err and "erased" in answer.err


def test_erased_newest_run_is_noticed_by_its_folder(
    sotto: Command, three: tuple[Storage, list[str]], tmp_path: Path
) -> None:
    storage = copied(three[0], tmp_path)
    erase(storage, three[1][2], folder=False)
    answer = sotto("audit", "verify", "--storage", storage.url, "--json")
    assert answer.code == 3
    of_folder, of_head = answer.document["problems"]
    assert three[1][2] in of_folder and "summary.json" in of_folder
    assert "a kept head says that there are" in of_head
    shutil.rmtree(storage.folder / three[1][2])
    answer = sotto("audit", "verify", "--storage", storage.url, "--json")
    assert (answer.code, answer.document["problems"]) == (3, [of_head])
    # Nothing here can tell of the newest run once the heads are gone as well, with their key; only
    # who kept one elsewhere can: SECURITY.md.
    for file in storage.folder.glob("sotto.audit.*"):
        file.unlink()
    assert sotto("audit", "verify", "--storage", storage.url).code == 0


def test_cut_tail_of_an_older_run_is_noticed(
    sotto: Command, three: tuple[Storage, list[str]], tmp_path: Path
) -> None:
    storage = copied(three[0], tmp_path)
    ((last,),) = storage.rows("SELECT max(sequence) FROM audit WHERE run_id = ?", three[1][0])
    cut = f"DELETE FROM audit WHERE run_id = '{three[1][0]}' AND sequence = {last}"  # noqa: S608
    execute(storage.file, cut)
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3 and f"run {three[1][0]}, which was set up before" in answer.err


@pytest.mark.parametrize("text", ["!!map x", "[" * 5_000], ids=["a map", "nested"])
def test_a_stray_folder_of_any_text_is_named(sotto: Command, own_copy: Finished, text: str) -> None:
    folder = own_copy.storage.folder / "stray"
    folder.mkdir()
    (folder / "config.yaml").write_text(text)
    (folder / "run.lock").touch()
    answer = sotto("audit", "verify", "--storage", own_copy.storage.url)
    assert answer.code == 3 and "folder 'stray' has run.lock" in answer.err


# --- an older copy that was put back --------------------------------------------------------------


LIFE = ("rounds=1", "privacy.lifetime_budget=30.0", "evaluation.local_twins=false")


@pytest.fixture(scope="module")
def lived(make_storage: Callable[[str], Storage]) -> tuple[Storage, Path, str]:
    """Two runs of the same clients, the folder as it was after the first, the second run's id."""
    storage = make_storage("lived")
    storage.run(*LIFE)
    older = storage.folder.with_name("older")
    shutil.copytree(storage.folder, older)
    return storage, older, storage.run(*LIFE).run_id


@pytest.fixture
def put_back(lived: tuple[Storage, Path, str], tmp_path: Path) -> tuple[Storage, str]:
    """The older database with its heads, and no trace of the second run but the clients' stores."""
    storage, older, second = lived
    copy = Storage(tmp_path / "copy")
    shutil.copytree(storage.folder, copy.folder)
    shutil.rmtree(copy.folder / second)
    for name in (copy.file.name, "sotto.audit.heads"):
        shutil.copy(older / name, copy.folder / name)
    return copy, second


def test_clients_remember_what_an_older_database_forgot(
    sotto: Command, put_back: tuple[Storage, str]
) -> None:
    storage, second = put_back
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3
    assert answer.err.count("\n") == 1
    assert f"have charges of run {second}, which the database does not know" in answer.err
    assert "an older copy of the database was put back" in answer.err


def test_stores_that_cannot_be_read_are_named(
    sotto: Command, put_back: tuple[Storage, str]
) -> None:
    storage, second = put_back
    (store,) = (storage.folder / "clients").glob("*/stores.db")
    store.write_bytes(store.read_bytes()[:5_000])
    answer = sotto("audit", "verify", "--storage", storage.url)
    assert answer.code == 3
    assert f"clients' stores clients/{store.parent.name}/stores.db: " in answer.err
    assert second not in answer.err


def test_another_databases_run_in_the_same_folder_is_no_trace(
    sotto: Command, lived: tuple[Storage, Path, str], tmp_path: Path
) -> None:
    """Both share the clients; the run's own folder says whose it is."""
    folder = tmp_path / "copy"
    shutil.copytree(lived[0].folder, folder)
    other = f"sqlite:///{folder / 'other.db'}"
    tree = lived[0].config(*LIFE).model_dump(mode="json")
    config = parse_config({**tree, "storage": {"url": other}})
    with opened(create_run(config, SilentObserver(), lived[0].surroundings)) as simulation:
        run_through(simulation, SilentObserver())
    known = f"sqlite:///{folder / lived[0].file.name}"
    assert sotto("audit", "verify", "--storage", known).code == 0
    (folder / simulation.run_id / "config.yaml").unlink()
    assert "have charges" in sotto("audit", "verify", "--storage", known).err

"""What is kept and told of canaries: coins until the end, and the verdict after it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection

from platform.agreement.checking import faults_of
from platform.cli.running import exit_code_of
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
    halve_central_noise,
    shown,
)
from tests.trunk._reports import report_on, section, sentences
from tests.trunk._runs import (
    SMALL,
    Command,
    Crash,
    Finished,
    Storage,
    crash_at,
    opened,
)
from tests.trunk._tampering import edit, execute_and_rehash
from tests.trunk.conftest import MakeStorage


@pytest.fixture(scope="module")
def known(make_storage: MakeStorage) -> Finished:
    """A finished run whose key is known."""
    with pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        return make_storage("canaries-known").run(*CENTRAL, AUDIT)


def test_a_run_that_was_killed_keeps_coins_and_bound_and_nobody_has_them_before_the_end(
    known: Finished, storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    fix_key(monkeypatch)
    with monkeypatch.context() as patch, opened(storage.create(*CENTRAL, AUDIT)) as simulation:
        # In the middle of round 2, a canary among those who have answered.
        crash_at(patch, Client, "_train", CLIENTS + CANARIES + 20, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    # Whoever draws again would draw another one.
    fix_key(monkeypatch, bytes(32))
    run_id = storage.only_run()
    key_file = storage.folder / run_id / KEY_FILE
    assert key_file.read_text().strip() == KEY.hex()

    def tells(needle: bytes) -> list[str]:
        files = [p for p in storage.folder.rglob("*") if p.is_file() and p != key_file]
        return [p.name for p in files if needle in p.read_bytes()]

    assert not tells(KEY) and not tells(KEY.hex().encode())
    # The needle is one that would be found.
    assert tells(commitment_to(KEY).encode())
    resumed = storage.resume(run_id)
    assert tells(KEY.hex().encode())
    assert shown(resumed) == shown(known)
    assert len(details(storage, "canaries.revealed")) == 1


def test_a_key_that_is_not_the_one_stops_the_run(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch, opened(storage.create(*CENTRAL, AUDIT)) as simulation:
        crash_at(patch, Client, "_train", 60, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    run_id = storage.only_run()
    file = storage.folder / run_id / KEY_FILE
    for other, said in (
        (KEY.hex(), "is not the one whose SHA-256"),
        ("heads", "is missing or no key"),
        (None, "is missing or no key"),
    ):
        file.unlink() if other is None else file.write_text(other)
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
    "no promise": (
        ('"canaries":"', '"canary":"', "run.created"),
        "commits to no key of canaries",
    ),
}


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


# --- what people are told ------------------------------------------------------------------------


def test_the_exit_code_tells_what_canaries_showed():
    found = {"is_above_claim": False, "is_refuted": False, "is_blind": False}
    above = {**found, "is_above_claim": True}
    told = (None, found, above, {**above, "is_refuted": True}, {**found, "is_blind": True})
    assert [exit_code_of(each) for each in told] == [0, 0, 4, 1, 1]


def test_the_command_and_the_report_of_a_refuted_run_warn_first(
    storage: Storage, sotto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fix_key(monkeypatch)
    halve_central_noise(monkeypatch)
    (tmp_path / "audited.yaml").write_text(SMALL)
    given = (*CENTRAL, AUDIT, f"storage.url={storage.url}")
    sets = [part for one in given for part in ("--set", one)]
    answer = sotto("run", str(tmp_path / "audited.yaml"), *sets)
    assert answer.code == 1
    warned, shown = answer.out.index("WARNING: REFUTED"), answer.out.index("canaries show")
    assert warned < answer.out.index("method, data") < shown
    again = sotto("runs", "--json", "--storage", storage.url)
    assert again.document[0]["status"] == "finished"
    report = report_on(storage, storage.only_run())
    assert report.warnings[0].startswith("REFUTED")
    assert sum(one.startswith("REFUTED") for one in report.warnings) == 1
    assert "| REFUTED" in "\n".join(sentences(section(report, "empirical")))

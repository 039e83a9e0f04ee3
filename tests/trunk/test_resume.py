"""Runs that stop for other reasons than a kill, and what they cost when they go on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Connection, event

from platform.disk.opening import open_storage
from platform.errors import RunStopped
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.runner import RoundRunner
from platform.wire.messages import Stage
from platform.wire.transport import InProcessTransport
from storage import Database, StorageFull
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    NONE,
    ONCE,
    OS,
    SMALL,
    Command,
    Crash,
    Finished,
    Storage,
    comparable,
    crash_at,
    gaussian_epsilon,
    opened,
    over,
    stores_of,
)
from tests.trunk._tampering import execute as execute_past


def crash(storage: Storage, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """A run that crashes while the second client of round 2 trains; its id."""
    with monkeypatch.context() as patch, opened(storage.create(*overrides)) as simulation:
        crash_at(patch, Client, "_train", 6, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
        return simulation.run_id


def charges(storage: Storage) -> list[tuple[Any, ...]]:
    query = (
        "SELECT round_number, attempt, count(*) FROM ledger WHERE status != 'aborted'"
        " GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return storage.rows(query)


def lose(simulation: Simulation, stage: Stage, rounds: set[int]) -> Simulation:
    """The simulation with all but two clients of some rounds silent from a stage on."""
    transport = simulation.run.transport
    assert isinstance(transport, InProcessTransport)
    usual, names = transport.losses, sorted(simulation.population.clients)[:3]
    silent = dataclasses.replace(
        transport,
        losses=lambda n, attempt, cohort: (
            frozenset(names) if n in rounds else usual(n, attempt, cohort)
        ),
        lost_at=stage,
    )
    return over(simulation, silent)


def lost(storage: Storage, number: int, *overrides: str) -> str:
    """A run whose first attempt at a round is lost once vectors have left; its id."""
    with opened(storage.create(OS, ONCE, *overrides)) as simulation, pytest.raises(RunStopped):
        execute(lose(simulation, "unmask", {number}), SilentObserver())
    return simulation.run_id


def test_spare_attempt_pays_for_one_that_was_lost(storage: Storage) -> None:
    resumed = storage.resume(lost(storage, 2, "privacy.spare_attempts=1"))
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (2, 2, 5), (3, 1, 5)]
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2, 3]
    spent = resumed.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(resumed.noise_multiplier, 4), rel=1e-6)
    assert 7.99 < spent <= 8.0
    assert not any("ended" in text for text in resumed.summary["warnings"])
    assert any("round 2 stay charged" in text for text in resumed.summary["warnings"])


def test_interruptions_cost_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = crash(storage, monkeypatch, OS)
    for owner, name, nth in (
        (RoundRunner, "run", 1),
        (Client, "_disclose", 2),
        (Client, "_disclose", 1),
    ):
        with monkeypatch.context() as patch, opened(storage.reopen(run_id)) as simulation:
            crash_at(patch, owner, name, nth, after=True)
            with pytest.raises(Crash):
                execute(simulation, SilentObserver())
    resumed = storage.resume(run_id)
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (3, 1, 5)]
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2, 3]
    assert 7.99 < resumed.summary["final"]["epsilon"]["server"] <= 8.0


def test_explicit_noise_without_a_target_goes_on_and_states_the_cost(storage: Storage) -> None:
    explicit = ("privacy.target_epsilon=null", "privacy.noise_multiplier=5.0", "rounds=2")
    resumed = storage.resume(lost(storage, 2, *explicit))
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (2, 2, 5)]
    spent = [r["epsilon"]["server"] for r in resumed.summary["rounds"]]
    assert spent == pytest.approx([gaussian_epsilon(5.0, 1), gaussian_epsilon(5.0, 3)], rel=1e-6)


def test_run_that_can_afford_no_round_is_reported_all_the_same(
    storage: Storage, sotto: Command, tmp_path: Path
) -> None:
    resumed = storage.resume(lost(storage, 1, "rounds=1"))
    assert resumed.summary["rounds"] == []
    assert 7.9 < resumed.summary["final"]["epsilon"]["server"] <= 8.0
    for command in ("report", "export"):
        extra = ["--output", str(tmp_path / "out")] if command == "export" else []
        answer = sotto(command, "latest", "--storage", storage.url, *extra)
        assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize("stage", ["advertise", "share"])
def test_round_aborted_before_anything_left_is_free(storage: Storage, stage: Stage) -> None:
    with opened(storage.create(OS, ONCE)) as simulation, pytest.raises(RunStopped) as stopped:
        execute(lose(simulation, stage, {2}), SilentObserver())
    assert f"resume with --resume {simulation.run_id}" in str(stopped.value)
    assert storage.rows("SELECT DISTINCT status FROM ledger WHERE round_number = 2") == [
        ("aborted",)
    ]
    resumed = storage.resume(simulation.run_id)
    assert charges(storage) == [(1, 1, 5), (2, 2, 5), (3, 1, 5)]
    assert len(resumed.summary["rounds"]) == 3
    spent = resumed.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(resumed.noise_multiplier, 3), rel=1e-6)
    ((detail,),) = storage.rows("SELECT detail FROM audit WHERE action = 'round.aborted'")
    assert '"charged":false' in detail.replace(" ", "")


@pytest.mark.parametrize("stage", ["train", "unmask"])
def test_round_aborted_after_uploads_stays_charged(storage: Storage, stage: Stage) -> None:
    with opened(storage.create(OS, ONCE)) as simulation, pytest.raises(RunStopped):
        execute(lose(simulation, stage, {2}), SilentObserver())
    assert storage.rows("SELECT status FROM runs") == [("interrupted",)]
    assert storage.rows("SELECT count(*) FROM pool WHERE generation = 2") == [(0,)]
    resumed = storage.resume(simulation.run_id)
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (2, 2, 5)]
    assert resumed.summary["final"]["epsilon"]["server"] <= 8.0
    ((detail,),) = storage.rows("SELECT detail FROM audit WHERE action = 'round.aborted'")
    assert '"charged":true' in detail.replace(" ", "")


def test_aborted_round_with_seeded_noise_is_charged_like_any_other(storage: Storage) -> None:
    """A simulation pays what a federation would: a further attempt has other noise."""
    with opened(storage.create(ONCE)) as simulation, pytest.raises(RunStopped):
        execute(lose(simulation, "unmask", {2}), SilentObserver())
    resumed = storage.resume(simulation.run_id)
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (2, 2, 5)]
    assert "ended before round 3" in resumed.summary["warnings"][0]


@pytest.mark.parametrize("mechanism", ["none", "central_noise"])
def test_masked_round_without_client_noise_is_lost_once_vectors_have_left(
    storage: Storage, mechanism: str
) -> None:
    """Another attempt would give another sum of the same vectors; the round has no result."""
    exact = (f"privacy.mechanism={mechanism}", *(() if mechanism == "none" else FIXED), *NO_POOL)
    with opened(storage.create(*exact, OS)) as simulation, pytest.raises(RunStopped) as stopped:
        execute(lose(simulation, "unmask", {2}), SilentObserver())
    assert "round 2 was aborted in phase unmasking" in str(stopped.value)
    assert "it stays without a result; resume with --resume" in str(stopped.value)
    before = Finished(storage, simulation.run_id, {}).state()
    resumed = storage.resume(simulation.run_id)
    assert storage.rows("SELECT round_number, attempt FROM rounds") == [(1, 1), (2, 1), (3, 1)]
    assert [len(names) for names in resumed.survivors().values()] == [5, 0, 4]
    assert any("round 2 has no result" in text for text in resumed.summary["warnings"])
    lost_rounds = storage.rows("SELECT round_number FROM audit WHERE action = 'round.lost'")
    assert lost_rounds == [(2,)]
    assert set(before) == set(resumed.state())


def test_a_round_lost_while_it_is_written_down_is_lost_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, opened(storage.create(NONE, *NO_POOL)) as simulation:
        crash_at(patch, AuditTrail, "round_lost", 1)
        with pytest.raises(Crash):
            execute(lose(simulation, "unmask", {2}), SilentObserver())
    resumed = storage.resume(simulation.run_id)
    # The attempt goes on where it was: this time everybody answers.
    assert storage.rows("SELECT round_number, attempt FROM rounds") == [(1, 1), (2, 1), (3, 1)]
    assert [len(names) for names in resumed.survivors().values()] == [5, 5, 4]


def test_finished_run_is_reported_again_and_nothing_else(storage: Storage) -> None:
    finished = storage.run(NONE, *NO_POOL, "rounds=1")
    before = storage.file.read_bytes()
    assert storage.resume(finished.run_id).summary == finished.summary
    assert storage.file.read_bytes() == before


def test_run_moves_with_its_folder(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plain_run: Finished
) -> None:
    """The clients' stores lie beside the database, wherever both are now."""
    run_id = crash(storage, monkeypatch, NONE)
    moved = Storage(tmp_path / "elsewhere")
    shutil.move(storage.folder, moved.folder)
    resumed = moved.resume(run_id)
    assert not storage.folder.exists()
    assert comparable(resumed.summary) == comparable(plain_run.summary)
    assert len(resumed.identities()) == 5
    pseudonyms = {p for (p,) in moved.rows("SELECT DISTINCT pseudonym FROM ledger")}
    assert pseudonyms == {p for p, _ in resumed.identities().values()}


def test_run_does_not_go_on_with_a_client_that_forgot_its_spending(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, sotto: Command
) -> None:
    """A new store has a new pseudonym, under which the same data would be charged from zero."""
    run_id = crash(storage, monkeypatch, OS)
    before = charges(storage)
    file = stores_of(storage.folder / run_id)
    execute_past(file, "DELETE FROM identity WHERE client = 'client-00002'", is_store=True)
    for _ in range(2):
        answer = sotto("run", "--resume", run_id, "--storage", storage.url)
        assert answer.code == 1 and "a client's store" in answer.err
        assert answer.err.count("\n") == 1
    assert charges(storage) == before


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Databases of the coordinator that cannot grow while the switch is on.

    SQLite itself refuses to add a page, as it does when the disk is full.
    """
    full = {"now": False}

    def limit(connection: Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        largest = pages if full["now"] else 1 << 30
        connection.exec_driver_sql(f"PRAGMA max_page_count={largest}")

    def opening(url: str) -> Database:
        database = open_storage(url)
        event.listen(database._engine, "begin", limit)
        return database

    monkeypatch.setattr("platform.bootstrap.simulating.open_storage", opening)
    yield lambda on: full.update(now=on)


def test_full_disk_loses_the_round_in_progress_only(
    storage: Storage,
    small_disk: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    sotto: Command,
    tmp_path: Path,
    plain_run: Finished,
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    original = Federation._commit

    def filling(self: Federation, plan: Any, *rest: Any, **named: Any) -> None:
        small_disk(plan.round_number == 2)
        original(self, plan, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "_commit", filling)
        answer = sotto("run", str(config), "--set", NONE, "--storage", storage.url, "--json")
    assert answer.code == 1 and answer.out == ""
    assert answer.err.count("\n") == 1
    sentence = json.loads(answer.err)["error"]
    assert sentence.startswith("database ") and "full" in sentence
    assert storage.rows("SELECT round_number FROM rounds") == [(1,)]
    assert storage.rows("SELECT DISTINCT generation FROM pool") == [(1,)]
    small_disk(False)
    resumed = storage.resume(storage.only_run())
    assert comparable(resumed.summary) == comparable(plain_run.summary)


def test_full_disk_while_reserving_releases_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is written first; if it cannot be, no client hears of the round."""
    asked: list[bytes] = []
    with opened(storage.create(OS, "rounds=1")) as simulation:
        for client in simulation.population.clients.values():
            monkeypatch.setattr(client, "_join", asked.append)

        def full(*_: Any) -> None:
            raise StorageFull("database x cannot grow: the disk or the database is full")

        with monkeypatch.context() as patch, pytest.raises(StorageFull):
            patch.setattr(AuditTrail, "reserved", full)
            execute(simulation, SilentObserver())
        assert asked == [] and storage.rows("SELECT * FROM ledger") == []


def test_finished_run_is_not_resumed(plain_run: Finished, sotto: Command) -> None:
    before = plain_run.storage.file.read_bytes()
    for name in (plain_run.run_id, "latest"):
        answer = sotto("run", "--resume", name, "--storage", plain_run.storage.url)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == (
            f"error: --resume: run {plain_run.run_id} has finished; see `report"
            f" {plain_run.run_id}`\n"
        )
    assert plain_run.storage.file.read_bytes() == before


def test_resume_takes_no_configuration(plain_run: Finished, sotto: Command) -> None:
    for extra in (["quickstart"], ["--seed", "3"], ["--set", "rounds=9"], ["--device", "cpu"]):
        answer = sotto("run", *extra, "--resume", "latest", "--storage", plain_run.storage.url)
        assert answer.code == 2 and answer.err.startswith("error: --resume: ")


def test_resumed_run_keeps_its_own_configuration(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = crash(storage, monkeypatch, NONE)
    before = (storage.folder / run_id / "config.yaml").read_text()
    resumed = storage.resume(run_id)
    assert (resumed.folder / "config.yaml").read_text() == before
    assert yaml.safe_load(before)["seed"] == 3
    statuses = storage.rows("SELECT status FROM runs")
    assert statuses == [("finished",)]

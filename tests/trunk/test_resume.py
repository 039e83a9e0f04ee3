"""Runs that stop for other reasons than a kill, and what they cost when they go on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from platform.errors import RunStopped
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.loop import Federation
from platform.wire.messages import Stage
from tests.privacy._walk import stopped
from tests.trunk._pages import page_of, words
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    NONE,
    ONCE,
    OS,
    Command,
    Finished,
    Storage,
    crashed,
    gaussian_epsilon,
    losing,
    stores_of,
    warnings_of,
)
from tests.trunk._tampering import execute as execute_past


def charges(storage: Storage) -> list[tuple[Any, ...]]:
    query = (
        "SELECT round_number, attempt, count(*) FROM ledger WHERE status != 'aborted'"
        " GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return storage.rows(query)


def lose(simulation: Simulation, stage: Stage, rounds: set[int]) -> Simulation:
    """The simulation with all but two clients of some rounds silent from a stage on."""
    usual, names = simulation.run.transport.losses, sorted(simulation.population.clients)[:3]
    return losing(
        simulation,
        lambda n, attempt, cohort: frozenset(names) if n in rounds else usual(n, attempt, cohort),
        stage,
    )


def lost(storage: Storage, number: int, *overrides: str) -> str:
    """A run whose first attempt at a round is lost once vectors have left; its id."""
    with pytest.raises(RunStopped):
        storage.finish(lose(storage.create(OS, ONCE, *overrides), "unmask", {number}))
    return storage.only_run()


NO_MASKS = "secure_aggregation.enabled=false"


@pytest.mark.slow
def test_spare_attempt_pays_for_one_that_was_lost(storage: Storage) -> None:
    resumed = storage.resume(lost(storage, 2, "privacy.spare_attempts=1", *NO_POOL))
    assert charges(storage) == [(1, 1, 5), (2, 1, 5), (2, 2, 5), (3, 1, 5)]
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2, 3]
    spent = resumed.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(resumed.noise_multiplier, 4), rel=1e-6)
    assert 7.99 < spent <= 8.0
    assert not any("ended" in text for text in warnings_of(resumed.summary))
    assert any("stay charged" in text for text in warnings_of(resumed.summary))


def test_run_that_can_afford_no_round_is_reported_all_the_same(storage, sotto, tmp_path):
    resumed = storage.resume(lost(storage, 1, "rounds=1", *NO_POOL))
    assert resumed.summary["rounds"] == []
    assert 7.9 < resumed.summary["final"]["epsilon"]["server"] <= 8.0
    for command in (("report",), ("export", "--output", str(tmp_path / "out"))):
        answer = sotto(*command, "latest", "--storage", storage.url)
        assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize(
    "mechanism", ["none", pytest.param("central_noise", marks=pytest.mark.slow)]
)
def test_masked_round_without_client_noise_is_lost_once_vectors_have_left(storage, mechanism):
    """Another attempt would give another sum of the same vectors; the round has no result."""
    exact = (f"privacy.mechanism={mechanism}", *(() if mechanism == "none" else FIXED), *NO_POOL)
    with pytest.raises(RunStopped) as stopped:
        storage.finish(lose(storage.create(*exact, OS), "unmask", {2}))
    assert "phase unmasking" in str(stopped.value) and "without a result" in str(stopped.value)
    before = Finished(storage, storage.only_run(), {}).state()
    resumed = storage.resume(storage.only_run())
    assert storage.rows("SELECT round_number, attempt FROM rounds") == [(1, 1), (2, 1), (3, 1)]
    assert [len(names) for names in resumed.survivors().values()] == [5, 0, 4]
    assert any("has no result" in text for text in warnings_of(resumed.summary))
    lost_rounds = storage.rows("SELECT round_number FROM audit WHERE action = 'round.lost'")
    assert lost_rounds == [(2,)]
    assert set(before) == set(resumed.state())


@pytest.mark.slow
def test_a_round_lost_while_it_is_written_down_is_lost_once(storage, monkeypatch):
    lossy = lose(storage.create(NONE, *NO_POOL), "unmask", {2})
    resumed = storage.resume(crashed(monkeypatch, lossy, AuditTrail, "round_lost", 1))
    # The attempt goes on where it was: this time everybody answers.
    assert storage.rows("SELECT round_number, attempt FROM rounds") == [(1, 1), (2, 1), (3, 1)]
    assert [len(names) for names in resumed.survivors().values()] == [5, 5, 4]


def test_run_does_not_go_on_with_a_client_that_forgot_its_spending(storage, monkeypatch, sotto):
    """A new store has a new pseudonym, under which the same data would be charged from zero."""
    begun = storage.create(OS, *NO_POOL)
    run_id = crashed(monkeypatch, begun, Client, "_train", 6, after=True)
    before = charges(storage)
    file = stores_of(storage.folder / run_id)
    execute_past(file, "DELETE FROM identity WHERE client = 'client-00002'", is_store=True)
    for _ in range(2):
        answer = sotto("run", "--resume", run_id, "--storage", storage.url)
        assert answer.code == 1 and "a client's store" in answer.err
        assert answer.err.count("\n") == 1
    assert charges(storage) == before


def test_finished_run_is_not_resumed(plain_run: Finished, sotto: Command) -> None:
    before = plain_run.storage.file.read_bytes()
    answer = sotto("run", "--resume", "latest", "--storage", plain_run.storage.url)
    assert (answer.code, answer.out) == (2, "")
    assert "has finished" in answer.err
    assert plain_run.storage.resume(plain_run.run_id).summary == plain_run.summary
    assert plain_run.storage.file.read_bytes() == before


def test_resume_takes_no_configuration(plain_run: Finished, sotto: Command) -> None:
    for extra in (["quickstart"], ["--set", "rounds=9"]):
        answer = sotto("run", *extra, "--resume", "latest", "--storage", plain_run.storage.url)
        assert answer.code == 2 and answer.err.startswith("error: --resume: ")


DELTA, NOISE = 1e-5, 4.0
PLAIN = (*NO_POOL, *FIXED, "cohort.dropout_rate=0")
OVER = 6


@pytest.mark.slow
def test_an_unplanned_end_is_stated_by_what_was_planned(storage, monkeypatch, sotto):
    """Six rounds of eight are over, and the seventh is charged; then the run goes on."""
    begun = storage.create(*PLAIN, NO_MASKS, "rounds=8", "evaluation.every=8")
    run_id = crashed(monkeypatch, begun, Federation, "_commit", OVER + 1)
    place = ("--storage", storage.url)
    document = sotto("report", "latest", *place, "--json").document
    claims = [one["epsilon"]["server"] for one in document["rounds"]]
    stopping = document["stopping"]
    counts = (stopping["as_planned"], stopping["attempts"], stopping["planned_attempts"])
    assert counts == (False, OVER + 1, 8)
    planned = stopping["epsilon"]["server"]
    assert planned == pytest.approx(gaussian_epsilon(NOISE, 8), rel=1e-9)
    # Who stops at the first round that shows more than is stated of it, and quotes that.
    assert 3.5 * DELTA < stopped(2 / NOISE, claims, claims) < 5.5 * DELTA
    # The same, quoting what is stated of an unplanned end.
    assert stopped(2 / NOISE, claims, [planned] * OVER) < DELTA
    assert stopped(2 / NOISE, [planned] * OVER, [planned] * OVER) < DELTA
    number = f"{planned:.2f}/{planned:.2f}/{planned:.2f}"
    assert any(number in text for text in document["warnings"])
    assert sotto("budget", "latest", *place, "--json").document["stopping"] == stopping
    for command in ("report", "budget"):
        assert number in sotto(command, "latest", *place).out
    assert number in words(sotto("report", "latest", "--format", "html", *place).out)
    assert number in words(page_of(storage).get(f"/run?id={run_id}").text)
    summary = storage.resume(run_id).summary
    stopping = summary["stopping"]
    assert stopping["as_planned"] and stopping["attempts"] == 8
    assert stopping["epsilon"] == summary["final"]["epsilon"]
    assert not any("planned attempts" in text for text in warnings_of(summary))


def test_more_attempts_than_were_planned_have_no_epsilon_at_an_unplanned_end(storage, sotto):
    """Nothing limits the attempts here, so no number of them was fixed beforehand."""
    run_id = lost(storage, 2, *PLAIN, "rounds=2")
    summary = storage.resume(run_id).summary
    assert summary["final"]["epsilon"]["server"] == pytest.approx(gaussian_epsilon(NOISE, 3))
    stopping = summary["stopping"]
    assert (stopping["attempts"], stopping["planned_attempts"]) == (3, 2)
    assert not stopping["as_planned"] and stopping["epsilon"] is None
    assert any(text.startswith("3 attempts") for text in warnings_of(summary))
    assert sotto("report", run_id, "--storage", storage.url, "--json").document == summary


def test_spare_attempts_are_part_of_the_plan(storage: Storage) -> None:
    once = ("rounds=1", "cohort.dropout_rate=0", NO_MASKS)
    run = storage.run("privacy.spare_attempts=1", *once, *NO_POOL)
    stopping, final = run.summary["stopping"], run.summary["final"]["epsilon"]["server"]
    assert (stopping["attempts"], stopping["planned_attempts"]) == (1, 2)
    assert stopping["epsilon"]["server"] == pytest.approx(8.0, rel=1e-6) and final < 8.0
    assert math.isclose(final, gaussian_epsilon(run.noise_multiplier, 1), rel_tol=1e-6)

"""What a pool that is made once ends, and what a report says where it was not made."""

from __future__ import annotations

import dataclasses

import pytest

from platform.contract.driving import a_plan
from platform.errors import CoordinatorBehind
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.rounds.observing import SilentObserver
from platform.rounds.plan import RoundPlan
from platform.wire.messages import SumTerms
from platform.wire.transport import InProcessTransport
from tests.trunk._runs import (
    GATHERING,
    NONE,
    OS,
    RECORDS,
    Crash,
    Storage,
    crash_at,
    of_clients,
    opened,
    over,
    runner_of,
)
from tests.trunk._secure import frank

ROUNDS = 2
COLLECTED = ROUNDS + 1
EVERYBODY = "cohort.dropout_rate=0"
SHORT = (*GATHERING, f"rounds={ROUNDS}", EVERYBODY)


def plan_of(simulation: Simulation, number: int, attempt: int = 1, *, collects: bool) -> RoundPlan:
    everybody = tuple(simulation.population.clients)
    protection = simulation.run.terms.protection
    place = (number, attempt)
    terms = SumTerms(3)
    return a_plan(simulation.run_id, place, everybody, protection, terms=terms, collects=collects)


def ask(simulation: Simulation, plan: RoundPlan) -> int:
    """Runs an attempt past the run loop, as a coordinator of its own mind would; its entries."""
    state = simulation.run.terms.initial_state()
    broadcast = simulation.run.terms.method.broadcast(state)
    runner = runner_of(frank(simulation))
    return len(runner.run(plan, lambda client: broadcast, lambda asked: [()] * len(asked)).entries)


def test_an_early_collection_is_a_noised_charge_and_ends_the_rounds(storage: Storage) -> None:
    with opened(storage.gathering().create(*SHORT)) as simulation:
        assert ask(simulation, plan_of(simulation, COLLECTED, collects=True)) == 5
        query = "SELECT client, round_number, channel, standard_deviation FROM ledger"
        for ((number, channel, deviation),) in of_clients(simulation.folder, query).values():
            assert (number, channel) == (COLLECTED, "pool")
            assert deviation == pytest.approx(
                simulation.run.terms.budget.noise_multiplier, rel=1e-9
            )
        for number in (1, ROUNDS):
            with pytest.raises(CoordinatorBehind, match="has answered round 3, attempt 1"):
                ask(simulation, plan_of(simulation, number, collects=False))
        # The collection itself may be tried again, at a charge of its own.
        assert ask(simulation, plan_of(simulation, COLLECTED, 2, collects=True)) == 5


def test_a_finished_run_has_no_further_rounds(storage: Storage) -> None:
    with opened(storage.gathering().create(*SHORT, NONE)) as simulation:
        execute(simulation, SilentObserver())
        with pytest.raises(CoordinatorBehind):
            ask(simulation, plan_of(simulation, ROUNDS, 2, collects=False))


def losing(simulation: Simulation, number: int, attempts: int) -> Simulation:
    """The simulation with all but one client silent in the first attempts of one round."""
    transport = simulation.run.transport
    assert isinstance(transport, InProcessTransport)
    silent = frozenset(sorted(simulation.population.clients)[1:])
    lossy = dataclasses.replace(
        transport,
        losses=lambda n, a, cohort: silent if n == number and a <= attempts else frozenset(),
    )
    return over(simulation, lossy)


def test_a_run_that_ends_early_between_two_measurements_is_measured(storage: Storage) -> None:
    """Calibrated for three rounds and an entry, of which round 2 alone takes three."""
    asked = (*GATHERING, "rounds=3", EVERYBODY, OS, "evaluation.every=3", "cohort.retries=2")
    found = []
    # Without masks what a lost attempt uploaded has left, and is charged.
    bare = ("secure_aggregation={enabled: false}",)
    for every in ("evaluation.every=3", "evaluation.every=1"):
        with opened(storage.gathering().create(*asked, *bare, every)) as simulation:
            found.append(execute(losing(simulation, 2, 2), SilentObserver()))
    for summary in found:
        assert "ended before round 3" in summary["warnings"][0]
        assert summary["warnings"][1].startswith("the pool was not made")
        assert [d["round"] for d in summary["rounds"]] == [1, 2]
        before, after = summary["phases"]["before"], summary["phases"]["after"]
        assert 0.0 <= before["mean"] <= 1.0 and len(before["per_client"]) == 5
        # Nobody got experts, and without them `gathering` stays as it is.
        assert before == after
        text = " ".join(summary["warnings"][2:])
        assert "made after the last round" not in text and "linkable" not in text
        assert "charged once" not in text
    assert found[0]["rounds"][-1]["accuracy"]["mean"] is None


def test_a_collection_that_follows_fewer_rounds_is_gone_on_with(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under noised steps the collection is free: a run that ended early makes its pool as well.

    Killed there, it must not try the round again that it could not afford.
    """
    steps = tuple(each for each in RECORDS if not each.startswith("privacy.target_epsilon"))
    asked = (*SHORT, *steps, "privacy.noise_multiplier=null", "privacy.target_epsilon=8.0")
    # Without sampling, as its accounting is quick.
    asked += ("privacy.sampling_probability=1.0",)
    place = storage.gathering()
    bare = ("secure_aggregation={enabled: false}", "cohort.retries=1", OS)
    with monkeypatch.context() as patch, opened(place.create(*asked, *bare)) as simulation:
        crash_at(patch, Client, "_disclose", 2, after=True)
        with pytest.raises(Crash):
            execute(losing(simulation, 1, 1), SilentObserver())
    assert place.rows("SELECT round_number, is_open FROM attempts")[-1] == (COLLECTED, 1)
    resumed = place.resume(simulation.run_id).summary
    assert [d["phase"] for d in resumed["rounds"]] == ["rounds", "collection"]
    assert "ended before round 2" in resumed["warnings"][0]


def test_a_pool_that_came_to_nothing_is_not_described(storage: Storage) -> None:
    with opened(storage.gathering().create(*SHORT, OS, "cohort.retries=0")) as simulation:
        summary = execute(losing(simulation, COLLECTED, 1), SilentObserver())
    text = " ".join(summary["warnings"])
    assert summary["warnings"][0].startswith("the pool was not made")
    assert "made after the last round" not in text
    # Some entry may have left its owner all the same.
    assert "linkable" in text and "charged once for each attempt" in text


def test_the_final_numbers_are_the_last_rounds_not_the_collections(storage: Storage) -> None:
    few = ("cohort.size=3", "secure_aggregation.threshold=2")
    summary = storage.gathering().run(*SHORT, *few).summary
    trained, collected = summary["rounds"][-2:]
    assert (collected["phase"], collected["cohort"]) == ("collection", 5)
    same = ("round", "phase", "cohort", "dropped", "bytes_up", "bytes_down", "signal_to_noise")
    assert {k: summary["final"][k] for k in same} == {k: trained[k] for k in same}
    assert trained["signal_to_noise"] is not None
    # What was spent is spent on the entry as well.
    assert summary["final"]["epsilon"] == collected["epsilon"] != trained["epsilon"]

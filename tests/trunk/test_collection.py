"""A pool that is made once: one entry from everybody, after the last round, charged once."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from platform.contract.driving import a_plan
from platform.errors import ConfigError, CoordinatorBehind, ProtocolError
from platform.experiment.finishing import execute
from platform.experiment.planning import plan_run
from platform.experiment.privacy_auditing.audit import AuditPlan, audit_run
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.plan import RoundPlan
from platform.rounds.pool import fixed_pool
from platform.wire.codec import decode_arrays, encode_arrays, peek
from platform.wire.layout import handle
from platform.wire.messages import SumTerms, decode_disclosure, encode_disclosure
from storage import PoolEntry
from tests.trunk._runs import (
    ADAPTIVE,
    ADVERSARIES,
    FIXED,
    GATHERING,
    NONE,
    OS,
    RECORDS,
    Finished,
    Storage,
    comparable,
    crashed,
    gaussian_epsilon,
    losing,
    of_clients,
    opened,
    over,
    runner_of,
    slow,
    warnings_of,
)
from tests.trunk._secure import frank
from tests.trunk.conftest import MakeStorage

ROUNDS = 2
COLLECTED = ROUNDS + 1
SHORT = (GATHERING, f"rounds={ROUNDS}", "task.test_per_class=2")
PLAIN = (*SHORT, NONE)
EVERYBODY = "cohort.dropout_rate=0"
SHARED_OUT = ("privacy.mechanism=distributed_noise", "secure_aggregation.corrupt=1")
KEYS = "SELECT round_number, channel, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.fixture(scope="module")
def gathered(make_storage: MakeStorage) -> Finished:
    """Nothing lost, no noise; for reading only."""
    return make_storage("gathered").gathering().run(*PLAIN, EVERYBODY)


@pytest.fixture(scope="module")
def noised(make_storage: MakeStorage) -> Finished:
    """One of five lost in every round, upload noise of the operating system, epsilon 8."""
    fresh = ("privacy.noise_source=os", "pool.clipping_norm=4.0")
    return make_storage("noised-pool").gathering().run(*SHORT, *fresh)


def personal(run: Finished) -> dict[str, dict[str, np.ndarray]]:
    return {name: decode_arrays(part) for name, (part, _) in run.personal_parts().items()}


def entries(run: Finished) -> list[tuple[int, bytes, dict[str, np.ndarray]]]:
    query = "SELECT generation, handle, entry FROM pool WHERE run_id = ?"
    rows = run.storage.rows(query, run.run_id)
    return [(generation, name, decode_arrays(entry)) for generation, name, entry in rows]


def test_the_pool_holds_one_entry_of_everybody_and_each_client_knows_its_own(gathered):
    found = entries(gathered)
    assert [generation for generation, _, _ in found] == [COLLECTED] * 5
    owners = {
        handle(secret, gathered.run_id, COLLECTED): name
        for name, (_, secret) in gathered.identities().items()
    }
    states, orders = personal(gathered), set()
    for _, name, entry in found:
        assert np.array_equal(entry["gain"], states[owners[name]]["gain"])
    for name, (_, experts) in gathered.personal_parts().items():
        orders.add(experts)
        mine = decode_arrays(experts)[f"{int(states[name]['own']):04d}/gain"]
        assert np.array_equal(mine, states[name]["gain"])
    assert len(orders) == 1
    mean = np.mean([entry["gain"] for _, _, entry in found], axis=0)
    for state in states.values():
        np.testing.assert_allclose(state["mixed"], mean, atol=1e-6)


def test_a_lost_client_has_no_entry_and_the_pool_all_the_same(noised: Finished) -> None:
    survivors = noised.survivors()[COLLECTED]
    assert len(survivors) == 4
    states = personal(noised)
    for name, state in states.items():
        assert (int(state["own"]) == -1) == (name not in survivors)
    assert sorted(int(states[n]["own"]) for n in survivors) == [0, 1, 2, 3]
    assert len({experts for _, experts in noised.personal_parts().values()}) == 1


def test_the_ledger_has_the_sums_and_one_entry(noised: Finished) -> None:
    rows = noised.storage.rows(
        "SELECT round_number, channel, clipping_norm, standard_deviation, count(*) FROM ledger"
        " GROUP BY 1, 2, 3, 4 ORDER BY 1"
    )
    z = noised.noise_multiplier
    assert [row[:3] for row in rows] == [(1, "sum", 1.0), (2, "sum", 1.0), (3, "pool", 4.0)]
    assert [row[4] for row in rows] == [5, 5, 5]
    assert [row[3] for row in rows] == pytest.approx([z, z, 4.0 * z], rel=1e-9)
    for number, document in enumerate(noised.summary["rounds"], start=1):
        expected = dict.fromkeys(ADVERSARIES, pytest.approx(gaussian_epsilon(z, number), rel=1e-6))
        assert document["epsilon"] == expected
    assert 7.99 < gaussian_epsilon(z, 3) <= 8.0
    assert noised.summary["final"]["epsilon"] == noised.summary["rounds"][-1]["epsilon"]


def test_an_entry_carries_the_noise_of_its_own_norm(noised: Finished) -> None:
    """512 coordinates of deviation 4 z each, four entries: a deviation is off by 3% at most."""
    values = np.concatenate([entry["gain"] for _, _, entry in entries(noised)])
    assert values.std() == pytest.approx(4.0 * noised.noise_multiplier, rel=0.15)


UNSAMPLED = (*RECORDS, "privacy.sampling_probability=1.0")
"""Noise in training steps, whose accounting is quick."""


@pytest.mark.parametrize("sampled", [UNSAMPLED, slow(RECORDS)])
@pytest.mark.parametrize("both", ["true", "false"])
def test_noised_steps_are_charged_and_what_is_made_of_them_is_free(storage, both, sampled):
    options = (f"method.shares={both}", f"method.trains={both}", "rounds=1")
    run = storage.gathering().run(GATHERING, *sampled, *options)
    rounds = 2 if both == "true" else 1
    assert storage.rows(KEYS) == [(number, "sum", 5) for number in range(1, rounds + 1)]
    assert (len(run.summary["rounds"]), len(entries(run))) == (2, 4)
    spent = [d["epsilon"]["server"] for d in run.summary["rounds"]]
    assert (spent[1] > spent[0]) == (both == "true")


def test_calibration_counts_a_trained_contribution(make_storage: MakeStorage) -> None:
    target = ("privacy.target_epsilon=4.0", "privacy.noise_multiplier=null", "rounds=1")
    place = make_storage("calibrated").gathering()
    found = []
    for overrides in (("rounds=2",), ("method.trains=true",), ()):
        with opened(place.create(GATHERING, *UNSAMPLED, *target, *overrides)) as simulation:
            found.append(simulation.run.terms.budget.noise_multiplier)
    assert found[0] == found[1] > found[2]


def test_noise_that_is_shared_out_is_the_entrys_alone(storage: Storage) -> None:
    run = storage.gathering().run(
        *(*SHORT, *SHARED_OUT, EVERYBODY, "rounds=1"),
        *("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0"),
    )
    kinds = "SELECT round_number, channel, mechanism, shares FROM ledger GROUP BY 1, 2, 3, 4"
    charged = [(1, "sum", "distributed_noise", 2), (2, "pool", "upload_noise", 1)]
    assert storage.rows(kinds) == charged
    claimed = run.summary["final"]["epsilon"]["server"]
    # The bound for integers is above the formula for the reals, and below that of one more.
    assert gaussian_epsilon(6.0, 2) <= claimed < gaussian_epsilon(6.0, 3)


def test_nothing_of_a_module_leaves_before_the_collection(storage: Storage) -> None:
    """Without masks a round is invitation and upload; an entry would need a third stage."""
    bare = ("secure_aggregation.enabled=false", "secure_aggregation.threshold=null")
    seen: list[tuple[str, list[int]]] = []
    with opened(storage.gathering().create(*PLAIN, *bare, "rounds=1")) as simulation:
        inner = simulation.run.transport

        class Spy:
            def exchange(self, stage: Any, messages: Any, deadline: Any) -> Any:
                answers = inner.exchange(stage, messages, deadline)
                seen.append((stage, [len(a) for a in answers.values() if isinstance(a, bytes)]))
                return answers

        execute(over(simulation, Spy()), SilentObserver())
    training, collecting = ["advertise", "train"], ["advertise", "train", "unmask"]
    # What clients count for the experimenter is no upload, and is asked for after each commit.
    between = [*training, "evaluate", *collecting, "evaluate"]
    assert [stage for stage, _ in seen] == [*between, "claim", "personalise", "evaluate"]
    # The collection's upload holds no vector: its entry follows alone.
    *updates, upload = [sizes for stage, sizes in seen if stage == "train"]
    assert min(min(sizes) for sizes in updates) > 4_000 and max(upload) < 500


def test_the_phases_are_told_apart(gathered: Finished) -> None:
    rounds, phases = gathered.summary["rounds"], gathered.summary["phases"]
    assert [d["phase"] for d in rounds] == ["rounds", "rounds", "collection"]
    assert rounds[2]["accuracy"] == rounds[1]["accuracy"] == phases["before"]
    assert phases["after"] == gathered.summary["final"]["accuracy"]
    seconds = phases["seconds"]
    # Measuring after each round is not counted.
    assert 0 < seconds["rounds"] < sum(d["seconds"] for d in rounds[:2])
    share = (seconds["collection"] + seconds["second"]) / seconds["rounds"]
    assert phases["cost_share"] == pytest.approx(share, rel=0.05)
    assert "linkable" in " ".join(warnings_of(gathered.summary))


def test_the_collection_keeps_the_last_rounds_state_and_is_charged_first(gathered):
    rows = gathered.storage.rows("SELECT round_number FROM states ORDER BY 1")
    assert rows == [(1,), (2,)]
    actions = "SELECT action FROM audit WHERE round_number = 3 ORDER BY sequence"
    found = [action for (action,) in gathered.storage.rows(actions)]
    assert found == ["release.reserved", "round.opened", "round.committed", "pool.committed"]


def lose_in(
    simulation: Simulation, number: int, left: int, attempts: int | None = None
) -> Simulation:
    """The simulation with all but some clients silent in a round, or in its first attempts."""
    usual = simulation.run.transport.losses
    silent = frozenset(sorted(simulation.population.clients)[left:])

    def losses(at: int, attempt: int, cohort: Any) -> frozenset[str]:
        lossy = at == number and (attempts is None or attempt <= attempts)
        return silent if lossy else usual(at, attempt, cohort)

    return losing(simulation, losses)


def test_a_collection_of_one_is_none_and_the_run_goes_on_without_experts(storage: Storage) -> None:
    with opened(storage.gathering().create(*PLAIN, "cohort.retries=1", "rounds=1")) as simulation:
        summary = execute(lose_in(simulation, 2, 1), SilentObserver())
        run = Finished(storage, simulation.run_id, summary)
    assert entries(run) == []
    assert all(set(state) == {"gain"} for state in personal(run).values())
    first, *others = warnings_of(summary)
    assert "pool was not" in first
    # Some entry may have left its owner all the same.
    assert "linkable" in " ".join(others)
    last = summary["rounds"][-1]
    assert (last["phase"], last["dropped"]) == ("collection", 5)
    assert storage.rows(KEYS)[-1] == (2, "pool", 10)


@pytest.mark.slow
def test_a_failed_collection_is_not_tried_again_by_a_resumed_run(storage, monkeypatch):
    place = storage.gathering()
    lossy = lose_in(place.create(*PLAIN, "cohort.retries=0"), COLLECTED, 1)
    resumed = place.resume(crashed(monkeypatch, lossy, Client, "_part", 2))
    assert entries(resumed) == []
    assert all(set(state) == {"gain"} for state in personal(resumed).values())
    assert "pool was not" in warnings_of(resumed.summary)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "nth", "after"),
    [
        (Client, "_train", 10, True),
        (Federation, "_commit_pool", 3, False),
        (Federation, "_commit", 3, True),
        (Client, "_claim", 3, True),
    ],
)
def test_a_run_that_was_killed_ends_as_if_nothing_had_happened(
    storage, monkeypatch, lossy, owner, name, nth, after
):
    place = storage.gathering()
    run_id = crashed(monkeypatch, place.create(*PLAIN), owner, name, nth, after=after)
    resumed = place.resume(run_id)
    phases = [dict(run.summary["phases"]) for run in (resumed, lossy)]
    for each in phases:
        del each["seconds"], each["cost_share"]
    assert phases[0] == phases[1]
    ended = [{**comparable(run.summary), "phases": None} for run in (resumed, lossy)]
    assert ended[0] == ended[1]
    assert storage.rows(KEYS) == [(1, "sum", 5), (2, "sum", 5), (3, "pool", 5)]
    assert resumed.survivors() == lossy.survivors()
    assert resumed.personal_parts() == lossy.personal_parts()


@pytest.fixture(scope="module")
def lossy(make_storage: MakeStorage) -> Finished:
    return make_storage("lossy").gathering().run(*PLAIN)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*SHORT, "pool.noise=same"), "pool.noise: 'same'"),
        ((*SHORT, "pool.minimum=6"), "pool.minimum: 6"),
        ((*SHORT, "pool.clipping_norm=0"), "pool.clipping_norm: 0"),
        ((NONE, "pool.clipping_norm=2.0"), "privacy.mechanism = none"),
        # A norm of the pool that bounds nothing.
        (("pool.clipping_norm=2.0", "method.name=promptfl"), "promptfl has no pool"),
        (("pool.clipping_norm=2.0",), "pool.noise = same"),
        (
            ("pool.clipping_norm=2.0", "pool.noise=independent", *ADAPTIVE),
            "privacy.adaptive_clipping moves",
        ),
    ],
)
def test_refused_before_anything_is_written(storage, overrides, words):
    place = storage.gathering() if GATHERING in overrides else storage
    with pytest.raises(ConfigError, match=words):
        place.create(*overrides)
    assert not storage.file.exists()


def test_the_norm_follows_neither_adaptive_clipping_nor_its_flag(storage: Storage) -> None:
    asked = (*SHORT, *FIXED, *ADAPTIVE, "pool.clipping_norm=3.0", "rounds=1")
    run = storage.gathering().run(*asked)
    query = "SELECT clipping_norm, standard_deviation FROM ledger WHERE channel = 'pool' GROUP BY 1"
    assert storage.rows(query) == [(3.0, 12.0)]
    assert run.summary["rounds"][-1]["clipping_norm"] is None
    spent = run.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(4.0, 2), rel=1e-6)


@pytest.mark.parametrize("how", ["another's handle", slow("a short handle"), slow("no levels")])
def test_what_is_not_valid_is_left_out_and_the_others_stay(storage: Storage, how: str) -> None:
    """With no sum beside them, entries that are missing name nobody."""
    with opened(storage.gathering().create(*SHORT, EVERYBODY, "rounds=1")) as simulation:
        inner, names = simulation.run.transport, sorted(simulation.population.clients)

        class Lying:
            def exchange(self, stage: Any, messages: Any, deadline: Any) -> Any:
                answers = dict(inner.exchange(stage, messages, deadline))
                if peek(messages[names[0]])[1].round_number != 2 or stage != "unmask":
                    return answers
                one, other = (decode_disclosure(answers[name]) for name in names[:2])
                changed = {
                    "another's handle": {"handle": other.handle},
                    "a short handle": {"handle": one.handle[:31]},
                    "no levels": {"entry": {"gain": np.zeros(4, np.float32)}},
                }
                lie = dataclasses.replace(one, **changed[how])
                return {**answers, names[0]: encode_disclosure(lie)}

        execute(over(simulation, Lying()), SilentObserver())
    # Of two alike nobody can tell whose it is, so neither counts.
    left = names[2:] if how == "another's handle" else names[1:]
    ((text,),) = storage.rows("SELECT document FROM rounds WHERE round_number = 2")
    assert json.loads(text)["survivors"] == left
    assert storage.rows("SELECT count(*) FROM pool") == [(len(left),)]


def test_a_pool_of_one_is_never_enough(storage: Storage) -> None:
    with opened(storage.gathering().create(*PLAIN, "pool.minimum=1")) as simulation:
        assert simulation.run.terms.pool_rules.minimum == 2


@pytest.mark.slow
def test_an_audit_reaches_the_rounds_and_the_collection(storage: Storage) -> None:
    config = storage.config(GATHERING, *FIXED, "pool.clipping_norm=3.0", "rounds=1")
    plan = plan_run(config, SilentObserver(), storage.gathering().surroundings)
    audits = audit_run(AuditPlan(plan, 200), lambda *_: None)
    assert [(audit.channel, audit.reasons) for audit in audits] == [("sum", ()), ("pool", ())]


def test_a_client_takes_the_rounds_purpose_from_its_number_alone(storage: Storage) -> None:
    with opened(storage.gathering().create(*PLAIN)) as simulation:
        protection = simulation.run.terms.protection
        assert protection.pool_spec is None and protection.channels == ("sum",)
        assert protection.in_round(ROUNDS) is protection
        collection = protection.in_round(COLLECTED)
        assert collection.channels == ("pool",) and not collection.layout.spec
        quiet = dataclasses.replace(protection, sums=collection.sums)
        assert quiet.channels == () and quiet.releases_anything
        assert not dataclasses.replace(quiet, collection=None).releases_anything
        with pytest.raises(ProtocolError, match="nothing is sent"):
            protection.in_round(COLLECTED + 1)
        plan = plan_of(simulation, 1, collects=True)
        unmasked = dataclasses.replace(protection.sums, masked=False)
        bare = dataclasses.replace(protection, sums=unmasked)
        with pytest.raises(ProtocolError, match="masks"):
            ask(simulation, dataclasses.replace(plan, protection=bare))


def plan_of(simulation: Simulation, number: int, attempt: int = 1, *, collects: bool) -> RoundPlan:
    everybody = tuple(simulation.population.clients)
    protection, place = simulation.run.terms.protection, (number, attempt)
    more = {"terms": SumTerms(3), "collects": collects}
    return a_plan(simulation.run_id, place, everybody, protection, **more)


def ask(simulation: Simulation, plan: RoundPlan) -> int:
    """Runs an attempt past the run loop, as a coordinator of its own mind would; its entries."""
    state = simulation.run.terms.initial_state()
    broadcast = simulation.run.terms.method.broadcast(state)
    runner = runner_of(frank(simulation))
    return len(runner.run(plan, lambda client: broadcast, lambda asked: [()] * len(asked)).entries)


def test_an_early_collection_is_a_noised_charge_and_ends_the_rounds(storage: Storage) -> None:
    with opened(storage.gathering().create(*SHORT, EVERYBODY)) as simulation:
        assert ask(simulation, plan_of(simulation, COLLECTED, collects=True)) == 5
        query = "SELECT client, round_number, channel, standard_deviation FROM ledger"
        z = simulation.run.terms.budget.noise_multiplier
        for rows in of_clients(simulation.folder, query).values():
            assert rows == [(COLLECTED, "pool", pytest.approx(z, rel=1e-9))]
        for number in (1, ROUNDS):
            with pytest.raises(CoordinatorBehind, match="answered round 3"):
                ask(simulation, plan_of(simulation, number, collects=False))
        # The collection itself may be tried again, at a charge of its own.
        assert ask(simulation, plan_of(simulation, COLLECTED, 2, collects=True)) == 5


BARE = "secure_aggregation={enabled: false}"
"""Without masks what a lost attempt uploaded has left, and is charged."""


@pytest.mark.slow
def test_a_collection_that_follows_fewer_rounds_is_gone_on_with(storage, monkeypatch):
    """Killed there, it must not try the round again that it could not afford."""
    target = ("privacy.noise_multiplier=null", "privacy.target_epsilon=8.0")
    asked = (*SHORT, EVERYBODY, *UNSAMPLED, *target)
    place = storage.gathering()
    lossy = lose_in(place.create(*asked, BARE, "cohort.retries=1", OS), 1, 1, 1)
    run_id = crashed(monkeypatch, lossy, Client, "_disclose", 2, after=True)
    assert place.rows("SELECT round_number, is_open FROM attempts")[-1] == (COLLECTED, 1)
    resumed = place.resume(run_id).summary
    assert [d["phase"] for d in resumed["rounds"]] == ["rounds", "collection"]
    assert "ended before round 2" in warnings_of(resumed)[0]


def test_the_final_numbers_are_the_last_rounds_not_the_collections(storage: Storage) -> None:
    few = (EVERYBODY, "cohort.size=3", "secure_aggregation.threshold=2")
    summary = storage.gathering().run(*SHORT, *few, "rounds=1").summary
    trained, collected = summary["rounds"][-2:]
    assert (collected["phase"], collected["cohort"]) == ("collection", 5)
    assert storage.rows(KEYS) == [(1, "sum", 3), (2, "pool", 5)]
    same = ("round", "phase", "cohort", "dropped", "bytes_up", "bytes_down", "signal_to_noise")
    assert {k: summary["final"][k] for k in same} == {k: trained[k] for k in same}
    assert trained["signal_to_noise"] is not None
    assert summary["final"]["epsilon"] == collected["epsilon"] != trained["epsilon"]


def test_equal_entries_keep_one_order_and_a_small_pool_is_none() -> None:
    entry = encode_arrays({"gain": np.ones(2, np.float32)})
    same = [PoolEntry(3, bytes([i]) * 32, entry) for i in (4, 1, 3)]
    assert fixed_pool(same, 3, 4).experts == ()
    assert fixed_pool(same, 2, 1).experts == ()
    for rows in (same, same[::-1]):
        pool = fixed_pool(rows, 3, 3)
        assert [pool.fetch(bytes([i]) * 32).own for i in (1, 3, 4, 2)] == [0, 1, 2, None]

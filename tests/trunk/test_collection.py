"""A pool that is made once: one entry from everybody, after the last round, charged once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.bootstrap import plan_run
from platform.contract.driving import a_plan
from platform.errors import ConfigError, ProtocolError
from platform.experiment.comparisons import train_twin
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.client import Client
from platform.privacy_auditing.audit import AuditPlan, audit_run
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.pool import fixed_pool
from platform.rounds.runner import RoundRunner
from platform.rounds.spending import Spending
from platform.wire.codec import decode_arrays, peek
from platform.wire.layout import encode_entry, handle
from platform.wire.messages import SumTerms, decode_disclosure, encode_disclosure
from platform.wire.transport import InProcessTransport
from privacy import ReleaseKey, claimed_epsilon
from storage import PoolEntry
from tests.trunk._runs import (
    GATHERING,
    NONE,
    RECORDS,
    Command,
    Crash,
    Finished,
    Storage,
    comparable,
    crash_at,
    gaussian_epsilon,
    of_clients,
    opened,
    over,
)
from tests.trunk._secure import frank
from tests.trunk.conftest import MakeStorage

ROUNDS = 2
COLLECTED = ROUNDS + 1
SHORT = (*GATHERING, f"rounds={ROUNDS}")
PLAIN = (*SHORT, NONE)
SHARED_OUT = ("privacy.mechanism=distributed_noise", "secure_aggregation.corrupt=1")
KEYS = "SELECT round_number, channel, count(*) FROM ledger GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.fixture(scope="module")
def gathered(make_storage: MakeStorage) -> Finished:
    """Nothing lost, no noise; for reading only."""
    return make_storage("gathered").gathering().run(*PLAIN, "cohort.dropout_rate=0")


@pytest.fixture(scope="module")
def noised(make_storage: MakeStorage) -> Finished:
    """One of five lost in every round, upload noise of the operating system, epsilon 8."""
    fresh = ("privacy.noise_source=os", "pool.clipping_norm=4.0")
    return make_storage("noised-pool").gathering().run(*SHORT, *fresh)


def personal(run: Finished) -> dict[str, dict[str, np.ndarray]]:
    return {name: decode_arrays(part) for name, (part, _) in run.personal_parts().items()}


def entries(run: Finished) -> list[tuple[int, bytes, dict[str, np.ndarray]]]:
    rows = run.storage.rows(
        "SELECT generation, handle, entry FROM pool WHERE run_id = ?", run.run_id
    )
    return [(generation, name, decode_arrays(entry)) for generation, name, entry in rows]


def test_the_pool_holds_one_entry_of_everybody_and_each_client_knows_its_own(
    gathered: Finished,
) -> None:
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
        for adversary in ("server", "peers", "observer"):
            expected = gaussian_epsilon(z, number)
            assert document["epsilon"][adversary] == pytest.approx(expected, rel=1e-6)
    assert 7.99 < gaussian_epsilon(z, 3) <= 8.0
    assert noised.summary["final"]["epsilon"] == noised.summary["rounds"][-1]["epsilon"]


def test_an_entry_carries_the_noise_of_its_own_norm(noised: Finished) -> None:
    """512 coordinates of deviation 4 z each, four entries: a deviation is off by 3% at most."""
    values = np.concatenate([entry["gain"] for _, _, entry in entries(noised)])
    assert values.std() == pytest.approx(4.0 * noised.noise_multiplier, rel=0.15)


def test_clients_keep_the_same_books(noised: Finished) -> None:
    query = "SELECT client, round_number, channel, status FROM ledger"
    books = of_clients(noised.folder, query)
    assert len(books) == 5
    for client, kept in books.items():
        expected = [(n, "sum", "released") for n in (1, 2)] + [(3, "pool", "released")]
        lost = [n for n, survivors in noised.survivors().items() if client not in survivors]
        assert sorted(kept) == [row for row in expected if row[0] not in lost]


def test_the_database_ties_no_entry_to_a_client(noised: Finished) -> None:
    names = [name for _, name, _ in entries(noised)]
    secrets = [secret for _, secret in noised.identities().values()]
    for table in ("rounds", "ledger", "audit", "runs", "states"):
        text = repr(noised.storage.rows(f"SELECT * FROM {table}"))  # noqa: S608
        for value in (*names, *secrets):
            assert value.hex() not in text and repr(value)[2:-1] not in text
    columns = {row[1] for row in noised.storage.rows("PRAGMA table_info(pool)")}
    assert columns == {"key", "run_id", "generation", "cover", "handle", "entry", "digest"}


@pytest.mark.parametrize(
    ("shares", "trains"),
    [
        ("true", "true"),
        ("false", "false"),
        pytest.param("true", "false", marks=pytest.mark.slow),
        pytest.param("false", "true", marks=pytest.mark.slow),
    ],
)
def test_noised_steps_are_charged_and_what_is_made_of_them_is_free(
    storage: Storage, shares: str, trains: str
) -> None:
    """Nothing is charged twice; a run that shares nothing still pays for what its entries tell."""
    options = (f"method.shares={shares}", f"method.trains={trains}", "rounds=1")
    run = storage.gathering().run(*GATHERING, *RECORDS, *options)
    rounds = 2 if trains == "true" else 1
    rows = storage.rows(KEYS)
    assert rows == [(number, "sum", 5) for number in range(1, rounds + 1)]
    assert len(run.summary["rounds"]) == 2
    assert len(entries(run)) == 4
    spent = [d["epsilon"]["server"] for d in run.summary["rounds"]]
    assert (spent[1] > spent[0]) == (trains == "true")


def test_calibration_counts_a_trained_contribution(make_storage: MakeStorage) -> None:
    """Without sampling, as its accounting is quick."""
    target = ("privacy.target_epsilon=4.0", "privacy.noise_multiplier=null", "rounds=1")
    target += ("privacy.sampling_probability=1.0",)
    place = make_storage("calibrated").gathering()
    found = []
    for overrides in (("rounds=2",), ("method.trains=true",), ()):
        with opened(place.create(*GATHERING, *RECORDS, *target, *overrides)) as simulation:
            found.append(simulation.run.terms.budget.noise_multiplier)
    assert found[0] == found[1] > found[2]


def test_noise_that_is_shared_out_is_the_entrys_alone(storage: Storage) -> None:
    run = storage.gathering().run(
        *(*SHORT, *SHARED_OUT, "cohort.dropout_rate=0", "rounds=1"),
        *("privacy.target_epsilon=null", "privacy.noise_multiplier=6.0"),
    )
    kinds = "SELECT round_number, channel, mechanism, shares FROM ledger GROUP BY 1, 2, 3, 4"
    assert storage.rows(kinds) == [
        (1, "sum", "distributed_noise", 2),
        (2, "pool", "upload_noise", 1),
    ]
    claimed = run.summary["final"]["epsilon"]["server"]
    # The bound for integers is above the formula for the reals, and below that of one more.
    assert gaussian_epsilon(6.0, 2) <= claimed < gaussian_epsilon(6.0, 3)


def test_calibration_of_shared_out_noise_counts_the_entry(storage: Storage) -> None:
    with opened(storage.gathering().create(*SHORT, *SHARED_OUT)) as simulation:
        protection = simulation.run.terms.protection
    key = {"run_id": "r", "attempt": 1, "pseudonym": "p"}
    rows = [
        row
        for number in (1, 2, COLLECTED)
        for row in protection.in_round(number).releases(ReleaseKey(round_number=number, **key))
    ]
    assert [row.channel for row in rows] == ["sum", "sum", "pool"]
    assert 7.99 < claimed_epsilon(rows, 1e-5, "auto").epsilon <= 8.0
    assert claimed_epsilon(rows[:2], 1e-5, "auto").epsilon < 7.0


def spy(simulation: Simulation, seen: dict[int, list[tuple[str, Any]]]) -> Simulation:
    """The simulation, every exchange of its transport written down."""
    inner = simulation.run.transport

    @dataclasses.dataclass(frozen=True)
    class Spy:
        def exchange(self, stage: Any, messages: Any, deadline: Any) -> Any:
            answers = inner.exchange(stage, messages, deadline)
            seen.setdefault(len(seen) + 1, []).append((stage, answers))
            return answers

    return over(simulation, Spy())


def test_nothing_of_a_module_leaves_before_the_collection(storage: Storage) -> None:
    """Without masks a round is invitation and upload; an entry would need a third stage."""
    bare = ("secure_aggregation.enabled=false", "secure_aggregation.threshold=null")
    seen: dict[int, list[tuple[str, Any]]] = {}
    with opened(storage.gathering().create(*PLAIN, *bare)) as simulation:
        execute(spy(simulation, seen), SilentObserver())
        upload = simulation.run.terms.method.shared_spec()["weight"].shape
    stages = [stage for exchanges in seen.values() for stage, _ in exchanges]
    training, collecting = ["advertise", "train"], ["advertise", "train", "unmask"]
    # What clients count for the experimenter is no upload, and is asked for after each commit.
    between = [*training, "evaluate"] * ROUNDS + [*collecting, "evaluate"]
    assert stages == [*between, "claim", "personalise", "evaluate"]
    sizes = [
        [len(a) for a in answers.values() if isinstance(a, bytes)]
        for exchanges in seen.values()
        for stage, answers in exchanges
        if stage == "train"
    ]
    assert all(size > 8 * np.prod(upload) for size in sizes[0] + sizes[1])
    # The collection's upload holds no vector: its entry follows alone.
    assert max(sizes[2]) < 500


def test_the_cohort_of_the_collection_is_everybody(storage: Storage) -> None:
    few = ("cohort.size=3", "cohort.dropout_rate=0", "secure_aggregation.threshold=2")
    run = storage.gathering().run(*PLAIN, *few)
    assert [len(s) for s in run.survivors().values()] == [3, 3, 5]
    assert [d["cohort"] for d in run.summary["rounds"]] == [3, 3, 5]
    assert storage.rows(KEYS) == [(1, "sum", 3), (2, "sum", 3), (3, "pool", 5)]


def test_the_phases_are_told_apart(gathered: Finished, sotto: Command) -> None:
    rounds = gathered.summary["rounds"]
    assert [d["phase"] for d in rounds] == ["rounds", "rounds", "collection"]
    # Nothing is trained in it, so nothing changes.
    assert rounds[2]["accuracy"] == rounds[1]["accuracy"]
    phases = gathered.summary["phases"]
    assert phases["before"] == rounds[2]["accuracy"]
    assert phases["after"] == gathered.summary["final"]["accuracy"]
    seconds = phases["seconds"]
    assert all(value > 0 for value in seconds.values())
    # Measuring after each round is not counted.
    assert seconds["rounds"] < sum(d["seconds"] for d in rounds[:2])
    share = (seconds["collection"] + seconds["second"]) / seconds["rounds"]
    assert phases["cost_share"] == pytest.approx(share, rel=0.05)
    answer = sotto("report", gathered.run_id, "--storage", gathered.storage.url)
    lines = answer.out.splitlines()
    assert [
        line.endswith(" collection") for line in lines if line.strip()[:2] in ("1 ", "2 ", "3 ")
    ]
    assert sum(line.endswith(" collection") for line in lines) == 1
    assert "before the second phase" in answer.out and "after the second phase" in answer.out


def test_a_run_without_such_a_pool_has_no_phases(plain_run: Finished) -> None:
    assert plain_run.summary["phases"] is None
    assert {d["phase"] for d in plain_run.summary["rounds"]} == {"rounds"}


def test_warnings_promise_nothing(gathered: Finished, noised: Finished) -> None:
    for run in (gathered, noised):
        text = " ".join(run.summary["warnings"])
        assert "is a model of its owner's data" in text and "linkable" in text
        assert "2(K+1)" not in text and "were not made" not in text
    assert any("charged once" in text for text in noised.summary["warnings"])


def test_the_server_state_is_that_of_the_last_round(gathered: Finished) -> None:
    rows = gathered.storage.rows("SELECT round_number FROM states ORDER BY 1")
    assert rows == [(1,), (2,)]
    actions = (
        "SELECT action, round_number, channel FROM audit WHERE round_number = 3 ORDER BY sequence"
    )
    assert gathered.storage.rows(actions) == [
        ("release.reserved", 3, "pool"),
        ("round.opened", 3, None),
        ("round.committed", 3, "pool"),
        ("pool.committed", 3, "pool"),
    ]


def lose_in(simulation: Simulation, number: int, left: int) -> Simulation:
    """The simulation with all but some clients silent in one round."""
    transport = simulation.run.transport
    assert isinstance(transport, InProcessTransport)
    usual, silent = transport.losses, frozenset(sorted(simulation.population.clients)[left:])
    lossy = dataclasses.replace(
        transport, losses=lambda n, a, cohort: silent if n == number else usual(n, a, cohort)
    )
    return over(simulation, lossy)


def test_a_collection_of_one_is_none_and_the_run_goes_on_without_experts(storage: Storage) -> None:
    with opened(storage.gathering().create(*PLAIN, "cohort.retries=1")) as simulation:
        summary = execute(lose_in(simulation, COLLECTED, 1), SilentObserver())
        run = Finished(storage, simulation.run_id, summary)
    assert entries(run) == []
    assert all(set(state) == {"gain"} for state in personal(run).values())
    assert summary["warnings"][0].startswith("the pool was not made, and clients personalised")
    assert "at least 2 must" in summary["warnings"][0]
    last = summary["rounds"][-1]
    assert (last["phase"], last["dropped"]) == ("collection", 5)
    # Both attempts may have left clients, and stay charged.
    assert storage.rows(KEYS)[-1] == (COLLECTED, "pool", 10)


def test_a_failed_collection_is_not_tried_again_by_a_resumed_run(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = storage.gathering()
    with (
        monkeypatch.context() as patch,
        opened(place.create(*PLAIN, "cohort.retries=0")) as simulation,
    ):
        crash_at(patch, Client, "_part", 2)
        with pytest.raises(Crash):
            execute(lose_in(simulation, COLLECTED, 1), SilentObserver())
    resumed = place.resume(simulation.run_id)
    assert entries(resumed) == []
    assert all(set(state) == {"gain"} for state in personal(resumed).values())
    assert "the pool was not made" in resumed.summary["warnings"][0]


@pytest.mark.parametrize(
    ("owner", "name", "nth", "after"),
    [
        pytest.param(*(Client, "_train", 6, True), marks=pytest.mark.slow),
        pytest.param(*(Spending, "reserve", 3, True), marks=pytest.mark.slow),
        (Client, "_train", 10, True),
        (Federation, "_commit_pool", 3, False),
        (Federation, "_commit", 3, True),
        pytest.param(*(Client, "_claim", 3, False), marks=pytest.mark.slow),
        (Client, "_claim", 3, True),
        pytest.param(*(Client, "_part", 3, False), marks=pytest.mark.slow),
        pytest.param(*(Client, "_examine", 3, False), marks=pytest.mark.slow),
        pytest.param(*(Client, "_examine", 13, True), marks=pytest.mark.slow),
        (Client, "_examine", 18, True),
    ],
)
def test_a_run_that_was_killed_ends_as_if_nothing_had_happened(
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    lossy: Finished,
    owner: Any,
    name: str,
    nth: int,
    after: bool,
) -> None:
    place = storage.gathering()
    with monkeypatch.context() as patch, opened(place.create(*PLAIN)) as simulation:
        crash_at(patch, owner, name, nth, after=after)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    resumed = place.resume(simulation.run_id)
    assert timeless(resumed.summary) == timeless(lossy.summary)
    assert storage.rows(KEYS) == [(1, "sum", 5), (2, "sum", 5), (3, "pool", 5)]
    assert resumed.survivors() == lossy.survivors()
    assert resumed.personal_parts() == lossy.personal_parts()
    if nth == 18:
        # Nobody timed the part that was done before.
        assert resumed.summary["phases"]["cost_share"] is None


@pytest.fixture(scope="module")
def lossy(make_storage: MakeStorage) -> Finished:
    """One of five lost in every round, no noise; for reading only."""
    return make_storage("lossy").gathering().run(*PLAIN)


def timeless(summary: dict[str, Any]) -> dict[str, Any]:
    kept = comparable(summary)
    kept["phases"] = {k: v for k, v in kept["phases"].items() if k in ("before", "after")}
    return kept


def test_an_interrupted_collection_with_fresh_noise_pays_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = storage.gathering()
    fresh = (*SHORT, "privacy.noise_source=os")
    with monkeypatch.context() as patch, opened(place.create(*fresh)) as simulation:
        crash_at(patch, Client, "_disclose", 10, after=True)
        with pytest.raises(Crash):
            execute(simulation, SilentObserver())
    resumed = place.resume(simulation.run_id)
    assert storage.rows(KEYS)[-1] == (3, "pool", 5)
    assert [d["phase"] for d in resumed.summary["rounds"]] == ["rounds", "rounds", "collection"]
    assert len(entries(resumed)) == 4
    assert 7.9 < resumed.summary["final"]["epsilon"]["server"] <= 8.0


REFUSED = {
    "pool.noise=same": "pool.noise: 'same' has no meaning with gathering",
    "pool.minimum=6": "pool.minimum: 6 is more than the entries that there will be; valid: 2 to",
    "pool.clipping_norm=0": "pool.clipping_norm: 0 is not valid",
}


@pytest.mark.parametrize("override", REFUSED)
def test_refused_in_one_sentence_before_anything_is_written(
    storage: Storage, override: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        storage.gathering().create(*SHORT, override)
    assert str(refused.value).startswith(REFUSED[override])
    assert not storage.file.exists()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((NONE, "pool.clipping_norm=2.0"), "under privacy.mechanism = none"),
        (("method.name=promptfl", "pool.clipping_norm=2.0"), "promptfl has no pool"),
        (("pool.clipping_norm=2.0",), "no meaning with pool.noise = same"),
        (
            (
                "pool.noise=independent",
                "pool.clipping_norm=2.0",
                "privacy.adaptive_clipping={quantile: 0.5}",
            ),
            "privacy.adaptive_clipping moves the norm",
        ),
    ],
)
def test_a_norm_that_bounds_nothing_is_refused(
    storage: Storage, overrides: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=r"pool\.clipping_norm") as refused:
        storage.create(*overrides)
    assert reason in str(refused.value)


def test_a_pool_of_every_round_may_have_its_own_norm(storage: Storage) -> None:
    run = storage.run("pool.noise=independent", "pool.clipping_norm=3.0", "rounds=1")
    rows = storage.rows("SELECT channel, clipping_norm, standard_deviation FROM ledger GROUP BY 1")
    z = run.noise_multiplier
    assert rows == [("pool", 3.0, pytest.approx(3 * z)), ("sum", 1.0, pytest.approx(z))]
    assert run.summary["final"]["epsilon"]["server"] == pytest.approx(
        gaussian_epsilon(z, 2), rel=1e-6
    )


def test_the_norm_follows_neither_adaptive_clipping_nor_its_flag(storage: Storage) -> None:
    adaptive = "privacy.adaptive_clipping={quantile: 0.5, learning_rate: 0.3, flag_ratio: 0.2}"
    fixed = ("privacy.target_epsilon=null", "privacy.noise_multiplier=4.0", adaptive)
    run = storage.gathering().run(*SHORT, *fixed, "pool.clipping_norm=3.0")
    query = "SELECT clipping_norm, standard_deviation FROM ledger WHERE channel = 'pool' GROUP BY 1"
    assert storage.rows(query) == [(3.0, 12.0)]
    assert run.summary["rounds"][-1]["clipping_norm"] is None
    assert run.summary["final"]["epsilon"]["server"] == pytest.approx(
        gaussian_epsilon(4.0, 3), rel=1e-6
    )


@pytest.mark.parametrize("how", ["another's handle", "a short handle", "no levels"])
def test_what_is_not_valid_is_left_out_and_the_others_stay(storage: Storage, how: str) -> None:
    """With no sum beside them, entries that are missing name nobody."""
    with opened(
        storage.gathering().create(*SHORT, "cohort.dropout_rate=0", "rounds=1")
    ) as simulation:
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

        run_id = simulation.run_id
        execute(over(simulation, Lying()), SilentObserver())
    # Of two alike nobody can tell whose it is, so neither counts.
    left = names[2:] if how == "another's handle" else names[1:]
    ((text,),) = storage.rows("SELECT document FROM rounds WHERE round_number = 2")
    assert json.loads(text)["survivors"] == left
    assert storage.rows("SELECT count(*) FROM pool WHERE run_id = ?", run_id) == [(len(left),)]


def test_local_twins_train_in_the_rounds_only(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[list[int], int]] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        trained.append((args[3], kwargs["final_round"]))
        return train_twin(*args, **kwargs)

    monkeypatch.setattr("platform.experiment.comparisons.train_twin", noted)
    run = storage.gathering().run(*PLAIN, "cohort.dropout_rate=0", "evaluation.local_twins=true")
    assert trained == [([1, 2], COLLECTED + 1)] * 5
    assert run.summary["gain_over_local"] is not None


@pytest.mark.parametrize(("asked", "minimum"), [("null", 2), ("1", 2), ("4", 4)])
def test_the_smallest_pool(storage: Storage, asked: str, minimum: int) -> None:
    with opened(storage.gathering().create(*PLAIN, f"pool.minimum={asked}")) as simulation:
        assert simulation.run.terms.pool_rules is not None
        assert simulation.run.terms.pool_rules.minimum == minimum


def test_an_audit_reaches_the_rounds_and_the_collection(storage: Storage) -> None:
    explicit = ("privacy.target_epsilon=null", "privacy.noise_multiplier=4.0")
    config = storage.config(*GATHERING, *explicit, "pool.clipping_norm=3.0", "rounds=1")
    plan = plan_run(config, SilentObserver(), storage.gathering().surroundings)
    audits = audit_run(AuditPlan(plan, 200), lambda *_: None)
    assert [(audit.channel, audit.reasons) for audit in audits] == [("sum", ()), ("pool", ())]


def test_an_audit_of_noised_steps_has_as_many_rounds_as_it_likes(storage: Storage) -> None:
    config = storage.config(*GATHERING, *RECORDS, "rounds=1")
    plan = plan_run(config, SilentObserver(), storage.gathering().surroundings)
    (audit,) = audit_run(AuditPlan(plan, 100), lambda *_: None)
    assert (audit.mechanism, audit.reasons) == ("dp_sgd", ())


def test_a_client_takes_the_rounds_purpose_from_its_number_alone(storage: Storage) -> None:
    """No entry under the number of a round, no update under the collection's, nothing past it."""
    with opened(storage.gathering().create(*PLAIN)) as simulation:
        protection = simulation.run.terms.protection
        assert protection.pool_spec is None and protection.channels == ("sum",)
        assert protection.in_round(ROUNDS) is protection
        collection = protection.in_round(COLLECTED)
        assert collection.channels == ("pool",) and not collection.layout.spec
        with pytest.raises(ProtocolError, match="nothing is sent after it"):
            protection.in_round(COLLECTED + 1)
        method, state = simulation.run.terms.method, simulation.run.terms.initial_state()
        sums = dataclasses.replace(protection.sums, masked=False)
        telling = frank(simulation).run.transport
        runner = RoundRunner(telling)
        plan = a_plan(
            simulation.run_id,
            (1, 1),
            tuple(simulation.population.clients),
            dataclasses.replace(protection, sums=sums),
            terms=SumTerms(3),
            collects=True,
        )
        with pytest.raises(ProtocolError, match="masks"):
            runner.run(
                plan,
                lambda client: method.broadcast(state, client),
                lambda asked: [()] * len(asked),
            )


def test_equal_entries_keep_one_order_and_a_small_pool_is_none() -> None:
    entry = encode_entry({"gain": np.ones(2, np.float32)})
    same = [PoolEntry(3, bytes([i]) * 32, entry) for i in (4, 1, 3)]
    assert fixed_pool(same, 3, 4).experts == ()
    assert fixed_pool(same, 2, 1).experts == ()
    for rows in (same, same[::-1]):
        pool = fixed_pool(rows, 3, 3)
        assert [pool.fetch(bytes([i]) * 32).own for i in (1, 3, 4, 2)] == [0, 1, 2, None]


def test_summary_of_the_disk_is_the_returned_one(gathered: Finished) -> None:
    written = json.loads(Path(gathered.folder / "summary.json").read_text())
    assert written["phases"] == gathered.summary["phases"]
    header, *rows = (gathered.folder / "metrics.csv").read_text().splitlines()
    assert header.split(",")[:3] == ["round", "phase", "cohort"]
    assert rows[-1].split(",")[:2] == ["3", "collection"]

"""Cohorts drawn in secret: what they amplify, what is released of them, what voids the claim."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

from platform.config import parse_config
from platform.errors import ConfigError
from platform.experiment.finishing import execute
from platform.protection.sums import secure_terms
from platform.relay.hub import Hub
from platform.rounds.attempts import draw_cohort, simulated_losses
from platform.rounds.observing import SilentObserver
from platform.wire.codec import peek
from platform.wire.transport import Dropout
from privacy import DP_SGD, GAUSSIAN, Release, epsilon
from privacy.training import LocalTrainer
from tests.trunk._federations import Holders, federation, hold, over_sockets
from tests.trunk._hubs import relayed, served
from tests.trunk._leaving import MASKED, agrees, ledger, survivors
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    OS,
    Storage,
    crashed,
    gaussian_epsilon,
    losing,
    opened,
    slow,
)

CENTRAL = ("privacy.mechanism=central_noise", *NO_POOL, *FIXED, "secure_aggregation.enabled=false")


def central_release(number: int, probability: float) -> Release:
    place = {"run_id": "r", "round_number": number, "attempt": 1, "pseudonym": "p"}
    kind = {"mechanism": DP_SGD, "relation": "add_or_remove_one", "channel": "sum"}
    noise = {"standard_deviation": 4.0, "law": GAUSSIAN, "clipping_norm": 1.0}
    drawn = {"sampling": "poisson", "sampling_probability": probability}
    return Release(status="reserved", **place, **kind, **noise, **drawn)


FEW = ("cohort.size=2", "cohort.dropout_rate=0", "rounds=1", "task.test_per_class=1")
AMPLIFIED = (*CENTRAL, "cohort.minimum=1", "cohort.retries=0")
POISSON = (*AMPLIFIED, "privacy.relation=add_or_remove_one", "cohort.sampling=poisson")


def test_poisson_cohorts_amplify_against_the_observer_only(storage: Storage) -> None:
    run = storage.run(*POISSON, *FEW, "rounds=2", "seed=5")
    summary, final = run.summary, run.summary["final"]
    assert final["epsilon"]["server"] == "inf"
    sampled = [central_release(n, 0.4) for n in (1, 2)]
    expected = epsilon(sampled, 1e-5).epsilon
    assert final["epsilon"]["observer"] == pytest.approx(expected, rel=0.02)
    assert final["epsilon"]["observer"] < gaussian_epsilon(8.0, 2)
    assert "Poisson cohorts, probability 0.4" in summary["sampling"]
    assert all(r["cohort"] is None and r["dropped"] is None for r in summary["rounds"])
    assert storage.rows("SELECT round_number, count(*) FROM ledger GROUP BY 1") == [(1, 5), (2, 5)]


def test_a_poisson_cohort_of_any_size_is_summed(storage: Storage) -> None:
    """The sum of one client is released like any other: with next to no noise, it is that sum."""
    names = [f"client-{i}" for i in range(5)]
    for seed in range(100):
        given = (*POISSON, *FEW, "privacy.noise_multiplier=1e-6", f"seeds.cohort={seed}")
        if len(draw_cohort(storage.config(*given), names, 1)) == 1:
            break
    run = storage.run(*given)
    with opened(storage.create(*given)) as simulation:
        start = simulation.run.terms.initial_state()
        # The ring holds the sum of everybody, as coins may draw everybody.
        assert simulation.run.terms.protection.sums.clients == 5
    (alone,) = run.survivors()[1]
    moved = np.linalg.norm(run.state()["context"] - start["context"])
    # Clipped to 1 at most and divided by the planned size, 2; noise alone would be about 1e-5 long.
    assert 1e-3 < moved <= 0.5 * (1 + 1e-3), alone


@pytest.mark.parametrize("kind", ["poisson", slow("fixed_size")])
def test_a_round_that_nobody_is_left_in_is_noise_alone_and_charged(storage, kind):
    sampled = POISSON if kind == "poisson" else AMPLIFIED
    with opened(storage.create(*sampled, *FEW)) as simulation:
        assert simulation.run.terms.cohort_kind == kind
        silent = losing(simulation, lambda number, attempt, cohort: frozenset(cohort))
        summary = execute(silent, SilentObserver())
    charged = storage.rows("SELECT round_number, attempt, count(*) FROM ledger GROUP BY 1, 2")
    assert charged == [(1, 1, 5)]
    assert 0 < summary["final"]["epsilon"]["observer"] < gaussian_epsilon(4.0, 1)


@pytest.mark.parametrize(
    "given",
    [slow("secure_aggregation.enabled=true"), slow("cohort.minimum=2"), "cohort.retries=1"],
)
def test_what_could_withhold_a_sum_leaves_fixed_size_unamplified(storage, given):
    run = storage.run(*AMPLIFIED, *FEW, "secure_aggregation.threshold=2", given)
    assert run.summary["sampling"] == "none"
    observer = run.summary["final"]["epsilon"]["observer"]
    # The bound after rounding to the grid is a little above C.
    assert observer == pytest.approx(gaussian_epsilon(4.0, 1), rel=1e-3)


def test_a_crash_goes_on_with_the_cohort_or_amplifies_nothing(storage, monkeypatch):
    """Which draws are thrown away may depend on them, so one that replaces another is not fair."""
    once = storage.run(*AMPLIFIED, OS, *FEW)
    run_id = crashed(monkeypatch, storage.create(*AMPLIFIED, OS, *FEW), LocalTrainer, "fit", 1)
    drawn = "SELECT pseudonym FROM ledger WHERE run_id = ? AND cohort_drawn ORDER BY 1"
    before = storage.rows(drawn, run_id)
    again = storage.resume(run_id)
    spent = [run.summary["final"]["epsilon"]["observer"] for run in (once, again)]
    ((attempts,),) = storage.rows("SELECT max(attempt) FROM ledger WHERE run_id = ?", again.run_id)
    if attempts == 1:
        assert storage.rows(drawn, run_id) == before
        assert spent[1] == spent[0]
    else:
        assert spent[1] == pytest.approx(gaussian_epsilon(4.0, 2), rel=1e-3)
        assert spent[0] < spent[1]


def test_fixed_size_amplifies_without_personal_state_only(storage: Storage) -> None:
    kinds = {}
    for method in (NO_POOL, ("method.name=coop", "method.context_tokens=2"), ()):
        # The pool's method is the configuration's own; an entry shows who was drawn.
        named = [o for o in AMPLIFIED if not o.startswith("method.")]
        with opened(storage.create(*named, *method, *FEW, "pool.minimum=2")) as simulation:
            kinds[simulation.run.terms.config.method.name] = (
                simulation.run.terms.cohort_kind,
                simulation.run.terms.method.has_personal_state,
            )
    assert kinds["promptfl"] == ("fixed_size", False)
    assert kinds["pfedmoap"] == (None, True)
    assert all(kind is None for kind, personal in kinds.values() if personal)


NAMES = tuple(f"client-{i:02d}" for i in range(20))


def config(privacy=None, **cohort):
    seeds = {"cohort": cohort.pop("seed")} if "seed" in cohort else {}
    tree = {"name": "c", "method": {"name": "promptfl"}, "training": {"local_steps": 1}}
    more = {"task": {"clients": 20}, "cohort": cohort, "seeds": seeds, "privacy": privacy or {}}
    return parse_config({**tree, **more})


def test_a_cohort_has_the_configured_size_and_differs_by_round_and_seed_alone():
    chosen = config(size=7)
    for number in range(1, 20):
        cohort = draw_cohort(chosen, NAMES, number)
        assert len(set(cohort)) == 7
        assert list(cohort) == sorted(cohort)
        assert set(cohort) <= set(NAMES)
    assert draw_cohort(config(), NAMES, 1) == NAMES
    assert len({draw_cohort(chosen, NAMES, number) for number in range(1, 30)}) == 29
    assert draw_cohort(chosen, NAMES, 4) == draw_cohort(config(size=7), NAMES, 4)
    assert draw_cohort(chosen, NAMES, 4) != draw_cohort(config(size=7, seed=1), NAMES, 4)


def test_everybody_is_drawn_equally_often():
    """600 rounds of 5 of 20: 150 expected, six deviations of sqrt(600/4 x 3/4) = 10.6."""
    chosen = config(size=5)
    counts = Counter(n for r in range(600) for n in draw_cohort(chosen, NAMES, r))
    assert set(counts) == set(NAMES)
    assert all(abs(count - 150) < 64 for count in counts.values())


@pytest.mark.parametrize(
    ("size", "rate", "lost"), [(10, 0.2, 2), (10, 0.0, 0), (10, 0.35, 4), (7, 0.2, 1)]
)
def test_exactly_the_rounded_share_is_lost(size, rate, lost):
    chosen = config(size=size, dropout_rate=rate)
    losses = simulated_losses(chosen)
    for number in range(1, 12):
        cohort = draw_cohort(chosen, NAMES, number)
        gone = losses(number, 1, cohort)
        assert len(gone) == lost == round(rate * size)
        assert gone <= set(cohort)


def test_losses_differ_by_round_and_attempt_and_are_the_same_again():
    losses = simulated_losses(config(dropout_rate=0.3))
    again = simulated_losses(config(dropout_rate=0.3))
    drawn = {losses(number, attempt, NAMES) for number in range(1, 6) for attempt in (1, 2)}
    assert len(drawn) == 10
    assert losses(3, 2, NAMES) == again(3, 2, NAMES)


def test_losses_of_a_secret_cohort_do_not_depend_on_who_else_was_drawn():
    """Each client is lost on a coin of its own, in every cohort alike: else no draw amplifies."""
    noise = {"mechanism": "central_noise", "clipping_norm": 1.0, "noise_multiplier": 1.0}
    secret = config(noise, size=10, minimum=1, retries=0, dropout_rate=0.3)
    losses = simulated_losses(secret)
    often = 0
    for number in range(1, 101):
        everybody = losses(number, 1, NAMES)
        often += len(everybody)
        for drawn in (NAMES[:1], NAMES[3:9], NAMES[::2]):
            assert losses(number, 1, drawn) == everybody & set(drawn)
    # 2,000 coins at 0.3: 600 expected, six deviations of sqrt(600 x 0.7) = 20.5.
    assert abs(often - 600) < 123


FIRST_THREE = (*MASKED, "federation.go_on_with=3")


def test_a_wait_is_over_with_enough_answers_and_what_fails_or_comes_later_harms_nothing(folder):
    held = threading.Event()

    def slow(message: bytes) -> bytes:
        held.wait(60)
        return message

    def broken(message: bytes) -> bytes:
        raise ValueError("no")

    handlers = {"east": bytes, "north": slow, "south": bytes, "west": broken}
    try:
        with Hub(path=folder / "hub", clients=list(handlers)) as hub:
            with served(handlers, folder) as sockets, relayed(folder / "hub", sockets):
                found = hub.exchange("train", dict.fromkeys(handlers, b"a"), 60.0, 2)
                assert not held.is_set()
                assert isinstance(found.pop("north"), Dropout)
                assert isinstance(found.pop("west"), Dropout)
                assert found == {"east": b"a", "south": b"a"}
                held.set()
                again = hub.exchange("train", dict.fromkeys(handlers, b"b"), 60.0, 3)
                assert isinstance(again.pop("west"), Dropout)
                assert set(again.values()) == {b"b"}
    finally:
        held.set()


@pytest.mark.slow
def test_a_run_waits_for_the_fastest_only_and_the_slowest_is_lost_in_that_round(folder):
    """The slow one trains in round 1 until the others have committed it and are in round 2."""
    holders = Holders.written(folder)
    handlers, committed = holders.handlers(), threading.Event()

    def slow(message: bytes) -> bytes:
        answer = handlers["west"](message)
        if asked(message) == ("assignment", 1):
            assert committed.wait(60)
        return answer

    def fast(message: bytes) -> bytes:
        if asked(message)[1] == 2:
            committed.set()
        return handlers["east"](message)

    around = {**handlers, "west": slow, "east": fast}
    summary = hold(federation(folder, *FIRST_THREE), over_sockets(around, folder))
    assert survivors(folder)[1] == ["east", "north", "south"]
    # Later it may be as fast as the others: then all four count.
    assert all(len(who) >= 3 for who in survivors(folder).values())
    assert summary["rounds"][0]["dropped"] == 1
    assert (1, 1, "sum") in ledger(folder, "west")
    agrees(folder, summary["run_id"])


def asked(message: bytes) -> tuple[str, int]:
    kind, envelope = peek(message)
    return kind, envelope.round_number


@pytest.mark.parametrize("key", ["go_on_with", "start_with"])
def test_a_number_that_no_round_can_be_held_with_and_a_secret_draw_are_refused(folder, key):
    """Who comes first is no secret."""
    for number in (2, 5):
        with pytest.raises(ConfigError, match=rf"federation\.{key}: {number} .* 3 to 4"):
            federation(folder, *MASKED, f"federation.{key}={number}")
    secret = (
        "privacy={mechanism: central_noise, clipping_norm: 0.1, noise_multiplier: 1.0}",
        "secure_aggregation.largest_weight=null",
        "cohort={size: 2, sampling: poisson, minimum: 1, retries: 0}",
    )
    federation(folder, *secret)
    with pytest.raises(ConfigError, match=rf"federation\.{key}: 2 does"):
        federation(folder, *secret, f"federation.{key}=2")


def test_a_graph_that_tolerates_fewer_losses_needs_more(folder):
    """Of 100 clients on the complete graph 67 would do; the sparse one withstands ten losses."""
    names = [f"n{number}" for number in range(100)]
    config = federation(
        folder,
        *(f"federation.clients=[{', '.join(names)}]", "task.clients=100"),
        *("federation.go_on_with=80", "privacy.mechanism=none", "privacy.clipping_norm=null"),
        "secure_aggregation={enabled: true, graph: k_regular, tolerated_dropout_rate: 0.1}",
    )
    with pytest.raises(ConfigError, match=r"federation\.go_on_with: 80 .* or 90 at least"):
        secure_terms(config)

"""Cohorts drawn in secret: what they amplify, what is released of them, what voids the claim."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from platform.experiment.finishing import execute
from platform.rounds.attempts import draw_cohort
from platform.rounds.observing import SilentObserver
from platform.wire.transport import InProcessTransport
from privacy import DP_SGD, GAUSSIAN, Release, epsilon
from privacy.training import LocalTrainer
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    OS,
    Crash,
    Storage,
    crash_at,
    gaussian_epsilon,
    opened,
    over,
)

CENTRAL = (
    "privacy.mechanism=central_noise",
    *NO_POOL,
    *FIXED,
    "secure_aggregation.enabled=false",
)


def central_release(number: int, probability: float) -> Release:
    """A round of Poisson cohorts by the formula's own names."""
    return Release(
        mechanism=DP_SGD,
        standard_deviation=4.0,
        law=GAUSSIAN,
        clipping_norm=1.0,
        relation="add_or_remove_one",
        channel="sum",
        run_id="r",
        round_number=number,
        attempt=1,
        pseudonym="p",
        status="reserved",
        sampling="poisson",
        sampling_probability=probability,
    )


TWINLESS = "evaluation.local_twins=false"
AMPLIFIED = (*CENTRAL, "cohort.minimum=1", "cohort.retries=0")
POISSON = (*AMPLIFIED, "privacy.relation=add_or_remove_one", "cohort.sampling=poisson")


def test_poisson_cohorts_amplify_against_the_observer_only(storage: Storage) -> None:
    run = storage.run(*POISSON, "cohort.size=2", "cohort.dropout_rate=0", "rounds=2", "seed=5")
    summary, final = run.summary, run.summary["final"]
    assert final["epsilon"]["server"] == "inf"
    sampled = [central_release(n, 0.4) for n in (1, 2)]
    expected = epsilon(sampled, 1e-5).epsilon
    assert final["epsilon"]["observer"] == pytest.approx(expected, rel=0.02)
    assert final["epsilon"]["observer"] < gaussian_epsilon(8.0, 2)
    assert summary["sampling"] == (
        "for observer: Poisson cohorts, probability 0.4, kept secret; losses do not depend on who "
        "else was drawn"
    )
    assert all(r["cohort"] is None and r["dropped"] is None for r in summary["rounds"])
    # Everybody has a row in every round, drawn or not.
    assert storage.rows("SELECT round_number, count(*) FROM ledger GROUP BY 1") == [(1, 5), (2, 5)]


def test_a_poisson_cohort_of_any_size_is_summed(storage: Storage) -> None:
    """The sum of one client is released like any other: with next to no noise, it is that sum."""
    quiet = [*POISSON, "privacy.noise_multiplier=1e-6", "rounds=1", "cohort.dropout_rate=0"]
    names = [f"client-{i}" for i in range(5)]
    for seed in range(100):
        given = (*quiet, "cohort.size=2", f"seeds.cohort={seed}")
        if len(draw_cohort(storage.config(*given), names, 1)) == 1:
            break
    run, start = storage.run(*given, TWINLESS), initial_state(storage, *given)
    (alone,) = run.survivors()[1]
    moved = np.linalg.norm(run.state()["context"] - start["context"])
    # Clipped to 1 at most and divided by the planned size, 2; noise alone would be about 1e-5 long.
    assert 1e-3 < moved <= 0.5 * (1 + 1e-3), alone


def test_a_ring_holds_the_sum_of_everybody_where_coins_draw(storage: Storage) -> None:
    with opened(storage.create(*POISSON, "cohort.size=2")) as simulation:
        assert simulation.run.terms.protection.sums.clients == 5


def initial_state(storage: Storage, *overrides: str) -> Mapping[str, Any]:
    with opened(storage.create(*overrides)) as simulation:
        return simulation.run.terms.initial_state()


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
def test_a_round_that_nobody_is_left_in_is_noise_alone_and_charged(
    storage: Storage, kind: str
) -> None:
    sampled = POISSON if kind == "poisson" else AMPLIFIED
    few = ("cohort.size=2", "cohort.dropout_rate=0", "rounds=1", TWINLESS)
    with opened(storage.create(*sampled, *few)) as simulation:
        assert simulation.run.terms.cohort_kind == kind
        transport = simulation.run.transport
        assert isinstance(transport, InProcessTransport)
        silent = dataclasses.replace(
            transport, losses=lambda number, attempt, cohort: frozenset(cohort)
        )
        summary = execute(over(simulation, silent), SilentObserver())
    assert storage.rows("SELECT round_number, attempt, count(*) FROM ledger GROUP BY 1, 2") == [
        (1, 1, 5)
    ]
    assert 0 < summary["final"]["epsilon"]["observer"] < gaussian_epsilon(4.0, 1)


@pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
def test_methods_see_the_planned_size_whoever_came(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sampled = POISSON if kind == "poisson" else AMPLIFIED
    seen: list[tuple[int, float]] = []
    with opened(
        storage.create(*sampled, "cohort.size=3", "cohort.dropout_rate=0.4", "rounds=4", TWINLESS)
    ) as simulation:
        update = type(simulation.run.terms.method).server_update

        def watched(method, state, aggregate, pool, rng):
            seen.append((aggregate.cohort_size, aggregate.total_weight))
            return update(method, state, aggregate, pool, rng)

        monkeypatch.setattr(type(simulation.run.terms.method), "server_update", watched)
        execute(simulation, SilentObserver())
    sizes = storage.rows("SELECT document FROM rounds")
    assert len({len(json.loads(d)["survivors"]) for (d,) in sizes}) > 1
    assert seen == [(3, 3.0)] * 4


@pytest.mark.parametrize(
    "given", ["secure_aggregation.enabled=true", "cohort.minimum=2", "cohort.retries=1"]
)
def test_what_could_withhold_a_sum_leaves_fixed_size_unamplified(
    storage: Storage, given: str
) -> None:
    few = ("cohort.size=2", "cohort.dropout_rate=0", "rounds=1", "secure_aggregation.threshold=2")
    with opened(storage.create(*AMPLIFIED, *few)) as simulation:
        assert simulation.run.terms.cohort_kind == "fixed_size"
    run = storage.run(*AMPLIFIED, *few, given)
    assert run.summary["sampling"] == "none"
    observer = run.summary["final"]["epsilon"]["observer"]
    # The bound after rounding to the grid is a little above C.
    assert observer == pytest.approx(gaussian_epsilon(4.0, 1), rel=1e-3)


def test_a_crash_goes_on_with_the_cohort_or_amplifies_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which draws are thrown away may depend on them, so one that replaces another is not fair."""
    few = ("cohort.size=2", "cohort.dropout_rate=0", "rounds=1", TWINLESS)
    once = storage.run(*AMPLIFIED, OS, *few)
    simulation = storage.create(*AMPLIFIED, OS, *few)
    with monkeypatch.context() as patch, opened(simulation), pytest.raises(Crash):
        crash_at(patch, LocalTrainer, "fit", 1)
        execute(simulation, SilentObserver())
    drawn = "SELECT pseudonym FROM ledger WHERE run_id = ? AND cohort_drawn ORDER BY 1"
    before = storage.rows(drawn, simulation.run_id)
    again = storage.resume(simulation.run_id)
    spent = [run.summary["final"]["epsilon"]["observer"] for run in (once, again)]
    ((attempts,),) = storage.rows("SELECT max(attempt) FROM ledger WHERE run_id = ?", again.run_id)
    if attempts == 1:
        assert storage.rows(drawn, simulation.run_id) == before
        assert spent[1] == spent[0]
    else:
        assert spent[1] == pytest.approx(gaussian_epsilon(4.0, 2), rel=1e-3)
        assert spent[0] < spent[1]


def test_fixed_size_amplifies_without_personal_state_only(storage: Storage) -> None:
    common = ("cohort.size=2", "cohort.dropout_rate=0", "rounds=1", "pool.minimum=2")
    kinds = {}
    for method in (NO_POOL, ("method.name=coop", "method.context_tokens=2"), ()):
        # The pool's method is the configuration's own; an entry shows who was drawn.
        named = [o for o in AMPLIFIED if not o.startswith("method.")]
        with opened(storage.create(*named, *method, *common)) as simulation:
            kinds[simulation.run.terms.config.method.name] = (
                simulation.run.terms.cohort_kind,
                simulation.run.terms.method.has_personal_state,
            )
    assert kinds["promptfl"] == ("fixed_size", False)
    assert kinds["pfedmoap"] == (None, True)
    assert all(kind is None for kind, personal in kinds.values() if personal)

"""What must hold for every ledger: more never costs less, and order and failures hide nothing.

Each property runs on a few dozen ledgers in the quick suite and on a thousand in the slow one, or
on thirty where an example takes seconds.

The formula is monotone to its last bits and privacy loss distributions are to their grid. Renyi
bounds, whose divergences are, are not quite, as some of the orders are computed badly, though never
to less than the truth by more than one part in 10^8:

- Poisson samples below a noise multiplier of 1: the best order is then a fraction near 1, where
  dp_accounting sums an alternating series and leaves out the order if that does not converge in
  time. The next best order is a bound too but a looser one. In 2,000 ledgers it was off by up to
  14% at multipliers from 0.25 on (epsilon 664 where 573 stood beside it), by nothing from 0.8 on.
- Cohorts of fixed size above a noise multiplier of about 8, in few rounds: epsilon is below 0.3
  there and the best order above 64, where alternating sums lose their digits upwards. In 200
  ledgers it was off by up to 8%.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from privacy.accounting import Epsilons, epsilons
from privacy.accounting.accountants import price
from privacy.accounting.composition import Composition, FixedSizeTerm, Term
from privacy.events import GAUSSIAN, CohortSampling, IntegerNoise, Release
from tests.privacy._rows import FACTS

RDP_TOLERANCE = 1e-6
RDP_TOLERANCE_ELSEWHERE = 0.25
"""Relative; the latter where an order is computed badly, see above."""

PLD_TOLERANCE = 2e-3
"""Absolute, above what a grid of losses of 1e-4 adds up to in 40 rounds."""


def examples(quick: int, slow: int) -> pytest.MarkDecorator:
    thorough = pytest.param(slow, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
    return pytest.mark.parametrize("count", [quick, thorough])


def check(count: int, strategy: st.SearchStrategy[Any], law: Callable[[Any], None]) -> None:
    """Run a law over so many examples; a failing one is shrunk and shown."""
    limits = settings(
        max_examples=count,
        deadline=None,
        database=None,
        # Shrinking a law that takes a second would outlast every limit.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.nested_given],
    )
    limits(given(strategy)(law))()


MORE = st.sampled_from([1.0001, 1.01, 1.3, 3.0])
RELATION = st.sampled_from(["replace_one", "add_or_remove_one"])


def cost(composition: Composition, accountant: Any, delta: float = 1e-5) -> float:
    return price(composition, delta, accountant).epsilon


# -------------------------------------------------------------------------------------- monotone


@examples(25, 1_000)
def test_the_formula_is_monotone(count: int) -> None:
    def law(case: tuple[Any, float, int, float, float]) -> None:
        relation, z, rounds, more, delta = case
        here = cost(Composition(relation, (Term(z, 1.0, rounds),)), "exact", delta)
        later = cost(Composition(relation, (Term(z, 1.0, rounds + 1),)), "exact", delta)
        noisier = cost(Composition(relation, (Term(z * more, 1.0, rounds),)), "exact", delta)
        assert noisier <= here * (1 + 1e-12) and here <= later * (1 + 1e-12)

    noise = st.floats(1e-3, 1e3)
    check(count, st.tuples(RELATION, noise, st.integers(1, 500), MORE, st.floats(1e-12, 0.5)), law)


def poisson(z: float, q: float, rounds: int, relation: Any = "add_or_remove_one") -> Composition:
    return Composition(relation, (Term(z, q, rounds),))


@examples(4, 300)
def test_renyi_bounds_of_poisson_samples_are_monotone(count: int) -> None:
    def law(case: tuple[float, float, int, float]) -> None:
        z, q, rounds, more = case
        here = cost(poisson(z, q, rounds), "rdp")
        larger = [
            poisson(z, min(1.0, q * more), rounds),
            poisson(z / more, q, rounds),
            poisson(z, q, rounds + 1),
        ]
        tolerance = RDP_TOLERANCE if z >= 1.0 else RDP_TOLERANCE_ELSEWHERE
        for composition in larger:
            assert here <= cost(composition, "rdp") * (1 + tolerance)

    case = st.tuples(st.floats(0.3, 50.0), st.floats(1e-4, 0.99), st.integers(1, 300), MORE)
    check(count, case, law)


def fixed_size(z: float, size: int, rounds: int) -> Composition:
    terms = (FixedSizeTerm(z, size, 1_000, rounds),)
    return Composition("replace_one", (), fixed_size_terms=terms)


@examples(2, 300)
def test_renyi_bounds_of_cohorts_of_fixed_size_are_monotone(count: int) -> None:
    def law(case: tuple[float, int, int, float]) -> None:
        z, size, rounds, more = case
        here = cost(fixed_size(z, size, rounds), "rdp")
        larger = [
            fixed_size(z, min(999, round(size * more) + 1), rounds),
            fixed_size(z / more, size, rounds),
            fixed_size(z, size, rounds + 1),
        ]
        tolerance = RDP_TOLERANCE if z <= 8.0 else RDP_TOLERANCE_ELSEWHERE
        for composition in larger:
            assert here <= cost(composition, "rdp") * (1 + tolerance)

    case = st.tuples(st.floats(0.1, 50.0), st.integers(1, 900), st.integers(1, 300), MORE)
    check(count, case, law)


@examples(2, 30)
def test_privacy_loss_distributions_are_monotone(count: int) -> None:
    def law(case: tuple[float, float, int, float, Any]) -> None:
        z, q, rounds, more, relation = case
        here = cost(poisson(z, q, rounds, relation), "pld")
        larger = [
            poisson(z, min(1.0, q * more), rounds, relation),
            poisson(z / more, q, rounds, relation),
            poisson(z, q, rounds + 1, relation),
        ]
        for composition in larger:
            assert here <= cost(composition, "pld") + PLD_TOLERANCE

    more = st.sampled_from([1.01, 1.3])
    case = st.tuples(st.floats(1.5, 20.0), st.floats(0.01, 0.9), st.integers(1, 40), more, RELATION)
    check(count, case, law)


# ------------------------------------------------------------------------------------- any ledger

NOISE = IntegerNoise(name="skellam", share_deviation=1_000.0, shares=40, dimension=128, corrupt=1)
COHORT = CohortSampling(kind="fixed_size", size=5, population=40, is_drawn=True)


def row(kind: str, **changes: Any) -> Release:
    """A row of one of the kinds that a ledger of whole clients may mix."""
    own: dict[str, dict[str, Any]] = {
        "upload": {"mechanism": FACTS["upload_noise"]},
        "entry": {"mechanism": FACTS["upload_noise"], "channel": "pool"},
        "metrics": {"mechanism": FACTS["upload_noise"], "channel": "metrics"},
        "shared": {"mechanism": FACTS["distributed_noise"], "law": NOISE},
        "whole": {"mechanism": FACTS["central_noise"]},
        "drawn": {"mechanism": FACTS["central_noise"], "cohort": COHORT},
        "missed": {
            "mechanism": FACTS["central_noise"],
            "cohort": dataclasses.replace(COHORT, is_drawn=False),
        },
    }
    fields: dict[str, Any] = {
        "standard_deviation": 3.0,
        "law": GAUSSIAN,
        "clipping_norm": 0.5,
        "relation": "replace_one",
        "channel": "sum",
        "run_id": "r",
        "round_number": 0,
        "attempt": 1,
        "pseudonym": "a",
        "status": "reserved",
    }
    return Release(**fields | own[kind] | changes)


KINDS = ("upload", "entry", "metrics", "shared", "whole", "drawn", "missed")
SIMPLE_KINDS = tuple(kind for kind in KINDS if kind != "shared")
"""Integer noise beside cohorts takes seconds a ledger, as its orders go up to 65,536."""


def numbers(ledger: list[Release]) -> tuple[float, ...]:
    found = epsilons(ledger, 1e-5)
    return found.server, found.peers, found.observer, found.claimed


def never_lower(before: tuple[float, ...], after: tuple[float, ...]) -> bool:
    return all(b <= a * (1 + 1e-12) for b, a in zip(before, after, strict=True))


@examples(6, 300)
def test_the_order_of_rows_does_not_matter(count: int) -> None:
    rows = st.builds(
        row,
        st.sampled_from(SIMPLE_KINDS),
        round_number=st.integers(0, 3),
        attempt=st.integers(1, 2),
        pseudonym=st.sampled_from("ab"),
        run_id=st.sampled_from("rs"),
    )

    def law(case: tuple[list[Release], random.Random]) -> None:
        ledger, rng = case
        shuffled = rng.sample(ledger, len(ledger))
        one, other = epsilons(ledger, 1e-5), epsilons(shuffled, 1e-5)
        assert one == other == epsilons(ledger[::-1], 1e-5)
        assert isinstance(one, Epsilons)

    check(count, st.tuples(st.lists(rows, max_size=8), st.randoms(use_true_random=False)), law)


class Run:
    """A ledger as a run writes it, step by step, with what it costs after each."""

    def __init__(self) -> None:
        self.ledger: list[Release] = []
        self.cost = numbers([])

    def step(self, action: str, kind: str, index: int) -> None:
        """Do one thing that can happen to a run; what it cost is never forgotten."""
        before, self.ledger = self.cost, self._after(action, kind, index)
        self.cost = numbers(self.ledger)
        assert never_lower(before, self.cost), (action, kind, index)

    def try_in_vain(self, kind: str) -> None:
        """Reserve a round and abort it before anything left: exactly as before."""
        before, ledger = self.cost, self.ledger
        self.step("reserve", kind, 0)
        *kept, last = self.ledger
        undone = dataclasses.replace(last, status="aborted", left_client=False)
        self.ledger, self.cost = [*kept, undone], numbers([*kept, undone])
        assert self.cost == before == numbers(ledger)

    def _after(self, action: str, kind: str, index: int) -> list[Release]:
        if action == "reserve" or not self.ledger:
            rounds = 1 + max((release.round_number for release in self.ledger), default=0)
            return [*self.ledger, row(kind, round_number=rounds)]
        chosen = self.ledger[index % len(self.ledger)]
        if action == "retry":
            number, status = chosen.attempt + 1, {"status": "reserved", "left_client": True}
            return [*self.ledger, dataclasses.replace(chosen, attempt=number, **status)]
        if not chosen.left_client:
            return self.ledger
        ended = dataclasses.replace(chosen, status=action)
        return [ended if release is chosen else release for release in self.ledger]


@examples(12, 300)
def test_no_history_lowers_what_was_spent(count: int) -> None:
    def law(history: list[tuple[str, str, int]]) -> None:
        run = Run()
        for action, kind, index in history:
            if action == "try in vain":
                run.try_in_vain(kind)
            else:
                run.step(action, kind, index)

    actions = st.sampled_from(["reserve", "released", "aborted", "retry", "try in vain"])
    step = st.tuples(actions, st.sampled_from(SIMPLE_KINDS), st.integers(0, 20))
    check(count, st.lists(step, max_size=8), law)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ["reserve", "released", "aborted", "retry", "try in vain"])
def test_every_step_after_a_row_of_every_kind(kind: str, action: str) -> None:
    run = Run()
    run.step("reserve", kind, 0)
    if action == "try in vain":
        run.try_in_vain(kind)
    else:
        run.step(action, kind, 0)
    assert run.cost == numbers(run.ledger) > (0.0, 0.0, 0.0, 0.0) or kind in ("missed", "metrics")

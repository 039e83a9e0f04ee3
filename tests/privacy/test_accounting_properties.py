"""What must hold for every ledger: more never costs less, and order and failures hide nothing.

Each property runs on a few dozen ledgers in the quick suite and on a thousand in the slow one.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from privacy.accounting import epsilons
from privacy.accounting.accountants import price
from privacy.accounting.composition import Composition, Term
from privacy.events import CohortSampling
from tests.privacy._rows import FACTS, released


def examples(quick, slow):
    """So many ledgers, and the most steps that each has."""
    thorough = pytest.param(slow, 8, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])
    return pytest.mark.parametrize(("count", "longest"), [(quick, 4), thorough])


def check(count, strategy, law):
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


@examples(25, 1_000)
def test_the_formula_is_monotone(count, longest):
    def law(case):
        relation, z, rounds, more, delta = case

        def cost(noise, count):
            composition = Composition(relation, (Term(noise, 1.0, count),))
            return price(composition, delta, "exact").epsilon

        here = cost(z, rounds)
        assert cost(z * more, rounds) <= here * (1 + 1e-12)
        assert here <= cost(z, rounds + 1) * (1 + 1e-12)

    noise = st.floats(1e-3, 1e3)
    check(count, st.tuples(RELATION, noise, st.integers(1, 500), MORE, st.floats(1e-12, 0.5)), law)


COHORT = CohortSampling(kind="fixed_size", size=5, population=40, is_drawn=True)
CENTRAL = FACTS["central_noise"]
# Integer noise beside cohorts takes seconds a ledger, as its orders go up to 65,536.
KINDS = (
    {},
    {"channel": "pool"},
    {"channel": "metrics"},
    {"mechanism": CENTRAL},
    {"mechanism": CENTRAL, "cohort": COHORT},
    {"mechanism": CENTRAL, "cohort": dataclasses.replace(COHORT, is_drawn=False)},
)


def row(kind, **changes):
    return released(3.0, **{"status": "reserved"} | kind | changes)


def numbers(ledger):
    found = epsilons(ledger, 1e-5)
    return found.server, found.peers, found.observer, found.claimed


@examples(6, 300)
def test_the_order_of_rows_does_not_matter(count, longest):
    rows = st.builds(
        row,
        st.sampled_from(KINDS),
        round_number=st.integers(0, 3),
        attempt=st.integers(1, 2),
        pseudonym=st.sampled_from("ab"),
        run_id=st.sampled_from("rs"),
    )

    def law(case):
        ledger, rng = case
        shuffled = rng.sample(ledger, len(ledger))
        assert epsilons(ledger, 1e-5) == epsilons(shuffled, 1e-5) == epsilons(ledger[::-1], 1e-5)

    check(
        count, st.tuples(st.lists(rows, max_size=longest), st.randoms(use_true_random=False)), law
    )


def after(ledger, action, kind, index):
    """The ledger once one more thing has happened to a run."""
    if action == "reserve" or not ledger:
        rounds = 1 + max((release.round_number for release in ledger), default=0)
        return [*ledger, row(kind, round_number=rounds)]
    chosen = ledger[index % len(ledger)]
    if action == "retry":
        again = {"attempt": chosen.attempt + 1, "status": "reserved", "left_client": True}
        return [*ledger, dataclasses.replace(chosen, **again)]
    if not chosen.left_client:
        return ledger
    ended = dataclasses.replace(chosen, status=action)
    return [ended if release is chosen else release for release in ledger]


@examples(12, 300)
def test_no_history_lowers_what_was_spent(count, longest):
    def law(history):
        ledger = []
        before = numbers(ledger)
        for action, kind, index in history:
            if action == "try in vain":
                # Reserve a round and abort it before anything left: exactly as before.
                *kept, last = after(ledger, "reserve", kind, 0)
                undone = dataclasses.replace(last, status="aborted", left_client=False)
                ledger = [*kept, undone]
                assert numbers(ledger) == before
                continue
            ledger = after(ledger, action, kind, index)
            cost = numbers(ledger)
            assert all(b <= a * (1 + 1e-12) for b, a in zip(before, cost, strict=True)), action
            before = cost

    actions = st.sampled_from(["reserve", "released", "aborted", "retry", "try in vain"])
    step = st.tuples(actions, st.sampled_from(KINDS), st.integers(0, 20))
    check(count, st.lists(step, max_size=longest), law)

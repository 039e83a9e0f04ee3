"""Rows of a ledger mean something, and a ledger that is counted on prices all of them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy import (
    NO_NOISE,
    CohortSampling,
    IntegerNoise,
    RunningLedger,
    UnsupportedEvent,
    claimed_epsilon,
    epsilons,
)
from privacy.errors import UnknownMechanism
from tests.privacy._rows import FACTS, released

DELTA = 1e-5
ROW = released(16.0, pseudonym="alice")
FREE = {"status": "aborted", "left_client": False}
COHORT = CohortSampling(kind="poisson", size=2, population=20, is_drawn=True)
INTEGER = IntegerNoise(
    name="discrete_gaussian", share_deviation=4.0, shares=5, dimension=10, corrupt=1
)
KINDS = (
    ROW,
    dataclasses.replace(ROW, standard_deviation=7.2),
    dataclasses.replace(ROW, standard_deviation=9.6, clipping_norm=0.6),
    dataclasses.replace(ROW, count=3),
    dataclasses.replace(ROW, channel="pool"),
    dataclasses.replace(ROW, run_id="s", channel="metrics"),
    dataclasses.replace(
        ROW, mechanism=FACTS["none"], standard_deviation=0.0, clipping_norm=0.0, law=NO_NOISE
    ),
    dataclasses.replace(ROW, mechanism=FACTS["central_noise"]),
    dataclasses.replace(ROW, mechanism=FACTS["central_noise"], cohort=COHORT),
    dataclasses.replace(
        ROW, mechanism=FACTS["central_noise"], cohort=dataclasses.replace(COHORT, is_drawn=False)
    ),
    dataclasses.replace(ROW, mechanism=FACTS["distributed_noise"], law=INTEGER),
)
rows = st.builds(
    lambda kind, name, number, attempt, is_free: dataclasses.replace(
        kind, pseudonym=name, round_number=number, attempt=attempt, **(FREE if is_free else {})
    ),
    st.sampled_from(KINDS),
    st.sampled_from(["alice", "bob", "carol"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
)


def outcome(price, *arguments):
    """What a pricing gives, or that it refuses."""
    try:
        return price(*arguments)
    except UnsupportedEvent:
        return UnsupportedEvent


@given(told=st.lists(rows, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_it_prices_what_all_rows_cost_however_they_were_told(told, cuts):
    ledger = RunningLedger()
    for start, end in pairwise([0, *sorted(cuts), 12]):
        ledger.add(told[start:end])
    assert outcome(ledger.epsilons, DELTA) == outcome(epsilons, told, DELTA)


@given(told=st.lists(rows, max_size=8), planned=st.lists(rows, max_size=4))
def test_what_is_planned_is_priced_and_not_added(told, planned):
    ledger = RunningLedger(told)
    before = outcome(ledger.epsilons, DELTA)
    together = outcome(ledger.claimed_with, planned, DELTA)
    assert together == outcome(claimed_epsilon, [*told, *planned], DELTA)
    assert outcome(ledger.epsilons, DELTA) == before


@pytest.mark.parametrize("is_free", [False, True])
def test_a_draw_that_was_thrown_away_is_not_forgotten(is_free):
    """Counted rows tell no rounds apart, but what a second draw voids stays void."""
    drawn = dataclasses.replace(ROW, mechanism=FACTS["central_noise"], cohort=COHORT)
    first = [dataclasses.replace(drawn, round_number=n) for n in range(1, 30)]
    ledger = RunningLedger(first)
    fair = ledger.epsilons(DELTA).observer
    again = dataclasses.replace(drawn, round_number=29, attempt=2)
    ledger.add([again])
    assert ledger.epsilons(DELTA) == epsilons([*first, again], DELTA)
    assert ledger.epsilons(DELTA).observer > 2 * fair
    thrown = [dataclasses.replace(first[-1], **FREE)] if is_free else first[-1:]
    late = RunningLedger([again, *first[:-1], *thrown])
    assert late.epsilons(DELTA) == epsilons([again, *first[:-1], *thrown], DELTA)


RESERVED = released(2.0, status="reserved")


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "replace"},
        {"status": "done"},
        {"standard_deviation": float("nan")},
        {"clipping_norm": 0.0},
        {"attempt": -1},
        {"mechanism": FACTS["none"]},  # with noise
        {"sampling_probability": 0.5},  # without sampling
        {"sampling": "poisson", "sampling_probability": 1.5},
        {"left_client": False, "status": "released"},
        {"count": 0},
        {
            "mechanism": FACTS["none"],
            "standard_deviation": 0.0,
            "law": NO_NOISE,
            "clipping_norm": -1.0,
        },
    ],
    ids=str,
)
def test_rows_that_mean_nothing_are_refused(change):
    with pytest.raises(ValueError, match=r"\w+ (is|must|can)"):
        dataclasses.replace(RESERVED, **change)
    with pytest.raises(UnknownMechanism, match="'magic'"):
        dataclasses.replace(RESERVED, mechanism="magic")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "binomial"}, "kind is 'binomial'; valid are poisson, fixed_size"),
        ({"size": 0}, "size is 0; it must be from 1 to the population, 20"),
        ({"size": 21}, "size is 21"),
    ],
)
def test_cohorts_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(COHORT, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanism": FACTS["central_noise"], "channel": "pool"}, "cohort must be None"),
        ({"mechanism": FACTS["central_noise"], "channel": "metrics"}, "cohort must be None"),
        (
            {
                "mechanism": FACTS["central_noise"],
                "sampling": "poisson",
                "sampling_probability": 0.5,
            },
            "sampling must be 'none' beside a cohort",
        ),
    ],
)
def test_rows_that_no_draw_amplifies_have_no_cohort(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RESERVED, **{"cohort": COHORT} | changes)

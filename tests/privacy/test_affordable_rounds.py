"""How many further rounds fit under a target: the accountant is asked, nothing is divided."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from privacy.accounting import RunningLedger, affordable_rounds, require_affordable
from privacy.accounting.budget import _last_fit
from privacy.errors import BudgetExhausted
from privacy.events import NO_NOISE, Release
from privacy.mechanisms import UploadNoise
from tests.privacy._rows import release_of

DELTA = 1e-5


def rows(z: float, count: int, pseudonym: str = "a") -> list[Release]:
    return [
        release_of(
            UploadNoise(0.7, z, "replace_one"),
            channel="sum",
            run_id="r",
            round_number=number,
            attempt=1,
            pseudonym=pseudonym,
        )
        for number in range(1, count + 1)
    ]


def by_hand(z: float, count: int) -> float:
    """Epsilon of Gaussian releases under replace-one: the formula of privacy.md, section 5."""
    mu = math.sqrt(count) * 2.0 / z
    return float(
        brentq(
            lambda e: (
                norm.cdf(mu / 2 - e / mu) - math.exp(e + norm.logcdf(-mu / 2 - e / mu)) - DELTA
            ),
            0.0,
            500.0,
        )
    )


@pytest.mark.parametrize(("z", "spent", "target"), [(4.0, 1, 8.0), (8.0, 3, 8.0), (5.0, 0, 12.0)])
@pytest.mark.parametrize("likely", [1, 3, 50, 900])
def test_it_is_the_last_number_that_the_formula_lets_pass(z, spent, target, likely):
    found = affordable_rounds(
        *(RunningLedger(rows(z, spent)), rows(z, 1), DELTA), target_epsilon=target, likely=likely
    )
    assert by_hand(z, spent + found) <= target < by_hand(z, spent + found + 1)
    # What is left over the price of a round is another number.
    assert found != int((target - (by_hand(z, spent) if spent else 0.0)) / by_hand(z, 1))


def test_it_is_the_run_that_would_stop_there():
    ledger, target = RunningLedger(rows(4.0, 2)), 9.0
    found = affordable_rounds(ledger, rows(4.0, 1), DELTA, target_epsilon=target)
    for number in range(found):
        require_affordable(ledger, rows(4.0, 1), DELTA, target_epsilon=target)
        ledger.add(rows(4.0, 3 + number)[-1:])
    with pytest.raises(BudgetExhausted):
        require_affordable(ledger, rows(4.0, 1), DELTA, target_epsilon=target)


def test_the_ledger_is_left_as_it_was():
    ledger = RunningLedger(rows(4.0, 2))
    before = ledger.epsilons(DELTA)
    affordable_rounds(ledger, rows(4.0, 1), DELTA, target_epsilon=20.0)
    assert ledger.epsilons(DELTA) == before


def test_a_target_that_is_passed_leaves_no_round():
    ledger = RunningLedger(rows(1.0, 5))
    assert affordable_rounds(ledger, rows(1.0, 1), DELTA, target_epsilon=2.0, likely=7) == 0


def test_all_channels_of_a_round_count():
    both = [*rows(8.0, 1), *rows(8.0, 1)]
    empty = RunningLedger()
    once = affordable_rounds(empty, rows(8.0, 1), DELTA, target_epsilon=8.0)
    assert affordable_rounds(empty, both, DELTA, target_epsilon=8.0) == once // 2


def test_without_noise_no_round_fits():
    bare = release_of(
        UploadNoise(1.0, 1.0, "replace_one"),
        **{"channel": "sum", "run_id": "r", "round_number": 1, "attempt": 1, "pseudonym": "a"},
    )
    bare = dataclasses.replace(bare, standard_deviation=0.0, law=NO_NOISE)
    assert affordable_rounds(RunningLedger(), [bare], DELTA, target_epsilon=1e6) == 0


def test_it_ends_where_so_many_rounds_fit_that_nobody_counts():
    far = affordable_rounds(RunningLedger(), rows(1e6, 1), DELTA, target_epsilon=8.0, most=40)
    assert far == 40


def test_what_costs_nothing_is_refused():
    with pytest.raises(ValueError, match="planned is empty"):
        affordable_rounds(RunningLedger(), [], DELTA, target_epsilon=8.0)


@settings(max_examples=300, deadline=None)
@given(last=st.integers(0, 60), start=st.integers(1, 50), most=st.integers(50, 55))
def test_the_search_finds_any_last_number(last, start, most):
    asked: list[int] = []

    def fits(number: int) -> bool:
        assert 1 <= number <= most
        asked.append(number)
        return number <= last

    assert _last_fit(fits, start, most) == min(last, most)
    assert len(asked) <= 20

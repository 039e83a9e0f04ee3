"""Calibrated runs just fit their budget, and the round that would pass it never starts."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import (
    RunningLedger,
    affordable_rounds,
    calibrate,
    calibrate_noise_multiplier,
    epsilon,
    require_affordable,
)
from privacy.accounting.budget import _last_fit
from privacy.accounting.calibration import smallest_fit
from privacy.errors import BudgetExhausted, CalibrationError
from privacy.events import NO_NOISE
from privacy.mechanisms import UploadNoise
from tests.privacy._rows import release_of
from tests.privacy._walk import epsilon_of

least = functools.partial(calibrate_noise_multiplier, target_delta=1e-5, releases_per_round=1)


def planned(mechanism, count, pseudonym="a"):
    return [release_of(mechanism, round_number=n, pseudonym=pseudonym) for n in range(count)]


def spend(z, count, relation, accountant="auto"):
    return epsilon(planned(UploadNoise(0.7, z, relation), count), 1e-5, accountant).epsilon


relations = st.sampled_from(["replace_one", "add_or_remove_one"])


@settings(max_examples=20, deadline=None)
@given(target=st.floats(0.01, 1e4), count=st.integers(1, 300), relation=relations)
def test_smallest_noise_that_fits(target, count, relation):
    z = least(target, rounds=count, relation=relation)
    assert spend(z, count, relation) <= target < spend(z * (1 - 1e-6), count, relation)


@pytest.mark.parametrize(
    "accountant", ["exact", pytest.param("pld", marks=pytest.mark.slow), "rdp"]
)
def test_every_accountant_can_be_calibrated_for(accountant):
    z = least(8.0, rounds=10, relation="replace_one", accountant=accountant)
    assert spend(z, 10, "replace_one", accountant) <= 8.0
    assert spend(z * (1 - 2e-6), 10, "replace_one", accountant) > 8.0


def test_hand_checked_inverse_of_the_oracles():
    z = least(4.377178, rounds=1, relation="add_or_remove_one")
    assert z == pytest.approx(1.0, rel=2e-6)
    doubled = least(4.377178, rounds=1, relation="replace_one")
    assert doubled == pytest.approx(2.0, rel=2e-6)


@pytest.mark.parametrize(
    ("target", "releases_per_round", "rounds"),
    [(0.0, 1, 1), (math.nan, 1, 1), (1.0, 0, 1), (1.0, 1, 0)],
)
def test_meaningless_targets_are_refused(target, releases_per_round, rounds):
    amounts = {"releases_per_round": releases_per_round, "rounds": rounds}
    with pytest.raises(CalibrationError, match="must be"):
        least(target, relation="replace_one", **amounts)
    if target != 1.0:
        with pytest.raises(CalibrationError, match="above zero"):
            calibrate(lambda z: [], target, 1e-5, smallest=1.0)


@pytest.mark.parametrize("threshold", [1.23456789012345, 9.99999999949, 0.0333333333333])
def test_rounding_to_ten_digits_never_loses_the_fit(threshold):
    # Each rounds down, and a search that starts at the threshold ends on it.
    found = smallest_fit(lambda z: z >= threshold, threshold)
    assert threshold <= found <= threshold * (1 + 2e-9)
    assert f"{found:.9e}" == f"{found:.11e}".replace("00e", "e")
    for start in (1e-6, 1e6):
        found = smallest_fit(lambda z: z >= threshold, start)
        assert threshold <= found <= threshold * (1 + 1e-6)


def test_a_search_that_nothing_satisfies_ends():
    with pytest.raises(CalibrationError, match="no noise multiplier"):
        smallest_fit(lambda z: False, 1.0)


@settings(max_examples=12, deadline=None)
@given(
    target=st.floats(0.05, 500.0),
    count=st.integers(1, 60),
    clipping_norm=st.floats(1e-6, 1e6),
    relation=relations,
)
def test_calibrated_runs_just_fit_for_any_clipping_norm(target, count, clipping_norm, relation):
    z = least(target, rounds=count, relation=relation)
    ledger = planned(UploadNoise(clipping_norm, z, relation), count + 1)
    require_affordable(ledger[: count - 1], ledger[count - 1 : count], 1e-5, target_epsilon=target)
    with pytest.raises(BudgetExhausted) as caught:
        require_affordable(ledger[:count], ledger[count:], 1e-5, target_epsilon=target)
    assert caught.value.epsilon > target == caught.value.target_epsilon


def test_planned_ledgers_are_calibrated_down_to_the_smallest_allowed():
    def ledger(z):
        return [*planned(UploadNoise(0.7, z), 10), *planned(UploadNoise(0.7, 2 * z), 10)]

    # (1 + 1/4) x 10 releases at z are one at z / sqrt(12.5), and replace_one doubles.
    single = least(8.0, rounds=1, relation="replace_one")
    found = calibrate(ledger, 8.0, 1e-5, smallest=0.5)
    assert found == pytest.approx(single * math.sqrt(12.5), rel=2e-6)
    assert calibrate(ledger, 8.0, 1e-5, smallest=50.0) == 50.0


def test_one_client_over_budget_stops_the_round():
    mechanism = UploadNoise(1.0, 4.0)
    one, two = planned(mechanism, 1), planned(mechanism, 2)
    target = epsilon(one, 1e-5).epsilon
    others = planned(mechanism, 1, "b")
    require_affordable([], [*one, *others], 1e-5, target_epsilon=target)
    with pytest.raises(BudgetExhausted, match=r"target_epsilon .* nothing"):
        require_affordable(one, [*others, two[1]], 1e-5, target_epsilon=target)


def test_tolerance_is_no_room_to_overspend():
    ledger = planned(UploadNoise(1.0, 4.0), 3)
    cost = epsilon(ledger, 1e-5).epsilon
    require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost)
    require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost * (1 - 0.9e-9))
    with pytest.raises(BudgetExhausted):
        require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost * (1 - 1.2e-9))


def test_noiseless_plans_never_fit():
    with pytest.raises(BudgetExhausted, match="inf"):
        require_affordable([], planned(UploadNoise(1.0, 0.0), 1), 1e-5, target_epsilon=1e300)
    with pytest.raises(ValueError, match="target_epsilon"):
        require_affordable([], [], 1e-5, target_epsilon=0.0)


def rows(z, count):
    return planned(UploadNoise(0.7, z, "replace_one"), count)


def by_hand(z, count):
    """Epsilon of Gaussian releases under replace-one."""
    return epsilon_of(math.sqrt(count) * 2.0 / z, 1e-5) if count else 0.0


@pytest.mark.parametrize(("z", "spent", "target"), [(4.0, 1, 8.0), (8.0, 3, 8.0), (5.0, 0, 12.0)])
@pytest.mark.parametrize("likely", [1, 900])
def test_it_is_the_last_number_that_the_formula_lets_pass(z, spent, target, likely):
    ledger = RunningLedger(rows(z, spent))
    found = affordable_rounds(ledger, rows(z, 1), 1e-5, target_epsilon=target, likely=likely)
    assert by_hand(z, spent + found) <= target < by_hand(z, spent + found + 1)
    # What is left over the price of a round is another number.
    assert found != int((target - by_hand(z, spent)) / by_hand(z, 1))


def test_a_target_that_is_passed_leaves_no_round():
    ledger = RunningLedger(rows(1.0, 5))
    assert affordable_rounds(ledger, rows(1.0, 1), 1e-5, target_epsilon=2.0, likely=7) == 0


def test_all_channels_of_a_round_count():
    both = [*rows(8.0, 1), *rows(8.0, 1)]
    empty = RunningLedger()
    once = affordable_rounds(empty, rows(8.0, 1), 1e-5, target_epsilon=8.0)
    assert affordable_rounds(empty, both, 1e-5, target_epsilon=8.0) == once // 2


def test_without_noise_no_round_fits_and_with_much_as_many_as_are_counted():
    bare = dataclasses.replace(rows(1.0, 1)[0], standard_deviation=0.0, law=NO_NOISE)
    assert affordable_rounds(RunningLedger(), [bare], 1e-5, target_epsilon=1e6) == 0
    far = affordable_rounds(RunningLedger(), rows(1e6, 1), 1e-5, target_epsilon=8.0, most=40)
    assert far == 40
    with pytest.raises(ValueError, match="planned is empty"):
        affordable_rounds(RunningLedger(), [], 1e-5, target_epsilon=8.0)


@settings(max_examples=100, deadline=None)
@given(last=st.integers(0, 60), start=st.integers(1, 50), most=st.integers(50, 55))
def test_the_search_finds_any_last_number(last, start, most):
    asked = []

    def fits(number):
        assert 1 <= number <= most
        asked.append(number)
        return number <= last

    assert _last_fit(fits, start, most) == min(last, most)
    assert len(asked) <= 20

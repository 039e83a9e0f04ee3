"""Calibrated runs just fit their budget, and the round that would pass it never starts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import (
    Accountant,
    calibrate,
    calibrate_noise_multiplier,
    epsilon,
    require_affordable,
)
from privacy.accounting.calibration import smallest_fit
from privacy.errors import BudgetExhausted, CalibrationError
from privacy.events import Relation, Release
from privacy.mechanisms import UploadNoise
from tests.privacy._rows import release_of


def planned(mechanism: UploadNoise, count: int, pseudonym: str = "a") -> list[Release]:
    return [
        release_of(
            mechanism,
            channel="sum",
            run_id="r",
            round_number=number,
            attempt=0,
            pseudonym=pseudonym,
        )
        for number in range(count)
    ]


def spend(z: float, count: int, relation: Relation, accountant: Accountant = "auto") -> float:
    return epsilon(planned(UploadNoise(0.7, z, relation), count), 1e-5, accountant).epsilon


@settings(max_examples=60, deadline=None)
@given(
    target=st.floats(0.01, 1e4),
    count=st.integers(1, 300),
    relation=st.sampled_from(["replace_one", "add_or_remove_one"]),
)
def test_smallest_noise_that_fits(target: float, count: int, relation: Relation) -> None:
    z = calibrate_noise_multiplier(
        target, 1e-5, releases_per_round=1, rounds=count, relation=relation
    )
    assert spend(z, count, relation) <= target < spend(z * (1 - 1e-6), count, relation)


@pytest.mark.parametrize("accountant", ["exact", "pld", "rdp"])
@pytest.mark.parametrize("target", [pytest.param(1.0, marks=pytest.mark.slow), 8.0])
def test_every_accountant_can_be_calibrated_for(accountant: Accountant, target: float) -> None:
    z = calibrate_noise_multiplier(
        target,
        1e-5,
        releases_per_round=1,
        rounds=10,
        relation="replace_one",
        accountant=accountant,
    )
    assert spend(z, 10, "replace_one", accountant) <= target
    assert spend(z * (1 - 2e-6), 10, "replace_one", accountant) > target


def test_hand_checked_inverse_of_the_oracles() -> None:
    z = calibrate_noise_multiplier(
        4.377178, 1e-5, releases_per_round=1, rounds=1, relation="add_or_remove_one"
    )
    assert z == pytest.approx(1.0, rel=2e-6)
    doubled = calibrate_noise_multiplier(
        4.377178, 1e-5, releases_per_round=1, rounds=1, relation="replace_one"
    )
    assert doubled == pytest.approx(2.0, rel=2e-6)


def test_two_releases_a_round_are_twice_the_rounds() -> None:
    both = calibrate_noise_multiplier(
        8.0, 1e-5, releases_per_round=2, rounds=10, relation="replace_one"
    )
    assert both == calibrate_noise_multiplier(
        8.0, 1e-5, releases_per_round=1, rounds=20, relation="replace_one"
    )


@pytest.mark.parametrize(
    ("target", "releases_per_round", "rounds"),
    [(0.0, 1, 1), (-1.0, 1, 1), (math.inf, 1, 1), (math.nan, 1, 1), (1.0, 0, 1), (1.0, 1, 0)],
)
def test_meaningless_targets_are_refused(
    target: float, releases_per_round: int, rounds: int
) -> None:
    with pytest.raises(CalibrationError, match="must be"):
        calibrate_noise_multiplier(
            target,
            1e-5,
            releases_per_round=releases_per_round,
            rounds=rounds,
            relation="replace_one",
        )


@pytest.mark.parametrize("threshold", [1.23456789012345, 9.99999999949, 0.0333333333333])
def test_rounding_to_ten_digits_never_loses_the_fit(threshold: float) -> None:
    # Each rounds down, and a search that starts at the threshold ends on it.
    found = smallest_fit(lambda z: z >= threshold, threshold)
    assert threshold <= found <= threshold * (1 + 2e-9)
    assert f"{found:.9e}" == f"{found:.11e}".replace("00e", "e")


def test_a_search_that_nothing_satisfies_ends() -> None:
    with pytest.raises(CalibrationError, match="no noise multiplier"):
        smallest_fit(lambda z: False, 1.0)


def test_a_search_that_everything_satisfies_ends() -> None:
    assert 0.0 < smallest_fit(lambda z: True, 1.0) < 1e-11


@pytest.mark.parametrize("start", [1e-6, 0.999999, 1.0, 1e6])
@pytest.mark.parametrize("threshold", [1e-3, 1.0, 123.456])
def test_the_search_finds_a_threshold_from_any_start(start: float, threshold: float) -> None:
    found = smallest_fit(lambda z: z >= threshold, start)
    assert threshold <= found <= threshold * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(
    target=st.floats(0.05, 500.0),
    count=st.integers(1, 60),
    clipping_norm=st.floats(1e-6, 1e6),
    relation=st.sampled_from(["replace_one", "add_or_remove_one"]),
)
def test_calibrated_runs_just_fit_for_any_clipping_norm(
    target: float, count: int, clipping_norm: float, relation: Relation
) -> None:
    z = calibrate_noise_multiplier(
        target, 1e-5, releases_per_round=1, rounds=count, relation=relation
    )
    ledger = planned(UploadNoise(clipping_norm, z, relation), count + 1)
    for number in range(count):
        require_affordable(
            ledger[:number], ledger[number : number + 1], 1e-5, target_epsilon=target
        )
    with pytest.raises(BudgetExhausted) as caught:
        require_affordable(ledger[:count], ledger[count:], 1e-5, target_epsilon=target)
    assert caught.value.epsilon > target == caught.value.target_epsilon


def test_planned_ledgers_are_calibrated_down_to_the_smallest_allowed() -> None:
    def ledger(z: float) -> list[Release]:
        return [*planned(UploadNoise(0.7, z), 10), *planned(UploadNoise(0.7, 2 * z), 10)]

    # (1 + 1/4) x 10 releases at z are one at z / sqrt(12.5), and replace_one doubles.
    single = calibrate_noise_multiplier(
        8.0, 1e-5, releases_per_round=1, rounds=1, relation="replace_one"
    )
    found = calibrate(ledger, 8.0, 1e-5, smallest=0.5)
    assert found == pytest.approx(single * math.sqrt(12.5), rel=2e-6)
    assert calibrate(ledger, 8.0, 1e-5, smallest=50.0) == 50.0


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_planned_ledgers_have_meaningful_targets(target: float) -> None:
    with pytest.raises(CalibrationError, match="finite and above zero"):
        calibrate(lambda z: [], target, 1e-5, smallest=1.0)


def test_one_client_over_budget_stops_the_round() -> None:
    mechanism = UploadNoise(1.0, 4.0)
    one, two = planned(mechanism, 1), planned(mechanism, 2)
    target = epsilon(one, 1e-5).epsilon
    others = planned(mechanism, 1, "b")
    require_affordable([], [*one, *others], 1e-5, target_epsilon=target)
    with pytest.raises(BudgetExhausted, match=r"target_epsilon is .* nothing was sent"):
        require_affordable(one, [*others, two[1]], 1e-5, target_epsilon=target)


def test_tolerance_is_no_room_to_overspend() -> None:
    ledger = planned(UploadNoise(1.0, 4.0), 3)
    cost = epsilon(ledger, 1e-5).epsilon
    require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost)
    require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost * (1 - 0.9e-9))
    with pytest.raises(BudgetExhausted):
        require_affordable(ledger[:2], ledger[2:], 1e-5, target_epsilon=cost * (1 - 1.2e-9))


def test_noiseless_plans_never_fit() -> None:
    with pytest.raises(BudgetExhausted, match="inf"):
        require_affordable([], planned(UploadNoise(1.0, 0.0), 1), 1e-5, target_epsilon=1e300)
    with pytest.raises(ValueError, match="target_epsilon"):
        require_affordable([], [], 1e-5, target_epsilon=0.0)

"""How many canaries: the exact probability, a simulation of it, and the promise of 1,000."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from privacy.auditing import ErrorCounts, canaries_needed, detection_probability, mu_interval
from privacy.auditing.error_rates import DECISIONS
from privacy.errors import CalibrationError


@pytest.mark.parametrize("claimed_mu", [0.75, 1.0, 1.5, 2.0, 3.0, 4.0])
def test_a_thousand_canaries_notice_halved_noise(claimed_mu):
    assert canaries_needed(claimed_mu, 2 * claimed_mu) <= 1000
    assert detection_probability(claimed_mu, 2 * claimed_mu, 1000) > 0.9999


@pytest.mark.parametrize(("claimed_mu", "needed"), [(0.25, 6749), (0.5, 1768), (5.0, 2441)])
def test_where_a_thousand_do_not_suffice(claimed_mu, needed):
    """Too little signal below 0.7; above 4.2 even no error at all is no proof."""
    assert canaries_needed(claimed_mu, 2 * claimed_mu) == pytest.approx(needed, rel=0.01)
    assert detection_probability(claimed_mu, 2 * claimed_mu, 1000) < 0.9


@pytest.mark.parametrize("claimed_mu", [0.5, 1.0, 4.0])
def test_a_right_build_is_hardly_ever_noticed(claimed_mu):
    for canaries in (10, 100, 1000, 10_000):
        assert detection_probability(claimed_mu, claimed_mu, canaries) <= 1e-6 / DECISIONS


def test_the_number_needed_is_the_smallest_that_stays_enough():
    needed = canaries_needed(1.0, 2.0, 1e-3, probability=0.9)
    powers = [
        detection_probability(1.0, 2.0, number, family_wise_error=1e-3)
        for number in range(needed - 1, 2 * needed)
    ]
    assert powers[0] < 0.9
    assert min(powers[1:]) >= 0.9


@pytest.mark.parametrize(("claimed", "wrong", "canaries"), [(1.0, 2.0, 80), (0.5, 1.0, 300)])
def test_the_probability_agrees_with_counted_decisions(claimed, wrong, canaries):
    error, runs = 0.01, 20_000
    errors = np.random.default_rng(2).binomial(canaries, norm.cdf(-wrong / 2), runs)
    fails = np.array(
        [
            mu_interval(ErrorCounts(count, canaries, 0, 0), error / DECISIONS, is_gaussian=False)[0]
            > claimed
            for count in range(canaries + 1)
        ]
    )
    expected = detection_probability(claimed, wrong, canaries, family_wise_error=error)
    assert 0.1 < expected < 0.99
    assert np.mean(fails[errors]) == pytest.approx(expected, abs=0.015)


def test_obvious_mistakes_need_few():
    assert canaries_needed(1.0, 1e6) < 100
    assert canaries_needed(1e-3, 50.0) <= 30


def test_a_mistake_that_is_none_is_refused():
    with pytest.raises(ValueError, match="above claimed_mu"):
        canaries_needed(1.0, 1.0)


def test_a_hopeless_comparison_is_refused():
    with pytest.raises(CalibrationError, match="canaries are needed"):
        canaries_needed(1.0, 1.001)

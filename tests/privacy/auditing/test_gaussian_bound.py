"""The bound from means of scores: its coverage, its ceiling, and what it must not claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privacy.auditing import epsilon_ceiling, gaussian_bound, gaussian_claim, judge_client_unit
from tests.privacy.auditing.test_client_unit import gaussian_scores

DELTA = 1e-5


def delta_of(mu, epsilon):
    """By integrating how far one density is above e^epsilon times the other."""
    start = epsilon / mu + mu / 2
    gap = lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)  # noqa: E731
    return quad(gap, start, start + 12, epsabs=1e-14)[0]


@pytest.mark.parametrize(("directions", "share"), [(16, 0.41), (512, 0.89)])
def test_ceilings_where_what_a_neighbour_scores_is_known(directions, share):
    """mu 0.745 has epsilon 3.12; 1.645 / sqrt(d) below it lies what d directions show."""
    assert delta_of(0.745, 3.12) == pytest.approx(DELTA, rel=0.05)
    found = epsilon_ceiling(0.745, DELTA, directions, math.inf)
    assert found / 3.12 == pytest.approx(share, abs=0.01)
    low = 0.745 - 1.6449 / math.sqrt(directions)
    assert delta_of(low, found) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "canaries"), [(0.3, 400), (0.745, 60), (3.0, 60)])
def test_the_bound_is_above_the_truth_in_one_of_twenty_and_its_median_is_the_ceiling(mu, canaries):
    rng, runs = np.random.default_rng(int(1000 * mu) + canaries), 600
    bounds = []
    for _ in range(runs):
        inside = mu + rng.standard_normal(canaries // 2)
        # Neither unit nor place of the scores matters.
        outside = rng.standard_normal(canaries // 2)
        found = gaussian_bound(7 * inside + 3, 7 * outside + 3, claimed_mu=mu, delta=DELTA)
        bounds.append(found.epsilon)
    truth = gaussian_claim(mu, DELTA).epsilon
    above = sum(bound > truth for bound in bounds)
    # Binomial(600, 0.05): 30, deviation 5.3.
    assert 9 <= above <= 54
    assert np.median(bounds) == pytest.approx(found.ceiling, rel=0.12, abs=0.05)


def test_with_the_canaries_of_an_audit_it_shows_more_than_four_fifths():
    claim = gaussian_claim(0.745, DELTA)
    scores = gaussian_scores(np.random.default_rng(3), mu=0.745, canaries=4000)
    result = judge_client_unit(scores, claim)
    assert result.gaussian is not None
    assert 0.8 * claim.epsilon < result.gaussian.epsilon < 1.05 * claim.epsilon
    assert 0.8 * claim.epsilon < result.gaussian.ceiling < claim.epsilon
    assert result.epsilon_lower_bound_95 < 0.7 * claim.epsilon
    assert result.document()["gaussian"] == {
        "epsilon": result.gaussian.epsilon,
        "ceiling": result.gaussian.ceiling,
    }


def test_where_nothing_is_seen_nothing_is_claimed():
    rng = np.random.default_rng(5)
    same = rng.standard_normal(400)
    for inside, outside in ((same, same), (same - 1, same), (np.ones(9), np.ones(9))):
        found = gaussian_bound(inside, outside, claimed_mu=1.0, delta=DELTA)
        assert found.epsilon == 0.0
    assert epsilon_ceiling(0.1, DELTA, 10, 10) == 0.0
    assert epsilon_ceiling(0.1, DELTA, 1, 1) == 0.0


@pytest.mark.parametrize(("number", "mu"), [(1, 1.0), (5, 0.0)])
def test_bad_numbers_are_refused(number, mu):
    with pytest.raises(ValueError, match=r"at least two|mu"):
        gaussian_bound(np.arange(number) * 1.0, np.arange(9.0), claimed_mu=mu, delta=DELTA)


@pytest.mark.parametrize("mu", [0.05, 40.0, 1e12])
def test_extreme_distances_are_numbers(mu):
    rng = np.random.default_rng(6)
    inside, outside = mu + rng.standard_normal(50_000), rng.standard_normal(50_000)
    found = gaussian_bound(inside, outside, claimed_mu=mu, delta=DELTA)
    assert math.isfinite(found.epsilon)
    assert found.epsilon <= gaussian_claim(1.02 * mu + 0.02, DELTA).epsilon
    # Nothing above the largest mu is told apart; one below it is seen nearly in full.
    least = 0.0 if mu < 1 else gaussian_claim(min(0.98 * mu, 1000.0), DELTA).epsilon
    assert found.epsilon >= least

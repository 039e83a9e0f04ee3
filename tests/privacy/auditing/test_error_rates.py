"""From counts to bounds on mu: exact coverage, closed forms, and what cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from privacy.accounting.gaussian import epsilon_at, log_delta_at
from privacy.auditing import Claim, ErrorCounts, gaussian_claim, mu_interval, sampled_claim
from privacy.auditing.error_rates import count_errors, rate_bounds


@given(trials=st.integers(1, 500), share=st.floats(0, 1), alpha=st.sampled_from([1e-6, 0.01, 0.2]))
def test_rates_are_bounded_as_by_beta_quantiles(trials, share, alpha):
    errors = round(share * trials)
    low, high = rate_bounds(errors, trials, alpha)
    if errors:
        assert low == pytest.approx(beta.ppf(alpha, errors, trials - errors + 1), rel=1e-6)
        # The definition itself: seeing this many or more has probability alpha at the lower bound.
        assert binom.sf(errors - 1, trials, low) == pytest.approx(alpha, rel=1e-6)
    else:
        assert low == 0.0
    if errors < trials:
        assert binom.cdf(errors, trials, high) == pytest.approx(alpha, rel=1e-6)
    else:
        assert high == 1.0


def test_no_trials_bound_nothing():
    assert rate_bounds(0, 0, 0.05) == (0.0, 1.0)


@pytest.mark.parametrize("probability", [0.02, 0.16, 0.31, 0.5])
@pytest.mark.parametrize("trials", [40, 300])
def test_the_balanced_lower_bound_covers_exactly(probability, trials):
    mu, alpha = -2 * norm.ppf(probability), 0.05
    wrong = sum(
        binom.pmf(errors, trials, probability)
        for errors in range(trials + 1)
        if mu_interval(ErrorCounts(errors, trials, 0, 0), alpha, is_gaussian=False)[0] > mu
    )
    assert wrong <= alpha


@pytest.mark.parametrize("is_gaussian", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_coverage_on_gaussian_scores(is_gaussian, shift):
    """Whatever the threshold, the lower end is above the truth at most as often as promised."""
    mu, alpha, canaries, runs = 1.2, 0.05, 150, 3000
    rng = np.random.default_rng(11)
    lows, highs = np.empty(runs), np.empty(runs)
    for run in range(runs):
        included = rng.random(canaries) < 0.5
        scores = rng.standard_normal(canaries) + mu * included
        counts = count_errors(scores, included, mu / 2 + shift)
        lows[run], highs[run] = mu_interval(counts, alpha, is_gaussian=is_gaussian)
    assert np.mean(lows > mu) <= alpha * (2 if is_gaussian else 1)
    if is_gaussian:
        # The upper end needs Gaussian scores, and then any threshold will do.
        assert np.mean(highs < mu) <= alpha


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("is_gaussian", [True, False])
def test_many_canaries_pin_mu_down(mu, is_gaussian):
    trials = 10**8
    errors = round(trials * norm.cdf(-mu / 2))
    counts = ErrorCounts(errors, trials, errors, trials)
    low, high = mu_interval(counts, 1e-6, is_gaussian=is_gaussian)
    assert low < mu < high
    assert high - low < 0.02
    assert counts.estimated_mu == pytest.approx(mu, abs=1e-4)


def test_one_sided_errors_are_seen_by_the_rates_only():
    """Nothing out is guessed in, 40% of those in are missed."""
    counts = ErrorCounts(0, 2000, 800, 2000)
    gaussian = mu_interval(counts, 1e-3, is_gaussian=True)[0]
    balanced = mu_interval(counts, 1e-3, is_gaussian=False)[0]
    assert gaussian > balanced > 0


def test_two_rates_share_the_error_between_them():
    low = mu_interval(ErrorCounts(0, 2000, 800, 2000), 1e-3, is_gaussian=True)[0]
    highest = beta.ppf(1 - 0.5e-3, [1, 801], [2000, 1200])
    assert low == pytest.approx(-norm.ppf(highest).sum(), rel=1e-9)


def test_guessing_wrong_more_often_than_not_is_no_knowledge():
    assert mu_interval(ErrorCounts(90, 100, 90, 100), 0.05, is_gaussian=True) == (0.0, 0.0)
    assert ErrorCounts(90, 100, 90, 100).estimated_mu == 0.0


def test_no_error_has_no_upper_bound_and_a_finite_estimate():
    counts = ErrorCounts(0, 500, 0, 500)
    low, high = mu_interval(counts, 1e-6, is_gaussian=True)
    # One minus the thousandth root of alpha is the most errors that are consistent with none.
    assert low == pytest.approx(-2 * norm.ppf(1 - 1e-6 ** (1 / 1000)))
    assert high == math.inf
    assert low < counts.estimated_mu < math.inf


@pytest.mark.parametrize("counts", [(0, 0, 3, 9), (3, 9, 0, 0), (0, 9, 9, 9), (9, 9, 0, 9)])
def test_a_rate_without_trials_or_without_doubt_gives_no_nan(counts):
    low, high = mu_interval(ErrorCounts(*counts), 0.05, is_gaussian=True)
    assert 0.0 <= low < math.inf
    assert high >= low


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (2, 1, 0, 1), (0, 1, -1, 1)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ValueError, match="errors must lie"):
        ErrorCounts(*counts)


def test_errors_are_counted_by_kind():
    counts = count_errors(
        np.array([0.5, 2.0, 0.5, 2.0, 1.0]), np.array([True, True, False, False, False]), 1.0
    )
    assert counts == ErrorCounts(false_positives=1, negatives=3, false_negatives=1, positives=2)
    assert (counts.errors, counts.trials) == (2, 5)


def test_a_gaussian_claim_states_its_exact_epsilon():
    claim = gaussian_claim(1.0, 1e-5)
    assert (claim.mu, claim.is_gaussian) == (1.0, True)
    assert claim.epsilon == pytest.approx(4.377178, abs=1e-6)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_a_claim_by_total_variation_is_the_gaussians_where_it_is_gaussian(mu):
    claim = sampled_claim(
        total_variation=math.exp(log_delta_at(0.0, mu)), epsilon=epsilon_at(mu, 1e-5), delta=1e-5
    )
    assert claim.mu == pytest.approx(mu, rel=1e-9)
    assert not claim.is_gaussian


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, math.nan])
def test_a_claim_without_a_finite_mu_is_refused(mu):
    with pytest.raises(ValueError, match="mu"):
        gaussian_claim(mu, 1e-5)


def test_a_claim_without_meaning_is_refused():
    with pytest.raises(ValueError, match="total_variation"):
        sampled_claim(total_variation=1.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        Claim(1.0, -1.0, 1e-5, is_gaussian=True)

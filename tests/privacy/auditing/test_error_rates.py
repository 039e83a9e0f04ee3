"""From a ledger's row to its claim, and from counts to bounds on mu: exact and in closed forms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

import privacy.auditing.claims as claims
from privacy import NO_NOISE, IntegerNoise, SeededNoise, clip
from privacy.accounting.accountants import EpsilonResult
from privacy.accounting.gaussian import epsilon_at, log_delta_at
from privacy.auditing import (
    Claim,
    ErrorCounts,
    canaries_needed,
    claim_of,
    detection_probability,
    gaussian_claim,
    judge_client_unit,
    mu_interval,
    play_client_unit,
    sampled_claim,
)
from privacy.auditing.error_rates import DECISIONS, count_errors, rate_bounds
from privacy.errors import CalibrationError
from tests.privacy._rows import FACTS, released


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
    assert rate_bounds(0, 0, 0.05) == (0.0, 1.0)


@pytest.mark.parametrize(("probability", "trials"), [(0.02, 300), (0.31, 40)])
def test_the_balanced_lower_bound_covers_exactly(probability, trials):
    mu, alpha = -2 * norm.ppf(probability), 0.05
    wrong = sum(
        binom.pmf(errors, trials, probability)
        for errors in range(trials + 1)
        if mu_interval(ErrorCounts(errors, trials, 0, 0), alpha, is_gaussian=False)[0] > mu
    )
    assert wrong <= alpha


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


@pytest.mark.parametrize("counts", [(0, 0, 3, 9), (0, 9, 9, 9)])
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


@pytest.mark.parametrize("mu", [0.1, 4.0])
def test_a_claim_by_total_variation_is_the_gaussians_where_it_is_gaussian(mu):
    claim = sampled_claim(
        total_variation=math.exp(log_delta_at(0.0, mu)), epsilon=epsilon_at(mu, 1e-5), delta=1e-5
    )
    assert claim.mu == pytest.approx(mu, rel=1e-9)
    assert not claim.is_gaussian


def test_a_claim_without_meaning_is_refused():
    for mu in (0.0, math.nan):
        with pytest.raises(ValueError, match="mu"):
            gaussian_claim(mu, 1e-5)
    with pytest.raises(ValueError, match="total_variation"):
        sampled_claim(total_variation=1.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="epsilon"):
        Claim(1.0, -1.0, 1e-5, is_gaussian=True)


@pytest.mark.parametrize("claimed_mu", [0.75, 4.0])
def test_a_thousand_canaries_notice_halved_noise(claimed_mu):
    assert canaries_needed(claimed_mu, 2 * claimed_mu) <= 1000
    assert detection_probability(claimed_mu, 2 * claimed_mu, 1000) > 0.9999


@pytest.mark.parametrize(("claimed_mu", "needed"), [(0.25, 6749), (0.5, 1768), (5.0, 2441)])
def test_where_a_thousand_do_not_suffice(claimed_mu, needed):
    """Too little signal below 0.7; above 4.2 even no error at all is no proof."""
    assert canaries_needed(claimed_mu, 2 * claimed_mu) == pytest.approx(needed, rel=0.01)
    assert detection_probability(claimed_mu, 2 * claimed_mu, 1000) < 0.9


@pytest.mark.parametrize("claimed_mu", [0.5, 4.0])
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


def test_comparisons_that_no_number_decides_are_refused():
    with pytest.raises(ValueError, match="above claimed_mu"):
        canaries_needed(1.0, 1.0)
    with pytest.raises(CalibrationError, match="canaries are needed"):
        canaries_needed(1.0, 1.001)


DELTA = 1e-5
ROW = released(2.0)


@pytest.mark.parametrize(
    ("changes", "mu"),
    [
        ({}, 1.0),
        ({"relation": "add_or_remove_one"}, 0.5),
        ({"standard_deviation": 0.15}, 4.0),
        ({"count": 9}, 3.0),
    ],
)
def test_a_gaussian_row_claims_sensitivity_over_deviation(changes, mu):
    claim = claim_of(dataclasses.replace(ROW, **changes), DELTA)
    assert claim.is_gaussian
    assert claim.mu == pytest.approx(mu, rel=1e-9)
    assert claim.epsilon == pytest.approx(gaussian_claim(mu, DELTA).epsilon, rel=1e-9)


def test_one_sampled_step_claims_its_total_variation():
    """q (2 Phi(mu / 2) - 1) for a single step, in closed form."""
    row = dataclasses.replace(
        ROW,
        mechanism=FACTS["dp_sgd"],
        relation="add_or_remove_one",
        sampling="poisson",
        sampling_probability=0.4,
    )
    claim = claim_of(row, DELTA)
    total_variation = 0.4 * (2 * norm.cdf(0.25) - 1)
    assert not claim.is_gaussian
    assert claim.mu == pytest.approx(2 * norm.ppf((1 + total_variation) / 2), rel=2e-3)
    assert claim.epsilon < gaussian_claim(0.5, DELTA).epsilon


def test_integer_noise_claims_the_rows_gaussian_though_its_price_is_higher():
    noise = IntegerNoise(name="discrete_gaussian", share_deviation=1e5, shares=4, dimension=64)
    row = dataclasses.replace(ROW, mechanism=FACTS["distributed_noise"], law=noise)
    claim = claim_of(row, DELTA)
    assert claim.mu == pytest.approx(1.0, rel=1e-9)
    assert claim.epsilon > gaussian_claim(1.0, DELTA).epsilon


@pytest.mark.parametrize(
    ("factor", "mu"), [(0.5, None), (2.0, 1.0), (1e9, 1.0), (0.0, claims._SMALLEST_MU)]
)
def test_a_price_below_the_rows_is_the_claim(monkeypatch, factor, mu):
    exact = gaussian_claim(1.0, DELTA).epsilon
    monkeypatch.setattr(claims, "price", lambda *_: EpsilonResult(factor * exact, "exact"))
    claim = claim_of(ROW, DELTA)
    assert claim.epsilon == factor * exact
    if mu is None:
        assert gaussian_claim(claim.mu, DELTA).epsilon == pytest.approx(factor * exact, rel=1e-6)
    else:
        assert claim.mu == pytest.approx(mu)


def test_a_row_without_noise_claims_nothing():
    with pytest.raises(ValueError, match="standard_deviation"):
        claim_of(dataclasses.replace(ROW, standard_deviation=0.0, law=NO_NOISE), DELTA)


FLAG, C = 0.3, 1.0


def flagged(deviation, *, honest=True):
    """Clip, append the flag, add noise; a dishonest flag is ten times as long."""
    noise = SeededNoise(np.random.default_rng(11))

    def release(vector):
        clipped = clip(vector, C)
        flag = (-FLAG if clipped.was_clipped else FLAG) * (1.0 if honest else 10.0)
        return np.append(clipped.vector, flag) + deviation * noise.standard_normal(vector.size + 1)

    return release


def play_flagged(release, relation="replace_one"):
    return play_client_unit(
        release,
        clipping_norm=C,
        dimension=64,
        canaries=1000,
        oversized=20,
        relation=relation,
        rng=np.random.default_rng(3),
        flag=FLAG,
    )


def test_flag_and_update_together_are_as_far_apart_as_the_joint_norm_allows():
    scores = play_flagged(flagged(0.0))
    joint = math.hypot(C, FLAG)
    assert scores.clipping_norm == pytest.approx(joint)
    assert scores.distance == pytest.approx(2 * joint)
    assert np.allclose(scores.scores, np.where(scores.included, joint, -joint), atol=1e-5)


@pytest.mark.parametrize("honest", [True, False])
def test_a_flag_that_is_too_long_is_refuted(honest):
    claim = gaussian_claim(2 * math.hypot(C, FLAG) / 1.5, DELTA)
    scores = play_flagged(flagged(1.5, honest=honest))
    assert judge_client_unit(scores, claim).passed is honest


def test_the_flag_is_left_out_where_the_neighbour_sends_nothing():
    scores = play_flagged(flagged(0.0), relation="add_or_remove_one")
    assert np.allclose(scores.scores, np.where(scores.included, C, 0.0), atol=1e-5)

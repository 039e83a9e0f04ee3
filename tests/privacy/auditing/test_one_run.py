"""The one-run bound against the paper's numbers, closed forms and mechanisms that attain it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from privacy.accounting.gaussian import epsilon_at
from privacy.auditing import epsilon_lower_bound, one_run_p_value, planned_guesses
from privacy.auditing.bounds import correct_guesses


@pytest.mark.parametrize(
    ("canaries", "delta", "expected"), [(100, 0.0, 0.702), (100, 1e-4, 0.699), (1000, 1e-4, 0.673)]
)
def test_the_bounds_printed_in_the_papers_appendix(canaries, delta, expected):
    bound = epsilon_lower_bound(canaries=canaries, guesses=100, correct=75, delta=delta)
    assert bound == pytest.approx(expected, abs=5e-4)


def test_the_p_value_printed_in_the_papers_appendix():
    p_value = one_run_p_value(canaries=100, guesses=100, correct=75, epsilon=math.log(3), delta=0.0)
    assert p_value == pytest.approx(0.553, abs=5e-4)


def exact_p_value(canaries: int, guesses: int, correct: int, odds: int, delta: Fraction) -> float:
    """Corollary 5.4 in rational numbers, for e^epsilon = odds."""
    right = Fraction(odds, odds + 1)

    def tail(least: int) -> Fraction:
        return sum(
            math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k)
            for k in range(least, guesses + 1)
        )

    steps = [(tail(correct - i) - tail(correct)) / i for i in range(1, correct + 1)]
    return float(min(1, tail(correct) + 2 * canaries * delta * max(steps, default=Fraction(0))))


@pytest.mark.parametrize("odds", [1, 3, 20])
@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (7, 0), (12, 11), (30, 22), (30, 30)])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
def test_the_p_value_is_the_corollary_in_rational_numbers(odds, guesses, correct, delta):
    p_value = one_run_p_value(
        canaries=40,
        guesses=guesses,
        correct=correct,
        epsilon=math.log(odds),
        delta=float(delta),
    )
    assert p_value == pytest.approx(exact_p_value(40, guesses, correct, odds, delta), rel=1e-9)


@pytest.mark.parametrize("guesses", [5, 20, 1000])
def test_all_right_has_a_closed_form(guesses):
    # q^r = 0.05 with q = e^epsilon / (1 + e^epsilon).
    right = 0.05 ** (1 / guesses)
    bound = epsilon_lower_bound(canaries=guesses, guesses=guesses, correct=guesses, delta=0.0)
    assert bound == pytest.approx(math.log(right / (1 - right)), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [50, 400])
def test_coverage_is_exactly_kept_by_randomised_response(epsilon, guesses):
    """Randomised response attains the bound, so 5% must be kept and nearly used."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = sum(
        binom.pmf(correct, guesses, right)
        for correct in range(guesses + 1)
        if epsilon_lower_bound(canaries=guesses, guesses=guesses, correct=correct, delta=0.0)
        > epsilon
    )
    assert wrong <= 0.05
    if epsilon < 3.0:
        assert wrong > 0.02


def bounds_by_correct(canaries: int, guesses: int, delta: float) -> np.ndarray:
    return np.array(
        [
            epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=v, delta=delta)
            for v in range(guesses + 1)
        ]
    )


@pytest.mark.parametrize("all_or_nothing", [True, False])
@pytest.mark.parametrize("delta", [0.0005, 0.01])
def test_coverage_holds_where_delta_leaks_coins(all_or_nothing, delta):
    """Two (epsilon, delta)-private mechanisms: coins leak together, or one by one."""
    canaries, epsilon, runs = 60, 1.0, 200_000
    rng = np.random.default_rng(7)
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    if all_or_nothing:
        correct = rng.binomial(canaries, right, runs)
        correct[rng.random(runs) < delta] = canaries
    else:
        correct = rng.binomial(canaries, delta + (1 - delta) * right, runs)
    bounds = bounds_by_correct(canaries, canaries, delta)
    assert np.mean(bounds[correct] > epsilon) <= 0.05
    # Without its delta term the theorem would be wrong here or near it.
    assert np.all(bounds <= bounds_by_correct(canaries, canaries, 0.0))


@pytest.mark.parametrize("abstaining", [False, True])
def test_coverage_holds_for_the_gaussian_mechanism(abstaining):
    """Scores of N(+-mu/2, 1), whose true epsilon at this delta is exact."""
    mu, delta, canaries, runs = 1.0, 1e-4, 200, 20_000
    truth = epsilon_at(mu, delta)
    guesses = 20 if abstaining else canaries
    rng = np.random.default_rng(3)
    included = rng.random((runs, canaries)) < 0.5
    scores = rng.standard_normal((runs, canaries)) + np.where(included, mu / 2, -mu / 2)
    order = np.argsort(-np.abs(scores), axis=1)[:, :guesses]
    right = np.take_along_axis((scores > 0) == included, order, axis=1).sum(axis=1)
    bounds = bounds_by_correct(canaries, guesses, delta)
    assert np.mean(bounds[right] > truth) <= 0.05
    assert bounds[right].max() > 0.0
    assert correct_guesses(scores[0], included[0], 0.0, guesses) == right[0]


@given(
    guesses=st.integers(1, 60),
    more=st.integers(0, 100),
    delta=st.sampled_from([0.0, 1e-5, 1e-3]),
)
def test_more_right_guesses_never_lower_the_bound(guesses, more, delta):
    bounds = bounds_by_correct(guesses + more, guesses, delta)
    assert np.all(np.diff(bounds) >= 0.0)
    assert bounds[0] == 0.0


@given(epsilon=st.floats(0, 5), correct=st.integers(0, 50), delta=st.floats(0, 0.01))
def test_delta_never_makes_a_p_value_smaller(epsilon, correct, delta):
    def p_value(delta: float) -> float:
        return one_run_p_value(
            canaries=80, guesses=50, correct=correct, epsilon=epsilon, delta=delta
        )

    assert p_value(0.0) <= p_value(delta) <= 1.0


def test_nothing_guessed_refutes_nothing():
    assert epsilon_lower_bound(canaries=10, guesses=0, correct=0, delta=0.0) == 0.0


@pytest.mark.parametrize(("mu", "canaries"), [(0.01, 10), (0.5, 1000), (4.0, 1000), (50.0, 100)])
def test_guesses_are_planned_within_the_canaries(mu, canaries):
    assert 1 <= planned_guesses(mu, canaries, 1e-5) <= canaries


def test_abstaining_pays_where_guesses_are_poor():
    assert planned_guesses(0.5, 1000, 1e-5) < planned_guesses(4.0, 1000, 1e-5)


def test_the_most_extreme_scores_are_guessed():
    scores = np.array([0.1, -3.0, 2.0, -0.2])
    included = np.array([False, False, True, True])
    assert correct_guesses(scores, included, 0.0, 2) == 2
    assert correct_guesses(scores, included, 0.0, 4) == 2


@pytest.mark.parametrize("counts", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_impossible_counts_are_refused(counts):
    canaries, guesses, correct = counts
    with pytest.raises(ValueError, match="at most the next"):
        epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=correct, delta=0.0)


def test_a_confidence_outside_is_refused():
    with pytest.raises(ValueError, match="confidence"):
        epsilon_lower_bound(canaries=9, guesses=9, correct=9, delta=0.0, confidence=1.0)

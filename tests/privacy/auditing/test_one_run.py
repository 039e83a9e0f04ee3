"""The one-run bound against the paper's numbers, closed forms and mechanisms that attain it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

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


def exact_p_value(canaries, guesses, correct, odds, delta):
    """Corollary 5.4 in rational numbers, for e^epsilon = odds."""
    right = Fraction(odds, odds + 1)

    def tail(least):
        return sum(
            math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k)
            for k in range(least, guesses + 1)
        )

    steps = [(tail(correct - i) - tail(correct)) / i for i in range(1, correct + 1)]
    return float(min(1, tail(correct) + 2 * canaries * delta * max(steps, default=Fraction(0))))


@pytest.mark.parametrize("odds", [1, 20])
@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (7, 0), (30, 22)])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
def test_the_p_value_is_the_corollary_in_rational_numbers(odds, guesses, correct, delta):
    p_value = one_run_p_value(
        canaries=40, guesses=guesses, correct=correct, epsilon=math.log(odds), delta=float(delta)
    )
    assert p_value == pytest.approx(exact_p_value(40, guesses, correct, odds, delta), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "guesses"), [(0.1, 400), (1.0, 50), (3.0, 50)])
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


@pytest.mark.parametrize(("mu", "canaries"), [(0.01, 10), (0.5, 1000), (4.0, 1000), (50.0, 100)])
def test_guesses_are_planned_within_the_canaries(mu, canaries):
    assert 1 <= planned_guesses(mu, canaries, 1e-5) <= canaries
    # To abstain pays where guesses are poor.
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
    with pytest.raises(ValueError, match="confidence"):
        epsilon_lower_bound(canaries=9, guesses=9, correct=9, delta=0.0, confidence=1.0)

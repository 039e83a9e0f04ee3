"""The lower bound on epsilon from one run with many canaries (Steinke, Nasr and Jagielski 2023).

Each of m canaries is in or out by its own fair coin. The auditor sees everything that was released,
guesses r of the coins and abstains from the rest; v guesses are right. If changing one coin is
covered by (epsilon, delta)-differential privacy, then (Theorem 5.2 in the form of Corollary 5.4)

    P[at least v right] <= f(v) + 2 m delta max_{1 <= i <= v} (f(v - i) - f(v)) / i,
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

Assumptions: the coins are fair, independent and unknown to the guesser; r is fixed beforehand (with
delta > 0 the best r may not be picked after the scores were seen). m calls of a mechanism with one
canary each are one mechanism on m coins, of which each coin reaches one call only, so the theorem
applies to them with the epsilon of a single call.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, expit, ndtr

from privacy._validate import require_not_negative, require_positive, require_probability

_FRACTIONS = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Shares of the canaries that `planned_guesses` considers; the optimum is flat."""

_HALVINGS = 40


def one_run_p_value(
    *, canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """Bound the probability of at least `correct` right guesses under (epsilon, delta).

    Args:
        canaries: m, all of them, guessed or not.
        guesses: r, at most m.
        correct: v, at most r.
        epsilon: At least 0.
        delta: From 0 to below 1.

    Returns:
        The theorem's bound, cut to at most 1.

    Raises:
        ValueError: The counts are not ordered, or epsilon or delta is out of range.
    """
    _require_ordered(canaries, guesses, correct)
    require_not_negative(epsilon=epsilon, delta=delta)
    # tails[k] is f(k), so the differences of Corollary 5.4 run from f(v - 1) down to f(0).
    shifts = np.arange(1, correct + 1)
    tails = np.concatenate([[1.0], betainc(shifts, guesses - shifts + 1, expit(epsilon))])
    steepest = np.max((tails[::-1][1:] - tails[-1]) / shifts, initial=0.0)
    return float(min(1.0, tails[-1] + 2.0 * canaries * delta * steepest))


def epsilon_lower_bound(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon below which (epsilon, delta) is refuted at the given confidence.

    Bisection keeps the refuted side, so rounding errs downwards.

    Args:
        canaries: m.
        guesses: r, fixed before the scores were seen.
        correct: v.
        delta: From 0 to below 1.
        confidence: One minus the probability of a bound above the truth.

    Returns:
        Epsilon, 0 where nothing is refuted.

    Raises:
        ValueError: As `one_run_p_value`, or `confidence` is no probability.
    """
    require_probability(confidence=confidence)

    def is_refuted(epsilon: float) -> bool:
        p_value = one_run_p_value(
            canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta
        )
        return p_value < 1.0 - confidence

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


@lru_cache(maxsize=64)
def planned_guesses(mu: float, canaries: int, delta: float) -> int:
    """Choose r from the claim alone, which keeps it independent of the scores.

    Picked is the share of most extreme scores that would give the largest bound if the scores were
    Gaussian at distance `mu` and one standard deviation fewer guesses than expected were right.

    Args:
        mu: Distance of the two score distributions in standard deviations, as claimed.
        canaries: m, at least 1.
        delta: From 0 to below 1.

    Returns:
        r, from 1 to m.

    Raises:
        ValueError: A number is out of range.
    """
    require_positive(mu=mu, canaries=canaries)
    best, chosen = -1.0, canaries
    for fraction in _FRACTIONS:
        guesses = max(1, round(fraction * canaries))
        accuracy = _accuracy(mu, guesses / canaries)
        slack = math.sqrt(guesses * accuracy * (1.0 - accuracy))
        correct = max(0, math.floor(guesses * accuracy - slack))
        bound = epsilon_lower_bound(
            canaries=canaries, guesses=guesses, correct=correct, delta=delta
        )
        best, chosen = (bound, guesses) if bound > best else (best, chosen)
    return chosen


def correct_guesses(
    scores: NDArray[np.float64], included: NDArray[np.bool_], threshold: float, guesses: int
) -> int:
    """Guess the `guesses` scores farthest from the threshold and count what is right.

    Args:
        scores: Of shape (m,).
        included: Of shape (m,), the coins.
        threshold: Above it the guess is "in".
        guesses: r, fixed beforehand.
    """
    extreme = np.argsort(-np.abs(scores - threshold), kind="stable")[:guesses]
    return int(np.count_nonzero((scores[extreme] > threshold) == included[extreme]))


def _accuracy(mu: float, fraction: float) -> float:
    """Return how often the sign is right among that share of largest |N(+-mu/2, 1)|."""

    def excess(cut: float) -> float:
        return float(ndtr(mu / 2.0 - cut) + ndtr(-mu / 2.0 - cut)) - fraction

    if fraction >= 1.0:
        return float(ndtr(mu / 2.0))
    cut = float(brentq(excess, 0.0, mu / 2.0 + 40.0))
    return min(1.0, float(ndtr(mu / 2.0 - cut)) / fraction)


def _require_ordered(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"correct, guesses and canaries are {correct}, {guesses} and {canaries}; each must be "
            "at most the next and none negative"
        )

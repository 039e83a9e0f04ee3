"""Two lower bounds on what an audit shows: from right guesses, and from the means of scores.

**One run with many canaries** (Steinke, Nasr and Jagielski 2023). Each of m canaries is in or out
by its own fair coin. The auditor sees everything that was released, guesses r of the coins and
abstains from the rest; v guesses are right. If changing one coin is covered by (epsilon,
delta)-differential privacy, then (Theorem 5.2 in the form of Corollary 5.4)

    P[at least v right] <= f(v) + 2 m delta max_{1 <= i <= v} (f(v - i) - f(v)) / i,
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v].

Assumptions: the coins are fair, independent and unknown to the guesser; r is fixed beforehand (with
delta > 0 the best r may not be picked after the scores were seen). m calls of a mechanism with one
canary each are one mechanism on m coins, of which each coin reaches one call only, so the theorem
applies to them with the epsilon of a single call.

**Means of normal scores** show more of a claimed epsilon. Counting right guesses throws most of a
score away, and with delta > 0 nearly all guesses must be abstained from. Under a Gaussian mechanism
scores are normal, with one deviation and means that are mu deviations apart, so the t statistic of
both kinds of canary follows Student's noncentral law with noncentrality mu / sqrt(1 / n_in + 1 /
n_out). The mu at which a statistic as large as the one that was seen has probability 1 - confidence
is an exact lower confidence bound, and so is the epsilon of a Gaussian mechanism with that mu.

It holds for releases whose scores are normal and says nothing of others, so it is shown and decides
nothing; the law of the noise is tested by itself (`noise`).

Sources: Johnson, Kotz and Balakrishnan 1995, Continuous Univariate Distributions 2, chapter 31
(bounds on a noncentrality); the epsilon of mu is Balle and Wang 2018, Theorem 8. That an audit of a
Gaussian mechanism gains by a fit of its scores: Andrew et al. 2023, One-shot empirical privacy
estimation for federated learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, expit, ndtr
from scipy.stats import chi2, nct, norm
from scipy.stats import t as student_t

from privacy._validate import require_not_negative, require_positive, require_probability
from privacy.accounting.gaussian import epsilon_at

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
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(
            f"correct, guesses and canaries are {correct}, {guesses} and {canaries}; each must be "
            "at most the next and none negative"
        )
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

    `guesses` is fixed beforehand; above the threshold the guess is "in".
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


CONFIDENCE = 0.95
LARGEST_MU = 1e3
"""More is not told apart; a lower bound may be lower."""
_FAR, _CERTAIN = 1e4, 5.0
"""A statistic so large that its normal part, hardly ever beyond so many deviations, is nothing."""


@dataclass(frozen=True)
class GaussianBound:
    """What the means of scores show.

    Attributes:
        epsilon: A lower bound at 95%, if scores are normal.
        ceiling: What it is on average (the median) of a build that is exactly as claimed, with as
            many canaries.
    """

    epsilon: float
    ceiling: float


def gaussian_bound(
    inside: NDArray[np.float64], outside: NDArray[np.float64], *, claimed_mu: float, delta: float
) -> GaussianBound:
    """Bound epsilon from the scores of canaries and of their neighbours.

    Args:
        inside: Scores of canaries, (n_in,), at least two.
        outside: Scores of their neighbours, (n_out,), at least two, lower on average.
        claimed_mu: Of one release.
        delta: At which epsilon is stated.

    Raises:
        ValueError: Too few scores, or a number is out of range.
    """
    if min(inside.size, outside.size) < 2:
        raise ValueError("there must be at least two scores of each kind")
    freedom, unit = inside.size + outside.size - 2, _unit(inside.size, outside.size)
    squares = sum(float(np.square(kind - kind.mean()).sum()) for kind in (inside, outside))
    spread = math.sqrt(squares / freedom)
    distance = float(inside.mean() - outside.mean())
    # No deviation at all is no normal law, of which nothing can be said.
    seen = distance / (unit * spread) if spread else 0.0
    low = min(unit * noncentrality(seen, freedom, CONFIDENCE), LARGEST_MU)
    return GaussianBound(
        epsilon_at(low, delta) if low > 0.0 else 0.0,
        epsilon_ceiling(claimed_mu, delta, inside.size, outside.size),
    )


def epsilon_ceiling(mu: float, delta: float, inside: int, outside: float) -> float:
    """Return the epsilon that such a bound shows of a mu-GDP release: its median.

    Args:
        mu: Of the release.
        delta: At which epsilon is stated.
        inside: Canaries that are in.
        outside: Their neighbours; infinity where what they score is known beforehand.

    Raises:
        ValueError: A number is out of range.
    """
    require_positive(mu=mu, inside=inside)
    require_probability(delta=delta)
    freedom = inside + outside - 2
    # Student's law with a noncentrality has the deviation sqrt(1 + ncp^2 / 2 n).
    unit = _unit(inside, outside)
    width = math.sqrt(unit**2 + mu**2 / (2 * freedom)) if freedom > 0 else math.inf
    low = mu - float(norm.isf(1.0 - CONFIDENCE)) * width
    return epsilon_at(low, delta) if low > 0.0 else 0.0


def _unit(inside: int, outside: float) -> float:
    """Return the deviation of the difference of both means, in deviations of a score."""
    return math.sqrt(1.0 / inside + 1.0 / outside)


def noncentrality(seen: float, freedom: int, confidence: float) -> float:
    """Return the largest noncentrality of Student's law that a statistic refutes, at least 0.

    `confidence` is one minus the probability of a number above the truth, from one half.
    """
    level = 1.0 - confidence
    if student_t.sf(seen, freedom) >= level:
        return 0.0
    if seen > _FAR:
        # (Z + ncp) / sqrt(chi2 / n) >= seen, and Z <= 5 but for 3e-7, for which there is room.
        chi2_quantile = float(chi2.ppf(max(level - ndtr(-_CERTAIN), 0.0), freedom))
        return max(0.0, seen * math.sqrt(chi2_quantile / freedom) - _CERTAIN)

    def excess(noncentrality: float) -> float:
        return float(nct.sf(seen, freedom, noncentrality)) - level

    # At a noncentrality of the statistic itself about half of all statistics are larger.
    return float(brentq(excess, 0.0, seen + 1.0))

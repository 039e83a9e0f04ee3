"""How much of a claimed epsilon an audit shows where scores are normal: a bound from their means.

Counting right guesses throws most of a score away, and with delta > 0 nearly all guesses must be
abstained from. Under a Gaussian mechanism scores are normal, with one deviation and means that are
mu deviations apart, so the t statistic of both kinds of canary follows Student's noncentral law
with noncentrality mu / sqrt(1 / n_in + 1 / n_out). The mu at which a statistic as large as the
one that was seen has probability 1 - confidence is an exact lower confidence bound, and so is the
epsilon of a Gaussian mechanism with that mu.

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

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2, nct, norm
from scipy.stats import t as student_t

from privacy._validate import require_positive, require_probability
from privacy.accounting.gaussian import epsilon_at

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
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    *,
    claimed_mu: float,
    delta: float,
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

    Args:
        seen: The statistic.
        freedom: Degrees of it, at least 1.
        confidence: One minus the probability of a number above the truth, from one half.
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

"""From counted wrong guesses to bounds on mu.

A canary is in or out by a fair coin and a guess is made from the release alone. With false positive
rate a and false negative rate b of any guessing rule

    mu >= Phi^-1(1 - a) - Phi^-1(b)            (rates)
    mu >= -2 Phi^-1((a + b) / 2)               (balanced)

hold for every mechanism that is mu-GDP. The first is the trade-off curve of mu-GDP (Dong, Roth and
Su 2022, equation 6), used for audits by Nasr et al. 2023 ("Tight auditing of differentially private
machine learning", section 4). The second follows from it because the curve's balanced error is
least at a = b, and needs only the bound on total variation, so it holds for sampled mechanisms too.

The counts are turned into bounds on the rates by Clopper and Pearson 1934, which is exact for
binomial counts. It stays valid where releases depend on earlier ones: given the past, each guess is
wrong with at least the bounded probability, so the count of errors dominates a binomial one. The
rule must be fixed before the counted releases are seen.

For Gaussian scores of equal variance the first line is an equality, and only then do the counts
bound mu from above: an *upper* bound describes this score, never all attacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from privacy._validate import require_probability

DECISIONS = 4
"""One-sided tests by which a build may fail; each gets this share of the family-wise error."""


@dataclass(frozen=True)
class ErrorCounts:
    """How often a fixed rule was wrong.

    Attributes:
        false_positives: Canaries that were out and guessed in.
        negatives: Canaries that were out.
        false_negatives: Canaries that were in and guessed out.
        positives: Canaries that were in.
    """

    false_positives: int
    negatives: int
    false_negatives: int
    positives: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot be."""
        if not (
            0 <= self.false_positives <= self.negatives
            and 0 <= self.false_negatives <= self.positives
            and self.trials > 0
        ):
            raise ValueError("errors must lie between 0 and their trials, of which one is needed")

    @property
    def errors(self) -> int:
        """Wrong guesses of both kinds."""
        return self.false_positives + self.false_negatives

    @property
    def trials(self) -> int:
        """All guesses."""
        return self.negatives + self.positives

    @property
    def estimated_mu(self) -> float:
        """Estimate of mu from the balanced error, finite as half an error is added."""
        rate = (self.errors + 0.5) / (self.trials + 1.0)
        return max(0.0, -2.0 * float(ndtri(rate)))


def count_errors(
    scores: NDArray[np.float64], included: NDArray[np.bool_], threshold: float
) -> ErrorCounts:
    """Guess "in" where the score is above the threshold, and count what is wrong.

    Args:
        scores: Of shape (m,), larger where a canary is more likely to be in.
        included: Of shape (m,), the fair coins.
        threshold: Fixed before the scores were seen.
    """
    guesses = scores > threshold
    return ErrorCounts(
        false_positives=int(np.count_nonzero(guesses & ~included)),
        negatives=int(np.count_nonzero(~included)),
        false_negatives=int(np.count_nonzero(~guesses & included)),
        positives=int(np.count_nonzero(included)),
    )


def rate_bounds(errors: int, trials: int, alpha: float) -> tuple[float, float]:
    """Bound a binomial probability from both sides, each wrong with probability at most `alpha`.

    Args:
        errors: Successes seen.
        trials: Out of how many; 0 tells nothing.
        alpha: Of each side.

    Returns:
        Clopper and Pearson's lower and upper bound.
    """
    low = float(betaincinv(errors, trials - errors + 1, alpha)) if errors else 0.0
    high = float(betaincinv(errors + 1, trials - errors, 1.0 - alpha)) if errors < trials else 1.0
    return low, high


def mu_interval(counts: ErrorCounts, alpha: float, *, is_gaussian: bool) -> tuple[float, float]:
    """Bound mu from both sides.

    Args:
        counts: Of a rule that was fixed beforehand.
        alpha: Error of each of the bounds that are combined: the lower end fails with at most
            twice that where `is_gaussian` (two bounds, the better one counts), else once.
        is_gaussian: Whether the claim is mu-GDP, so that the rates may be used one by one.

    Returns:
        The lower end, at least 0, valid for any mechanism of that kind; the upper end, infinite
        where an error was never made, valid for this score if it is Gaussian.

    Raises:
        ValueError: `alpha` is no probability.
    """
    require_probability(alpha=alpha)
    low, high = rate_bounds(counts.errors, counts.trials, alpha)
    balanced = (_balanced(high), _balanced(low))
    if not is_gaussian:
        return max(0.0, balanced[0]), max(0.0, balanced[1])
    # Each rate takes half of the error, since both must hold at once.
    out = rate_bounds(counts.false_positives, counts.negatives, alpha / 2.0)
    missed = rate_bounds(counts.false_negatives, counts.positives, alpha / 2.0)
    return max(0.0, balanced[0], _distance(out[1], missed[1])), max(
        0.0, _distance(out[0], missed[0])
    )


def _balanced(error: float) -> float:
    return -2.0 * float(ndtri(error))


def _distance(false_positive_rate: float, false_negative_rate: float) -> float:
    first, second = -float(ndtri(false_positive_rate)), -float(ndtri(false_negative_rate))
    # A rate bounded only by 1 tells nothing, whatever the other one is.
    return -math.inf if -math.inf in (first, second) else first + second

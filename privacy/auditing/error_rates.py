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

How many canaries are needed to notice a mistake is planned before anything is run. Under a claimed
mu the number of wrong balanced guesses among m dominates Binomial(m, Phi(-mu / 2)). The build fails
when it is below that distribution's alpha quantile, which is the same as Clopper and Pearson's
bound on mu being above the claim. If the truth is a Gaussian of another mu, the number is
Binomial(m, Phi(-wrong_mu / 2)), so the probability of noticing is exact. The audit also looks at
both rates one by one and may notice a little more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from privacy._validate import require_positive, require_probability
from privacy.errors import CalibrationError

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

    The threshold is fixed before the scores were seen; coins are fair.
    """
    guesses = scores > threshold
    return ErrorCounts(
        false_positives=int(np.count_nonzero(guesses & ~included)),
        negatives=int(np.count_nonzero(~included)),
        false_negatives=int(np.count_nonzero(~guesses & included)),
        positives=int(np.count_nonzero(included)),
    )


def rate_bounds(errors: int, trials: int, alpha: float) -> tuple[float, float]:
    """Return Clopper and Pearson's bounds on a rate, each wrong with probability at most `alpha`.

    `errors` were seen in `trials`, of which 0 tells nothing.
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


_MOST = 1 << 22


def detection_probability(
    claimed_mu: float, wrong_mu: float, canaries: int, *, family_wise_error: float = 1e-6
) -> float:
    """Return how likely an audit fails a build whose true mu is `wrong_mu`.

    Args:
        claimed_mu: What the ledger says.
        wrong_mu: What the build does, at the threshold half-way between the two scores.
        canaries: m, at least 1.
        family_wise_error: Of the whole audit; one of its decisions gets a quarter.

    Returns:
        A probability; at most a quarter of the family-wise error where `wrong_mu` is `claimed_mu`.

    Raises:
        ValueError: A number is out of range.
    """
    require_positive(claimed_mu=claimed_mu, wrong_mu=wrong_mu, canaries=canaries)
    require_probability(family_wise_error=family_wise_error)
    return float(_detected(claimed_mu, wrong_mu, np.array([canaries]), family_wise_error)[0])


def canaries_needed(
    claimed_mu: float,
    wrong_mu: float,
    family_wise_error: float = 1e-6,
    *,
    probability: float = 0.999,
) -> int:
    """Return the smallest number of canaries from which on a wrong build is noticed.

    Args:
        claimed_mu: What the ledger says.
        wrong_mu: What the build does; twice the claim where noise is halved.
        family_wise_error: How often a right build may fail.
        probability: How often the wrong one must. The number of canaries moves it in a saw-tooth,
            so it is required of the number returned and of every larger one up to its double.

    Raises:
        CalibrationError: Four million canaries do not suffice.
        ValueError: `wrong_mu` is not above `claimed_mu`, or a number is out of range.
    """
    require_positive(claimed_mu=claimed_mu, wrong_mu=wrong_mu)
    require_probability(family_wise_error=family_wise_error, probability=probability)
    if wrong_mu <= claimed_mu:
        raise ValueError(f"wrong_mu is {wrong_mu}; it must be above claimed_mu {claimed_mu}")
    enough = 1
    while (
        detection_probability(claimed_mu, wrong_mu, enough, family_wise_error=family_wise_error)
        < probability
    ):
        enough *= 2
        if enough > _MOST:
            raise CalibrationError(
                f"more than {_MOST} canaries are needed to tell mu {wrong_mu:g} from {claimed_mu:g}"
            )
    numbers = np.arange(enough // 2 + 1, 2 * enough + 1)
    too_few = _detected(claimed_mu, wrong_mu, numbers, family_wise_error) < probability
    last = np.flatnonzero(too_few)
    return int(numbers[last[-1]] + 1) if last.size else int(numbers[0])


def _detected(
    claimed_mu: float, wrong_mu: float, canaries: NDArray[np.int64], family_wise_error: float
) -> NDArray[np.float64]:
    alpha = family_wise_error / DECISIONS
    # The quantile is the first count that is not rare enough; rejected is everything below it.
    rejected = binom.ppf(alpha, canaries, ndtr(-claimed_mu / 2.0)) - 1.0
    detected: NDArray[np.float64] = binom.cdf(rejected, canaries, ndtr(-wrong_mu / 2.0))
    return detected

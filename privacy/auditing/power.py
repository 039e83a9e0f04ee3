"""How many canaries a build's mistake needs to be noticed: planned before anything is run.

Under a claimed mu the number of wrong balanced guesses among m dominates Binomial(m, Phi(-mu / 2)).
The build fails when it is below that distribution's alpha quantile, which is the same as Clopper
and Pearson's bound on mu being above the claim. If the truth is a Gaussian of another mu, the
number is Binomial(m, Phi(-wrong_mu / 2)), so the probability of noticing is exact. The audit also
looks at both rates one by one and may notice a little more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from privacy._validate import require_positive, require_probability
from privacy.auditing.error_rates import DECISIONS
from privacy.errors import CalibrationError

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

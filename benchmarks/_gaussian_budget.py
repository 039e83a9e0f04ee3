"""What a budget of epsilon at a fixed delta is in noise, by the exact formula."""

from __future__ import annotations

import math
from functools import cache

from scipy.optimize import brentq
from scipy.stats import norm

DELTA = 1e-5


@cache
def mu_of(epsilon: float) -> float:
    """Mu of the Gaussian mechanism that is (epsilon, delta) private, by the exact formula."""

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return float(norm.cdf(-epsilon / mu + mu / 2) - second - DELTA)

    return math.exp(brentq(excess, -8.0, 4.0, xtol=1e-12))


def signal_to_noise(
    clients: int, rank: int, rounds: int, epsilon: float, coherence: float = 1.0
) -> float:
    """Norm of a round's mean over the norm of its noise, each upload being of norm C.

    The mean of n vectors of norm C whose mean cosine is r has norm C sqrt(r + (1 - r) / n), of
    which C sqrt(r) is in common. Its noise has deviation 2 C z / n in each of k directions, with
    z = sqrt(T) / mu.
    """
    multiplier = math.sqrt(rounds) / mu_of(epsilon)
    return math.sqrt(coherence) * clients / (2.0 * multiplier * math.sqrt(rank))

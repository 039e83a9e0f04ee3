"""The exact walk of an adversary's log-likelihood ratio, and what stopping by it is worth.

An independent calculation: no code of ours prices anything here. The ratio of T Gaussian releases
of sensitivity over noise m is, in the world with the client, a walk with steps N(m^2 / 2, m^2).
Somebody who stops it at a time of their own choosing, and then claims an epsilon, has

    delta = E[(1 - e^(epsilon - L_tau))+],

the expectation in that world, L_tau the ratio at the stop. The density of the walk among those who
have not stopped is propagated by Gauss-Legendre quadrature, so there is no noise of sampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

NODES, WEIGHTS = np.polynomial.legendre.leggauss(240)
WIDEST = 10.0
"""Standard deviations below its mean at which the walk is cut off: 1e-23 of it lies there."""


def delta_of(epsilon: float, mu: float) -> float:
    """Delta of one Gaussian release (Balle and Wang 2018, Theorem 8)."""
    second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
    return float(norm.cdf(-epsilon / mu + mu / 2) - second)


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon of one Gaussian release, by root finding."""
    if delta_of(0.0, mu) <= delta:
        return 0.0
    return float(brentq(lambda e: delta_of(e, mu) - delta, 0.0, 500.0, xtol=1e-13))


def excess(ratio: NDArray[np.float64], step: float, epsilon: float) -> NDArray[np.float64]:
    """E[(1 - e^(epsilon - L))+] where L is one step of the walk away from each of these ratios."""
    up = norm.cdf((ratio + step**2 / 2 - epsilon) / step)
    down = norm.logcdf((ratio - step**2 / 2 - epsilon) / step)
    found: NDArray[np.float64] = up - np.exp(epsilon - ratio + down)
    return found


def stopped(step: float, limits: Sequence[float], claims: Sequence[float]) -> float:
    """Delta of who stops at the first round t whose ratio is above `limits[t]`.

    Args:
        step: Sensitivity over noise of a release.
        limits: By round; who passes none stops after the last.
        claims: By round, the epsilon that is claimed when the walk stops there; at least the limit.
    """
    total, nodes, weights = 0.0, np.zeros(1), np.ones(1)
    for number, (limit, claim) in enumerate(zip(limits, claims, strict=True), start=1):
        total += float(weights @ excess(nodes, step, claim))
        low = number * step**2 / 2 - WIDEST * math.sqrt(number) * step
        following = low + (NODES + 1) * (limit - low) / 2
        moved = norm.pdf(following[:, None], nodes[None, :] + step**2 / 2, step)
        nodes, weights = following, (moved @ weights) * WEIGHTS * (limit - low) / 2
    return total

"""The exact epsilon of composed Gaussian releases, in closed form.

Releases of sensitivity D_i with noise of standard deviation s_i, each of which may depend on what
the earlier ones gave, compose to one Gaussian mechanism with mu^2 = sum (D_i / s_i)^2 (Dong, Roth
and Su 2022, Corollary 3.3), and

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

is exact (Balle and Wang 2018, Theorem 8). Both terms carry the factor exp(-a^2 / 2) with a = mu/2
- epsilon/mu, because e^epsilon times the second tail's own factor is the first's. Taking it out
leaves a difference of scaled complementary error functions that neither overflows at large epsilon
nor vanishes at small noise.
"""

from __future__ import annotations

import math

from scipy.special import erfcx, ndtri

from privacy._validate import require_probability
from privacy.accounting.composition import Composition
from privacy.errors import UnsupportedEvent
from privacy.events import sensitivity_over_norm

_ROOT_TWO = math.sqrt(2.0)
_SAFE = 20.0
"""From this a on delta is above 1 - 1e-86; erfcx would overflow at 37."""


def epsilon(composition: Composition, delta: float) -> float:
    """Price a composition of unsampled Gaussian releases exactly.

    Args:
        composition: What was charged; all of it noised.
        delta: Strictly between 0 and 1.

    Returns:
        The smallest epsilon for which the composition is (epsilon, delta)-private.

    Raises:
        UnsupportedEvent: A release is amplified by sampling or has integer noise, for which there
            is no closed form.
    """
    if composition.integer_terms:
        raise UnsupportedEvent("the exact Gaussian formula does not cover integer noise")
    if composition.is_sampled:
        raise UnsupportedEvent("the exact Gaussian formula does not cover sampled releases")
    return epsilon_at(total_mu(composition), delta)


def total_mu(composition: Composition) -> float:
    """Return mu, the root of the summed squares of sensitivity over standard deviation."""
    sensitivity = sensitivity_over_norm(composition.relation)
    # Products and `sum` give infinity where `**` and `fsum` would raise OverflowError.
    ratios = [(term.count, sensitivity / term.noise_to_clip) for term in composition.terms]
    return math.sqrt(sum(count * ratio * ratio for count, ratio in ratios))


def log_delta_at(epsilon: float, mu: float) -> float:
    """Return the natural logarithm of delta(epsilon) of the Gaussian mechanism.

    It is rounded up to 0 where it is above -1e-86, and minus infinity where mu is 0 or the two
    tails cannot be told apart.
    """
    if mu == 0.0:
        return -math.inf
    a, b = mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu
    if a > _SAFE:
        return 0.0
    difference = float(erfcx(-a / _ROOT_TWO)) - float(erfcx(-b / _ROOT_TWO))
    return math.log(difference / 2.0) - a * a / 2.0 if difference > 0.0 else -math.inf


def epsilon_at(mu: float, delta: float) -> float:
    """Return the smallest epsilon at `delta`, erring upwards by at most the last bits.

    The bracket needs no search: delta falls in epsilon, is at most its first term, and that term is
    delta itself at epsilon = mu^2/2 - mu Phi^-1(delta). Bisection keeps the side on which the
    promise holds and ends when no float64 lies between the ends.

    mu is sensitivity over standard deviation; infinity is no noise at all. Epsilon is 0 where delta
    alone covers the mechanism, infinity where float64 cannot hold it. `ValueError` if `delta` is
    out of range or mu negative.
    """
    require_probability(delta=delta)
    if not mu >= 0.0:
        raise ValueError(f"mu is {mu}; it must not be negative")
    log_delta = math.log(delta)
    if math.isfinite(mu) and log_delta_at(0.0, mu) <= log_delta:
        return 0.0
    low, high = 0.0, mu * mu / 2.0 - mu * float(ndtri(delta))
    if not math.isfinite(high):
        return math.inf
    # The tail inequality is strict on paper; this keeps rounding from undercutting it.
    high = max(0.0, high * (1.0 + 1e-9))
    while low < (middle := low + (high - low) / 2.0) < high:
        if log_delta_at(middle, mu) <= log_delta:
            high = middle
        else:
            low = middle
    return high

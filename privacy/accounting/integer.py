"""What integer noise costs: theorems as lines alpha -> rho alpha + xi over Renyi orders.

- **Discrete Gaussian.** n shares of deviation s on the grid do not add up to a discrete Gaussian,
  but nearly: Kairouz, Liu and Steinke 2021 bound what that costs by tau = 10 sum_{k=1}^{n-1}
  exp(-2 pi^2 s^2 k / (k+1)). With r = sensitivity / (s sqrt(n)) in L2 and r1 the same in L1, in
  dimension d, the release satisfies concentrated differential privacy with rho = e^2 / 2 and

      e^2 = min(r^2 + 2 tau d, r^2 + 2 r1 tau + tau^2 d, (r + tau sqrt(d))^2).

  Their Theorem 1 writes tau d / 2 where this has 2 tau d. Proposition 14, in the authors' own
  accounting, adds tau d to the divergence at every order, which 2 tau d covers at every order above
  1 and tau d / 2 does not; the larger is taken, as it costs nothing at s >= 1.5. A single share
  has tau = 0 and is Canonne, Kamath and Steinke 2020, Theorem 4 (and 14 for many coordinates).
- **Skellam.** A sum of Skellam shares is Skellam with their total variance m. Agarwal, Kairouz and
  Liu 2021, Theorem 3.5: at integer orders alpha > 1 the divergence is at most

      alpha D2^2 / (2 m) + min(((2 alpha - 1) D2^2 + 6 D1) / (4 m^2), 3 D1 / (2 m))

  with the sensitivities D2 in L2 and D1 in L1 in steps of the grid. Each member of the minimum is a
  line of its own.

In L1 a vector of integers is at most sqrt(d) and at most L2 times as long as in L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from privacy.accounting.composition import IntegerTerm
from privacy.errors import UnsupportedEvent

_SMALLEST_DEVIATION = 0.5
"""The theorem on sums of discrete Gaussians asks for it."""


class Line(NamedTuple):
    """Divergence at order alpha is at most rho alpha + xi, for Skellam at integer orders."""

    rho: float
    xi: float


def tau(share_deviation: float, shares: int) -> float:
    """Return tau of Kairouz, Liu and Steinke 2021, Theorem 1; 0 for a single share.

    Args:
        share_deviation: s, in steps of the grid.
        shares: n, at least 1.
    """
    k = np.arange(1, shares)
    exponent = -2.0 * (math.pi * share_deviation) ** 2
    return 10.0 * float(np.exp(exponent * (k / (k + 1))).sum())


def first_line(term: IntegerTerm, sensitivity: float) -> Line:
    """Bound one release, for Skellam by the first member of the minimum.

    Args:
        term: The release; its count does not matter.
        sensitivity: L2 sensitivity over the clipping norm: 2 under replace_one, else 1.

    Returns:
        A line above its divergences.

    Raises:
        UnsupportedEvent: The theorem does not cover shares as small.
    """
    if term.noise.name == "skellam":
        return _skellam_line(term, sensitivity)
    return _discrete_gaussian_line(term, sensitivity)


def second_line(term: IntegerTerm, sensitivity: float) -> Line:
    """Bound one release like `first_line`, for Skellam by the second member of the minimum."""
    if term.noise.name == "skellam":
        ratio, ratio_l1, deviation = _ratios(term, sensitivity)
        return Line(ratio * ratio / 2.0, 1.5 * ratio_l1 / deviation)
    return _discrete_gaussian_line(term, sensitivity)


LINES: tuple[Callable[[IntegerTerm, float], Line], ...] = (first_line, second_line)


def _discrete_gaussian_line(term: IntegerTerm, sensitivity: float) -> Line:
    noise = term.noise
    if noise.share_deviation < _SMALLEST_DEVIATION and noise.shares > 1:
        raise UnsupportedEvent(
            f"share_deviation is {noise.share_deviation:g} steps of the grid; sums of discrete "
            f"Gaussians are bounded from {_SMALLEST_DEVIATION} on"
        )
    ratio, ratio_l1, _ = _ratios(term, sensitivity)
    excess, dimension = tau(noise.share_deviation, noise.shares), noise.dimension
    squares = (
        ratio * ratio + 2.0 * excess * dimension,
        ratio * ratio + 2.0 * ratio_l1 * excess + excess * excess * dimension,
        (ratio + excess * math.sqrt(dimension)) ** 2,
    )
    return Line(min(squares) / 2.0, 0.0)


def _skellam_line(term: IntegerTerm, sensitivity: float) -> Line:
    ratio, ratio_l1, deviation = _ratios(term, sensitivity)
    variance = deviation * deviation
    rho = ratio * ratio / 2.0 * (1.0 + 1.0 / variance)
    # D2^2 / m^2 and D1 / m^2 in terms of the ratios; rounded up to 0, which dp_accounting asks for.
    xi = (6.0 * ratio_l1 * deviation - ratio * ratio * variance) / (4.0 * variance * variance)
    return Line(rho, max(0.0, xi))


def _ratios(term: IntegerTerm, sensitivity: float) -> tuple[float, float, float]:
    """Return L2 and L1 sensitivity over the deviation of the sum, and the latter on the grid."""
    deviation = term.noise.share_deviation * math.sqrt(term.noise.shares)
    ratio = sensitivity / term.noise_to_clip
    longest = min(math.sqrt(term.noise.dimension), max(1.0, ratio * deviation))
    return ratio, ratio * longest, deviation

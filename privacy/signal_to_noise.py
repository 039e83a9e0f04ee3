"""How much signal a noised aggregate holds, as an interval, from the aggregate and its noise alone.

The squared norm of n coordinates over the noise's variance is chi-square with n degrees of freedom
where there is no signal, and noncentral chi-square with noncentrality |s|^2 / sd^2 where the signal
is s. All noncentralities that do not make what was seen improbable are a confidence interval
(Casella and Berger 2002, section 9.2.1). The squared norm less its mean, as one number, would be a
positive part: of pure noise it says 0.10 on average with 512 coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chndtr

from privacy._validate import require_positive

CONFIDENCE = 0.95
_NORMAL_QUANTILE = 1.959963984540054
"""Of 97.5%."""
_LARGEST = 1e8
"""Noncentrality from which the series of the distribution function is not needed any more."""


@dataclass(frozen=True)
class SignalToNoise:
    """A confidence interval for how much longer the signal is than its noise, as a ratio.

    Attributes:
        low: Lower end of sqrt(|s|^2 / (n sd^2)); 0 where noise alone could look like that.
        high: Upper end.
    """

    low: float
    high: float


def signal_to_noise(aggregate: NDArray[np.float64], standard_deviation: float) -> SignalToNoise:
    """Return the 95% confidence interval of a noised aggregate's signal-to-noise ratio.

    Computed from what is released anyway, so it costs nothing.

    Args:
        aggregate: Shape (n,), n at least 1, with noise.
        standard_deviation: Of the noise on each coordinate, above zero.

    Raises:
        ValueError: The standard deviation is not above zero, or there are no coordinates.
    """
    require_positive(standard_deviation=standard_deviation, coordinates=aggregate.size)
    scaled = aggregate / standard_deviation
    seen, size = float(scaled @ scaled), aggregate.size
    tail = (1.0 - CONFIDENCE) / 2.0
    ends = [_noncentrality(seen, size, below) for below in (1.0 - tail, tail)]
    low, high = (math.sqrt(end / size) for end in ends)
    return SignalToNoise(low, high)


def _noncentrality(seen: float, size: int, below: float) -> float:
    """Return the noncentrality under which what was seen is this quantile; 0 if none is."""
    excess = max(0.0, seen - size)
    spread = math.sqrt(2.0 * (size + 2.0 * excess))
    if excess > _LARGEST:
        # Normal then, up to a relative 1e-4.
        return excess + (1.0 if below < 0.5 else -1.0) * _NORMAL_QUANTILE * spread

    def beyond(noncentrality: float) -> float:
        return float(chndtr(seen, size, noncentrality)) - below

    if beyond(0.0) <= 0.0:
        return 0.0
    return float(brentq(beyond, 0.0, excess + 10.0 * spread + 200.0, xtol=1e-6))

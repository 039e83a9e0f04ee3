"""Exact samplers of integer noise: the discrete Gaussian and the Skellam law, vectorised.

`laws` says what the weights are, `tables` turns a law into thresholds for uniform bits, `samplers`
draws. Nothing is rounded away: whenever the bits drawn so far do not decide a value, more bits are
drawn and compared at a higher precision, so the law of the output is the law named.
"""

from __future__ import annotations

from privacy.integer_noise.laws import LARGEST_DEVIATION, SMALLEST_DEVIATION
from privacy.integer_noise.samplers import (
    discrete_gaussian_from,
    skellam_from,
)

__all__ = [
    "LARGEST_DEVIATION",
    "SMALLEST_DEVIATION",
    "discrete_gaussian_from",
    "skellam_from",
]

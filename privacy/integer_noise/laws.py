"""The two laws behind the samplers, as weights of integers counted from the mode.

The discrete Gaussian has weight exp(-x^2 / (2 sigma^2)) at every integer x (Canonne, Kamath and
Steinke 2020, Definition 1). A Skellam number of variance sigma^2 is the difference of two
independent Poisson numbers of mean sigma^2 / 2, which has weight mean^k / k! at k >= 0.

Each law gives its weight twice: to any number of decimal digits, and as float64 for whole arrays
with an absolute error that is bounded far below `FLOAT_ERROR`. Samplers decide by the second only
where the first could not disagree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SMALLEST_DEVIATION = 0.25
"""Smallest standard deviation that can be sampled; mechanisms ask for more."""

LARGEST_DEVIATION = 2.0**21
"""Largest: soon after an offset inside a block would need more than 16 bits."""

FLOAT_ERROR = 2.0**-21
"""Bound on the error of a difference of two `log_weights` of one block."""

_GUARD_DIGITS = 25
"""Logarithms of weights reach 10^15 before they are subtracted; the rest is safety."""


class Law(Protocol):
    """A log-concave law on the integers, with its mode at offset 0."""

    @property
    def block_bits(self) -> int:
        """Binary logarithm of a block's size: blocks are 1/64 to 1/32 deviation, or one integer."""
        ...

    def log_weight(self, offset: int, digits: int) -> Decimal:
        """Return ln(weight at offset / weight at 0) with an error below 10^-digits."""
        ...

    def log_weights(self, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the same for an array, up to one constant; NaN where float64 will not do.

        Within a block of more than one integer, differences are within `FLOAT_ERROR`.
        """
        ...


def _block_bits(deviation: float) -> int:
    return max(0, math.frexp(deviation)[1] - 6)


@contextmanager
def precision(digits: int) -> Iterator[None]:
    """Compute in decimals with that many digits, whatever the caller's own context is."""
    with localcontext(Context(prec=digits + _GUARD_DIGITS)):
        yield


@dataclass(frozen=True)
class DiscreteGaussianLaw:
    """Weight exp(-x^2 / (2 deviation^2)); the float64 is taken as the exact number it is.

    Attributes:
        deviation: sigma, between `SMALLEST_DEVIATION` and `LARGEST_DEVIATION`.
    """

    deviation: float

    @property
    def block_bits(self) -> int:
        """See `Law`."""
        return _block_bits(self.deviation)

    def log_weight(self, offset: int, digits: int) -> Decimal:
        """See `Law`."""
        with precision(digits):
            return -Decimal(offset * offset) / (2 * Decimal(self.deviation) ** 2)

    def log_weights(self, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `Law`. Squares are below 2^53, so only the product is rounded: error 1e-13."""
        scaled = offsets.astype(np.float64)
        scaled *= scaled
        scaled *= -0.5 / (self.deviation * self.deviation)
        return scaled


@dataclass(frozen=True)
class PoissonLaw:
    """One of the two Poisson laws whose difference is Skellam.

    Attributes:
        deviation: Of the *difference*; the mean is deviation^2 / 2, exactly.
    """

    deviation: float

    @property
    def centre(self) -> int:
        """The mode: the mean rounded down."""
        return math.floor(Fraction(self.deviation) ** 2 / 2)

    @property
    def block_bits(self) -> int:
        """See `Law`; the standard deviation of this law is deviation / sqrt(2)."""
        return _block_bits(self.deviation / math.sqrt(2.0))

    def log_weight(self, offset: int, digits: int) -> Decimal:
        """See `Law`; minus infinity below 0."""
        k = self.centre + offset
        if k < 0:
            return Decimal("-Infinity")
        log_mean, base = _poisson_constants(self, digits)
        with precision(digits):
            return offset * log_mean - (log_factorial(k, digits) - base)

    def log_weights(self, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `Law`.

        With s = k - mean and t = s / mean, Stirling's formula gives ln weight = s - (k + 1/2)
        ln(1 + t) - 1/(12 k) + ... up to a constant. The product is at most 10 sqrt(mean), rounded
        by 1e-8 at most, and the last term moves by 2e-8 at most within a block, as k > 3,000 there.
        Half a mean away from it there is NaN; such blocks have probability e^-500.
        """
        mean = self.deviation * self.deviation / 2.0
        shift = float(self.centre - Fraction(self.deviation) ** 2 / 2)
        distance = offsets.astype(np.float64) + shift
        ratio = distance / mean
        ratio[np.abs(ratio) > 0.5] = np.nan
        return np.asarray(distance - (mean + 0.5 + distance) * np.log1p(ratio))


@functools.lru_cache(maxsize=64)
def _poisson_constants(law: PoissonLaw, digits: int) -> tuple[Decimal, Decimal]:
    with precision(digits):
        log_mean = (Decimal(law.deviation) ** 2 / 2).ln()
    return log_mean, log_factorial(law.centre, digits)


def log_factorial(k: int, digits: int) -> Decimal:
    """Return ln k! - ln(2 pi) / 2 by Stirling's series, with an error below 10^-digits.

    For real arguments the error of the series is less than the first term left out, and has its
    sign (Whittaker and Watson 1927, section 12.33). Small k are moved up to at least `digits`,
    where terms fall below 10^-digits long before they grow again.
    """
    with precision(digits):
        moved = max(k, digits)
        argument, bound = Decimal(moved), Decimal(10) ** -digits
        total = (argument + Decimal("0.5")) * argument.ln() - argument
        power, n = argument, 1
        while True:
            bernoulli = _bernoulli(2 * n)
            factor = bernoulli / (2 * n * (2 * n - 1))
            term = Decimal(factor.numerator) / Decimal(factor.denominator) / power
            total += term
            if abs(term) < bound:
                return total - Decimal(math.prod(range(k + 1, moved + 1))).ln()
            power, n = power * argument * argument, n + 1


@functools.cache
def _bernoulli(n: int) -> Fraction:
    if n == 0:
        return Fraction(1)
    return -sum((math.comb(n + 1, k) * _bernoulli(k) for k in range(n)), Fraction(0)) / (n + 1)

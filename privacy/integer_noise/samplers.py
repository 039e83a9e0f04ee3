"""Exact vectorised draws of discrete Gaussian and Skellam noise.

A draw picks a block, then a uniform offset in it, and keeps it with probability weight / largest
weight of the block (rejection; Devroye 1986, chapter II.3). Blocks of one integer need neither
step. Larger ones are 1/64 to 1/32 of a standard deviation, so about one draw in 100 is thrown away.
Keeping is decided by 32 uniform bits and float64 where the two are further apart than every
error could reach, else by more bits and decimals: the law is exact, not close.

Timing depends on the draws (rejections, undecided words), not on anybody's data.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from privacy.integer_noise.laws import (
    FLOAT_ERROR,
    LARGEST_DEVIATION,
    SMALLEST_DEVIATION,
    DiscreteGaussianLaw,
    Law,
    PoissonLaw,
)
from privacy.integer_noise.tables import BlockTable, accept, draw_words, nearest, table_of
from privacy.randomness import Entropy

_CHUNK = 1 << 15
"""Draws at a time: their arrays stay in the cache."""

_KEEP_BITS = 32
_MARGIN = 2.0**-_KEEP_BITS + 2.0 * FLOAT_ERROR


def discrete_gaussian_from(entropy: Entropy, deviation: float, size: int) -> NDArray[np.int64]:
    """Turn uniform bytes into discrete Gaussian numbers.

    Args:
        entropy: Source of the bytes: the operating system's for data that is real; a recorded
            string of them repeats the noise exactly.
        deviation: sigma; the variance is sigma^2 less a relative 1e-17 at 1.5 and above
            (Canonne, Kamath and Steinke 2020, section 3).
        size: How many, at least 0.

    Returns:
        Independent int64 numbers of shape (size,).

    Raises:
        ValueError: `deviation` is not between 0.25 and 2^21, or `size` is negative.
    """
    _require_valid(deviation, size)
    return _draw(table_of(DiscreteGaussianLaw(float(deviation))), entropy, size)


def skellam_from(entropy: Entropy, deviation: float, size: int) -> NDArray[np.int64]:
    """Turn uniform bytes into Skellam numbers of mean 0.

    Args:
        entropy: As for `discrete_gaussian_from`.
        deviation: Root of the variance, which is the sum of the two Poisson means.
        size: How many, at least 0.

    Returns:
        Independent int64 numbers of shape (size,).

    Raises:
        ValueError: `deviation` is not between 0.25 and 2^21, or `size` is negative.
    """
    _require_valid(deviation, size)
    poisson = _draw(table_of(PoissonLaw(float(deviation))), entropy, 2 * size)
    return np.asarray(poisson[:size] - poisson[size:])


def _require_valid(deviation: float, size: int) -> None:
    if not SMALLEST_DEVIATION <= deviation <= LARGEST_DEVIATION:
        raise ValueError(
            f"deviation is {deviation}; it must be from {SMALLEST_DEVIATION} to "
            f"{LARGEST_DEVIATION:.0f}"
        )
    if size < 0:
        raise ValueError(f"size is {size}; it must not be negative")


def _draw(table: BlockTable, entropy: Entropy, size: int) -> NDArray[np.int64]:
    """Return offsets from the mode; the centres of the two Poisson numbers cancel."""
    drawn = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        kept = _propose(table, entropy, min(_CHUNK, size - filled))
        drawn[filled : filled + kept.size] = kept
        filled += kept.size
    return drawn


def _propose(table: BlockTable, entropy: Entropy, size: int) -> NDArray[np.int64]:
    blocks = table.blocks(entropy, size)
    bits = table.block_bits
    if bits == 0:
        return blocks.astype(np.int64)
    # An offset has at most 16 bits, because of LARGEST_DEVIATION.
    inside = draw_words(entropy, size, "<u2") >> np.uint16(16 - bits)
    offsets = (blocks.astype(np.int64) << bits) + inside
    offsets -= 1 << (bits - 1)
    words = draw_words(entropy, size, "<u4")
    gap = table.chances(blocks, inside)
    gap -= words * 2.0**-_KEEP_BITS
    keep = gap > _MARGIN
    # What NaN compares to is undecided too.
    for index in np.flatnonzero(~(keep | (gap < -_MARGIN))):
        keep[index] = _keep_one(table.law, int(offsets[index]), int(words[index]), entropy)
    return offsets[keep]


def _keep_one(law: Law, offset: int, word: int, entropy: Entropy) -> bool:
    bits = law.block_bits
    peak = nearest((offset + ((1 << bits) >> 1)) >> bits, bits)
    if peak == offset:
        return True

    def chance(digits: int) -> Decimal:
        return (law.log_weight(offset, digits) - law.log_weight(peak, digits)).exp()

    return accept(chance, word, _KEEP_BITS, entropy)

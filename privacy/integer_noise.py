"""Exact samplers of integer noise: the discrete Gaussian and the Skellam law, vectorised.

**Laws** give weights of integers counted from the mode. The discrete Gaussian has weight exp(-x^2 /
(2 sigma^2)) at every integer x (Canonne, Kamath and Steinke 2020, Definition 1). A Skellam number
of variance sigma^2 is the difference of two independent Poisson numbers of mean sigma^2 / 2, which
has weight mean^k / k! at k >= 0.

Each law gives its weight twice: to any number of decimal digits, and as float64 for whole arrays
with an absolute error that is bounded far below `FLOAT_ERROR`. Samplers decide by the second only
where the first could not disagree.

**Tables** invert the cumulative distribution, with as many uniform bits as it takes. The integers
are cut into blocks of 2^b around the mode. A block gets the weight of its point nearest to the
mode, the largest in it. Blocks are numbered 0, 1, -1, 2, -2, ... in order of their distance, and a
uniform real number u chooses block j if it lies between the cumulative weights C(j - 1) and C(j)
(Devroye 1986, chapter III.2). Only so many bits of u are drawn as are needed to say so:

- 16 bits decide, by one look into a table of 2^16 blocks, unless a threshold is near;
- 64 bits then decide by binary search in thresholds, unless u is within 4 of 2^64 parts of one;
- then, about once in 2^52 draws, thresholds are computed anew with 64 more bits, until u is clear.

Thresholds of any precision include the error of truncating the infinite sum and of every
rounding, so the choice has exactly the block's probability.

**Samplers** draw whole arrays. A draw picks a block, then a uniform offset in it, and keeps it with
probability weight / largest weight of the block (rejection; Devroye 1986, chapter II.3). Blocks of
one integer need neither step. Larger ones are 1/64 to 1/32 of a standard deviation, so about one
draw in 100 is thrown away. Keeping is decided by 32 uniform bits and float64 where the two are
further apart than every error could reach, else by more bits and decimals: the law is exact, not
close.

Timing depends on the draws (rejections, undecided words), not on anybody's data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.randomness import Entropy

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
        """Return the same for an array, up to one constant; NaN where float64 is not exact enough.

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


UNDECIDED = -(2**31)
_WORD = 64
_MARGIN = 4
"""Thresholds are integers with an error below 2; the other 2 are the width of a cell and safety."""


def draw_words(entropy: Entropy, size: int, kind: str) -> NDArray[np.unsignedinteger]:
    """Draw unsigned little-endian words, read-only; `ValueError` for a source that is broken."""
    wanted = size * np.dtype(kind).itemsize
    drawn = entropy(wanted)
    if len(drawn) != wanted:
        raise ValueError(f"the entropy source gave {len(drawn)} bytes; {wanted} were asked for")
    return np.frombuffer(drawn, dtype=kind)


def draw_integer(entropy: Entropy) -> int:
    """Draw one integer below 2^64."""
    return int(draw_words(entropy, 1, "<u8")[0])


def block_at(position: int) -> int:
    """Return the block in this position of the order 0, 1, -1, 2, -2, ..."""
    return (position + 1) // 2 if position % 2 else -(position // 2)


def nearest(block: int, block_bits: int) -> int:
    """Return the offset in a block that is nearest to the mode."""
    first = (block << block_bits) - ((1 << block_bits) >> 1)
    return min(max(0, first), first + (1 << block_bits) - 1)


def cumulative(law: Law, bits: int) -> list[int]:
    """Return 2^bits times the cumulative probabilities of the blocks, each with error below 2.

    The sum ends where all that is left weighs less than 2^-bits of it times 10^-10. Weights are
    log-concave, so behind a block of weight w, whose neighbour weighs r w, lies less than r w / (1
    - r) on that side. The result ascends by position; the last is 2^bits or one or two less.
    """
    digits = math.ceil(bits * math.log10(2.0)) + 20
    with precision(digits):
        negligible = Decimal(10) ** (10 - digits)
        sums: list[Decimal] = []
        total = Decimal(0)
        weights, tails = [Decimal(1), Decimal(1)], [Decimal(1), Decimal(1)]
        while sum(tails) > negligible * total:
            side = len(sums) % 2
            weight = law.log_weight(nearest(block_at(len(sums)), law.block_bits), digits).exp()
            sums.append(total := total + weight)
            # A side that has ended has weight 0, and nothing behind it.
            ratio = weight / weights[side] if weights[side] else Decimal(0)
            tails[side] = weight * ratio / (1 - ratio) if ratio < 1 else Decimal(1)
            weights[side] = weight
        return [int(part * 2**bits / total) for part in sums]


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The block that each uniform word falls into.

    Attributes:
        law: Of the integers.
        block_bits: Of the law.
        thresholds: uint64, ascending: position j is chosen by words from thresholds[j - 1] up to
            thresholds[j], give or take the margin. What lies above the last is left open.
        guide: int32 of shape (65536,): the block that the first 16 bits decide, or `UNDECIDED`.
        curves: float64 of shape (3, 2 m + 1): for block i - m the coefficients c of c0 + c1 r +
            c2 r^2, the log of the weight r integers after the block's first over its largest. The
            first and the last stand for all blocks further out, and are NaN.
    """

    law: Law
    block_bits: int
    thresholds: NDArray[np.uint64]
    guide: NDArray[np.int32]
    curves: NDArray[np.float64]

    def blocks(self, entropy: Entropy, size: int) -> NDArray[np.int32]:
        """Draw independent blocks with probabilities in proportion to their weights.

        `entropy` gives two bytes for each block, and eight for each that they leave open.
        """
        prefixes = draw_words(entropy, size, "<u2")
        chosen = np.take(self.guide, prefixes)
        unclear = np.flatnonzero(chosen == UNDECIDED)
        if unclear.size:
            rest = draw_words(entropy, unclear.size, "<u8").astype(np.uint64) >> np.uint64(16)
            words = (prefixes[unclear].astype(np.uint64) << np.uint64(48)) | rest
            chosen[unclear] = self._by_search(words, entropy)
        return chosen

    def chances(
        self, blocks: NDArray[np.int32], inside: NDArray[np.unsignedinteger]
    ) -> NDArray[np.float64]:
        """Return the weights over the largest of their blocks, within `FLOAT_ERROR`, or NaN.

        `inside` says how many integers after the first of its block each offset is.
        """
        index = blocks + np.int32(self.curves.shape[1] // 2)
        level, slope, bend = (curve.take(index, mode="clip") for curve in self.curves)
        bend *= inside
        bend += slope
        bend *= inside
        bend += level
        return np.asarray(np.exp(bend, out=bend))

    def _by_search(self, words: NDArray[np.uint64], entropy: Entropy) -> NDArray[np.int32]:
        positions, clear = _search(self.thresholds, words)
        chosen = np.array([block_at(int(position)) for position in positions], dtype=np.int32)
        for index in np.flatnonzero(~clear):
            chosen[index] = self.settle(int(words[index]), entropy)
        return chosen

    def settle(self, word: int, entropy: Entropy) -> int:
        """Return the block of a uniform number that starts with these 64 bits, drawing more."""
        bits = _WORD
        while True:
            word, bits = (word << _WORD) | draw_integer(entropy), bits + _WORD
            sums = cumulative(self.law, bits)
            position = sum(part <= word for part in sums)
            below = word - (sums[position - 1] if position else -_MARGIN)
            above = sums[position] - word if position < len(sums) else 0
            if below >= _MARGIN and above > _MARGIN:
                return block_at(position)


def _search(
    thresholds: NDArray[np.uint64], words: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return each word's position, and whether it is clear of the thresholds on both sides."""
    positions = np.searchsorted(thresholds, words, side="right")
    last = len(thresholds) - 1
    below = words - thresholds[np.maximum(positions - 1, 0)]
    above = thresholds[np.minimum(positions, last)] - words
    margin = np.uint64(_MARGIN)
    clear = ((positions == 0) | (below >= margin)) & (positions <= last) & (above > margin)
    return positions.astype(np.int64), clear


@functools.lru_cache(maxsize=32)
def table_of(law: Law) -> BlockTable:
    """Return the table of a law, from a cache: building one takes 10 to 300 ms."""
    sums = cumulative(law, _WORD)
    thresholds = np.array([part for part in sums if part < 2**_WORD - _MARGIN], dtype=np.uint64)
    bits = law.block_bits
    curves = _curves(law, bits, len(thresholds) // 2 + 1)
    return BlockTable(law, bits, thresholds, _guide(thresholds), curves)


def _guide(thresholds: NDArray[np.uint64]) -> NDArray[np.int32]:
    first = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    start, start_clear = _search(thresholds, first)
    end, end_clear = _search(thresholds, first | np.uint64(2**48 - 1))
    decided = start_clear & end_clear & (start == end)
    blocks = np.where(start % 2 == 1, (start + 1) // 2, -(start // 2))
    return np.where(decided, blocks, UNDECIDED).astype(np.int32)


def _curves(law: Law, bits: int, reach: int) -> NDArray[np.float64]:
    """Fit a parabola through the log weights at the start, the middle and the end of each block.

    Within a block the third derivative of either log weight times the cube of the block's size is
    below 1e-6, and the fit's error is below a hundredth of that.
    """
    blocks = np.arange(-reach, reach + 1, dtype=np.int64)
    half = max(1, (1 << bits) >> 1)
    first = (blocks << bits) - ((1 << bits) >> 1)
    peaks = np.minimum(np.maximum(0, first), first + ((1 << bits) - 1))
    start, middle, end = (law.log_weights(first + r) for r in (0, half, 2 * half))
    slope = (4.0 * middle - 3.0 * start - end) / (2.0 * half)
    bend = (start - 2.0 * middle + end) / (2.0 * half * half)
    curves = np.stack([start - law.log_weights(peaks), slope, bend])
    curves[:, [0, -1]] = np.nan
    return curves


def accept(chance: Callable[[int], Decimal], word: int, bits: int, entropy: Entropy) -> bool:
    """Return whether a uniform number that starts with these bits lies below a probability.

    `chance` gives the probability to a number of digits, with error below 10^-digits; `word` are
    the first `bits` bits. Over all words the result is true with exactly that probability.
    """
    while True:
        digits = math.ceil(bits * math.log10(2.0)) + 10
        with precision(digits):
            limit = int(chance(digits) * 2**bits)
        # The limit is rounded down and off by less than one more, the word is rounded down.
        if word + 1 < limit:
            return True
        if word > limit + 1:
            return False
        word, bits = (word << _WORD) | draw_integer(entropy), bits + _WORD


_CHUNK = 1 << 15
"""Draws at a time: their arrays stay in the cache."""

_KEEP_BITS = 32
_KEEP_MARGIN = 2.0**-_KEEP_BITS + 2.0 * FLOAT_ERROR


def discrete_gaussian_from(entropy: Entropy, deviation: float, size: int) -> NDArray[np.int64]:
    """Turn uniform bytes into independent discrete Gaussian numbers.

    The variance is deviation^2 less a relative 1e-17 at 1.5 and above (Canonne, Kamath and Steinke
    2020, section 3). `ValueError` if `deviation` is not between 0.25 and 2^21, or `size` is
    negative.
    """
    _require_valid(deviation, size)
    return _draw(table_of(DiscreteGaussianLaw(float(deviation))), entropy, size)


def skellam_from(entropy: Entropy, deviation: float, size: int) -> NDArray[np.int64]:
    """Turn uniform bytes into independent Skellam numbers of mean 0, of that standard deviation.

    For the errors see `discrete_gaussian_from`.
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
    keep = gap > _KEEP_MARGIN
    # What NaN compares to is undecided too.
    for index in np.flatnonzero(~(keep | (gap < -_KEEP_MARGIN))):
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

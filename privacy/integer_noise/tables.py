"""Inversion of the cumulative distribution, with as many uniform bits as it takes.

The integers are cut into blocks of 2^b around the mode. A block gets the weight of its point
nearest to the mode, the largest in it. Blocks are numbered 0, 1, -1, 2, -2, ... in order of their
distance, and a uniform real number u chooses block j if it lies between the cumulative weights
C(j - 1) and C(j) (Devroye 1986, chapter III.2). Only so many bits of u are drawn as are needed to
say so:

- 16 bits decide, by one look into a table of 2^16 blocks, unless a threshold is near;
- 64 bits then decide by binary search in thresholds, unless u is within 4 of 2^64 parts of one;
- then, about once in 2^52 draws, thresholds are computed anew with 64 more bits, until u is clear.

Thresholds of any precision include the error of truncating the infinite sum and of every
rounding, so the choice has exactly the block's probability.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from privacy.integer_noise.laws import Law, precision
from privacy.randomness import Entropy

UNDECIDED = -(2**31)
_WORD = 64
_MARGIN = 4
"""Thresholds are integers with an error below 2; the other 2 are the width of a cell and safety."""


def draw_words(entropy: Entropy, size: int, kind: str) -> NDArray[np.unsignedinteger]:
    """Draw unsigned little-endian words, refusing a source that gives another number of bytes.

    Args:
        entropy: The source.
        size: How many words.
        kind: numpy's name of the type, such as "<u8".

    Returns:
        Shape (size,), read-only.

    Raises:
        ValueError: The source is broken.
    """
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
    log-concave, so behind a block of weight w, whose neighbour weighs r w, lies less than
    r w / (1 - r) on that side.

    Args:
        law: Of the integers.
        bits: How fine.

    Returns:
        Ascending, by position; the last is 2^bits or one or two less.
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
    """Where uniform words fall.

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
        """Draw blocks with probabilities in proportion to their weights.

        Args:
            entropy: Source of uniform bytes; two for each block, and eight for each that they
                leave open.
            size: How many.

        Returns:
            Independent blocks, shape (size,).
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

        Args:
            blocks: Shape (n,).
            inside: How many integers after the first of its block each offset is.
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

    Args:
        chance: Gives the probability to a number of digits, with error below 10^-digits.
        word: The first `bits` bits.
        bits: How many were drawn already.
        entropy: Source of more.

    Returns:
        True with exactly that probability, over all words.
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

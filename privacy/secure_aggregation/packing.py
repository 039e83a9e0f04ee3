"""Ring elements on the wire: b bits each, whatever the machine's word.

Element j occupies bits j b to (j + 1) b - 1 of the message, where bit i is bit i mod 8 of byte
i div 8, and the last byte is filled up with zeros. Rings of 16, 32 and 64 bits are the plain
little-endian array, which is read in place. For the others, 64 / gcd(b, 64) elements fill a whole
number of 64-bit words: with one such *period* a row, the same shifts serve every row, and all of
them are made at once, in blocks of rows that stay in the cache.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation.masking import Words, word_type

_WORD = 64
_BLOCK = 1 << 14
"""Elements at a time."""


class _Places(NamedTuple):
    """Elements of a period and where they begin, one in a word.

    Attributes:
        words: The words.
        elements: For each of them an element that begins in it.
        shifts: Where its lowest bit is in that word.
    """

    words: NDArray[np.intp]
    elements: NDArray[np.intp]
    shifts: NDArray[np.uint64]


class _Period(NamedTuple):
    """How the elements of one period lie in its words.

    Attributes:
        elements: How many there are.
        words: How many words they fill.
        every: All of them.
        layers: The first that begins in each word, which there always is, as an element is shorter
            than a word; then the second where there is one, and so on.
        last: For each word but the last, the last element that begins in it, which may end in the
            next.
    """

    elements: int
    words: int
    every: _Places
    layers: tuple[_Places, ...]
    last: _Places


# One for each ring that is no machine word.
@lru_cache(maxsize=_WORD)
def _period(ring_bits: int) -> _Period:
    common = math.gcd(ring_bits, _WORD)
    elements, words = _WORD // common, ring_bits // common
    at, shifts = np.divmod(np.arange(elements) * ring_bits, _WORD)
    order = np.arange(elements) - np.searchsorted(at, at)

    def places(chosen: NDArray[np.intp]) -> _Places:
        return _Places(at[chosen], chosen, shifts[chosen].astype(np.uint64))

    return _Period(
        elements,
        words,
        every=places(np.arange(elements)),
        layers=tuple(places(np.flatnonzero(order == k)) for k in range(1 + max(order))),
        last=places(np.searchsorted(at, np.arange(1, words)) - 1),
    )


def packed_bytes(length: int, ring_bits: int) -> int:
    """Return the number of bytes of a packed vector."""
    return -(-length * ring_bits // 8)


def pack(vector: Words, ring_bits: int) -> memoryview | bytes:
    """Return the bytes of a vector on the wire.

    Args:
        vector: Ring elements, shape (n,), dtype `word_type(ring_bits)`, each below 2^ring_bits.
        ring_bits: 16 to 64.

    Returns:
        `packed_bytes(n, ring_bits)` bytes; for rings of 16, 32 and 64 bits the array's own.
    """
    if ring_bits == 8 * vector.itemsize:
        return vector.data.cast("B")
    period = _period(ring_bits)
    blocks = (vector[at : at + _BLOCK] for at in range(0, len(vector), _BLOCK))
    packed = b"".join(_pack_rows(_rows_of(block, period.elements), period) for block in blocks)
    return packed[: packed_bytes(len(vector), ring_bits)]


def _rows_of(block: Words, elements: int) -> NDArray[np.uint64]:
    rows = np.zeros((-(-len(block) // elements), elements), dtype=np.uint64)
    rows.reshape(-1)[: len(block)] = block
    return rows


def _pack_rows(rows: NDArray[np.uint64], period: _Period) -> bytes:
    first, *later = period.layers
    words = rows[:, first.elements] << first.shifts
    for places in later:
        words[:, places.words] |= rows[:, places.elements] << places.shifts
    words[:, 1:] |= _shift_right(rows[:, period.last.elements], period.last.shifts)
    return words.astype("<u8", copy=False).tobytes()


def _shift_right(values: NDArray[np.uint64], shifts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Shift by 64 less `shifts`, in two steps: a shift by all bits of a word means nothing."""
    return (values >> np.uint64(1)) >> (np.uint64(_WORD - 1) - shifts)


def unpack(data: memoryview, length: int, ring_bits: int) -> Words | None:
    """Read back what `pack` wrote.

    Args:
        data: The bytes of exactly one vector.
        length: Number of elements.
        ring_bits: 16 to 64.

    Returns:
        The vector in words of the ring, read-only and in place where the ring is a machine word;
        None if the bytes are not the one encoding of a vector of that length.
    """
    if len(data) != packed_bytes(length, ring_bits):
        return None
    dtype = word_type(ring_bits)
    if ring_bits == 8 * dtype.itemsize:
        return np.frombuffer(data, dtype=dtype)
    spare = 8 * len(data) - length * ring_bits
    # A second encoding of the same vector would be one that nobody sent.
    if spare and data[-1] >> (8 - spare):
        return None
    vector = np.empty(length, dtype=dtype)
    # A block of elements fills whole periods, so it begins and ends with a byte.
    size = _BLOCK * ring_bits // 8
    for block, at in enumerate(range(0, len(data), size)):
        into = vector[block * _BLOCK : (block + 1) * _BLOCK]
        into[:] = _unpack_rows(data[at : at + size], ring_bits)[: len(into)]
    return vector


def _unpack_rows(data: memoryview, ring_bits: int) -> NDArray[np.uint64]:
    period = _period(ring_bits)
    words = np.zeros((-(-len(data) // (8 * period.words)), period.words), dtype="<u8")
    words.reshape(-1).view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    places = period.every
    rows = words[:, places.words] >> places.shifts
    # An element's upper bits are in the next word if it crosses into one; of any other element
    # this moves nothing below its own end. The last of a period ends with its last word.
    following = words[:, np.minimum(places.words + 1, period.words - 1)]
    rows |= (following << np.uint64(1)) << (np.uint64(_WORD - 1) - places.shifts)
    rows &= np.uint64((1 << ring_bits) - 1)
    return rows.reshape(-1)

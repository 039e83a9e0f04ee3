"""Ring elements on the wire: b bits each, whatever the machine's word.

Element j occupies bits j b to (j + 1) b - 1 of the message, where bit i is bit i mod 8 of byte
i div 8, and the last byte is filled up with zeros. Rings of 16, 32 and 64 bits are the plain
little-endian array, which is read in place. For the others, 64 / gcd(b, 64) elements fill a whole
number of 64-bit words, so packing is a few shifts of whole columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation.masking import Words, word_type

_WORD = 64


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
    period, width = _shape(ring_bits)
    rows = np.zeros((-(-len(vector) // period), period), dtype=np.uint64)
    rows.reshape(-1)[: len(vector)] = vector
    # Transposed, because shifting whole columns is many times faster where they are contiguous.
    columns = np.ascontiguousarray(rows.T)
    words = np.zeros((width, len(rows)), dtype="<u8")
    for column, word, shift in _places(ring_bits):
        words[word] |= columns[column] << np.uint64(shift)
        if shift + ring_bits > _WORD:
            words[word + 1] |= columns[column] >> np.uint64(_WORD - shift)
    return words.T.tobytes()[: packed_bytes(len(vector), ring_bits)]


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
    return _unpack_columns(data, length, ring_bits).astype(dtype)


def _unpack_columns(data: memoryview, length: int, ring_bits: int) -> NDArray[np.uint64]:
    period, width = _shape(ring_bits)
    count = -(-length // period)
    padded = np.zeros(count * width * 8, dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    words = np.ascontiguousarray(padded.view("<u8").reshape(count, width).T)
    columns = np.empty((period, count), dtype=np.uint64)
    for column, word, shift in _places(ring_bits):
        np.right_shift(words[word], np.uint64(shift), out=columns[column])
        if shift + ring_bits > _WORD:
            columns[column] |= words[word + 1] << np.uint64(_WORD - shift)
    columns &= np.uint64((1 << ring_bits) - 1)
    return columns.T.reshape(-1)[:length]


def _shape(ring_bits: int) -> tuple[int, int]:
    common = math.gcd(ring_bits, _WORD)
    return _WORD // common, ring_bits // common


def _places(ring_bits: int) -> Iterator[tuple[int, int, int]]:
    for column in range(_shape(ring_bits)[0]):
        word, shift = divmod(column * ring_bits, _WORD)
        yield column, word, shift

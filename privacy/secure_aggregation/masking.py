"""Masks that are added to a vector in the ring, and the packed ring elements on the wire.

A mask is one stream: what AES-256-GCM makes of zeros under the mask's own key and the zero nonce,
read as little-endian words of the ring. GCM numbers its counter blocks from 1 and keeps the first
for its tag (NIST SP 800-38D, section 7.1), so this is AES-256-CTR from counter block 2. The tag is
dropped: nothing is sent under this key, and GCM is taken for its speed alone. One stream may hold
2^32 - 2 blocks, after which the counter would start again.

A vector of one block or less takes the stream in one call; a longer one block by block, so that a
block is still in the cache when it is added. Cipher and addition let other threads run, and sums
in a ring do not depend on their order, so a long vector's masks are shared out among threads.

On the wire a ring element takes b bits, whatever the machine's word is. Element j occupies bits j b
to (j + 1) b - 1 of the message, where bit i is bit i mod 8 of byte i div 8, and the last byte is
filled up with zeros. Rings of 16, 32 and 64 bits are the plain little-endian array, which is read
in place. For the others, 64 / gcd(b, 64) elements fill a whole number of 64-bit words: with one
such *period* a row, the same shifts serve every row, and all of them are made at once, in blocks of
rows that stay in the cache.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]

LARGEST_STREAM = 2**36 - 32
"""Bytes that GCM makes under one key and nonce (NIST SP 800-38D, section 5.2.1.1)."""

_BLOCK_BYTES = 1 << 18
_TAG_BYTES = 16
_NONCE = bytes(12)
# Below this a thread waits for the interpreter longer than it computes.
_LEAST_SHARED = 1 << 20
_LEAST_MASKS = 4


class Mask(NamedTuple):
    """One mask to add: its 32-byte key, and whether it is subtracted instead."""

    key: bytes
    negative: bool


def word_type(ring_bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest little-endian unsigned type that holds one ring element."""
    return np.dtype("<u2" if ring_bits <= 16 else "<u4" if ring_bits <= 32 else "<u8")


def add_masks(total: Words, masks: Iterable[Mask], *, threads: int | None = None) -> None:
    """Add all masks to a vector in place, modulo the size of its words.

    A ring of fewer bits than its word is reduced once at the end, by `reduce_to_ring`. Every
    further thread holds a partial sum, as long as the vector; None takes a thread for each
    processor that this process may use, and the sum is the same for any number. `ValueError` if the
    vector is longer than one stream.
    """
    if total.nbytes > LARGEST_STREAM:
        raise ValueError(f"the vector has {total.nbytes} bytes; a mask has {LARGEST_STREAM}")
    every = list(masks)
    shares = min(processors() if threads is None else threads, len(every) // _LEAST_MASKS)
    if shares < 2 or total.nbytes < _LEAST_SHARED:
        _add_all(total, every)
        return
    with ThreadPoolExecutor(shares - 1) as pool:
        others = [pool.submit(_sum_of, every[at::shares], total) for at in range(1, shares)]
        _add_all(total, every[::shares])
        for other in others:
            np.add(total, other.result(), out=total)


def reduce_to_ring(total: Words, ring_bits: int) -> None:
    """Keep the low `ring_bits` bits of every element, in place."""
    if ring_bits < 8 * total.itemsize:
        np.bitwise_and(total, total.dtype.type((1 << ring_bits) - 1), out=total)


def processors() -> int:
    """Return how many processors this process may use."""
    # Only some systems let a process be bound to fewer than there are.
    bound = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if bound is None else len(bound(0))


def _sum_of(masks: Sequence[Mask], like: Words) -> Words:
    total = np.zeros_like(like)
    _add_all(total, masks)
    return total


def _add_all(total: Words, masks: Sequence[Mask]) -> None:
    size = min(total.nbytes, _BLOCK_BYTES)
    zeros, buffer = bytes(size), bytearray(size + _TAG_BYTES)
    stream = np.frombuffer(buffer, dtype=total.dtype, count=size // total.itemsize)
    for mask in masks:
        apply = np.subtract if mask.negative else np.add
        if size == total.nbytes:
            AESGCM(mask.key).encrypt_into(_NONCE, zeros, None, buffer)
            apply(total, stream, out=total)
            continue
        encryptor = Cipher(AES256(mask.key), GCM(_NONCE)).encryptor()
        for start in range(0, len(total), len(stream)):
            block = total[start : start + len(stream)]
            encryptor.update_into(zeros[: block.nbytes], buffer)
            apply(block, stream[: len(block)], out=block)


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


# One for each ring whose size is not that of a machine word.
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
    """Return the `packed_bytes(n, ring_bits)` bytes of a vector of ring elements on the wire.

    For rings of 16, 32 and 64 bits they are the array's own.
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
    words[:, 1:] |= (rows[:, period.last.elements] >> np.uint64(1)) >> (
        np.uint64(_WORD - 1) - period.last.shifts
    )
    return words.astype("<u8", copy=False).tobytes()


def unpack(data: memoryview, length: int, ring_bits: int) -> Words | None:
    """Read back what `pack` wrote: exactly one vector of `length` elements.

    It is read-only and in place where the ring is a machine word; None if the bytes are not the one
    encoding of a vector of that length.
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

"""Keystreams as integers, added to a vector at about the speed of the cipher.

A mask is one stream: what AES-256-GCM makes of zeros under the mask's own key and the zero nonce,
read as little-endian words of the ring. GCM numbers its counter blocks from 1 and keeps the first
for its tag (NIST SP 800-38D, section 7.1), so this is AES-256-CTR from counter block 2. The tag is
dropped: nothing is sent under this key, and GCM is taken for its speed alone. One stream may hold
2^32 - 2 blocks, after which the counter would start again.

A vector of one block or less takes the stream in one call; a longer one block by block, so that a
block is still in the cache when it is added. Cipher and addition let other threads run, and sums
in a ring do not depend on their order, so a long vector's masks are shared out among threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    further thread holds a partial sum, as long as the vector.

    Args:
        total: Ring elements, shape (vector_length,), dtype `word_type(ring_bits)`; changed.
        masks: The masks.
        threads: Most threads to share them out among; None for one for each processor that this
            process may use. The sum is the same for any number.

    Raises:
        ValueError: If the vector is longer than one stream.
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

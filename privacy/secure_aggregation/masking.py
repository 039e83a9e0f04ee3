"""Keystreams as integers, added to a vector at about the speed of the cipher.

A mask is the AES-256-CTR keystream of its own key (so the counter may start at zero), read as
little-endian words of the ring. One buffer per call takes the keystream of every mask in turn; it
is read in place, block by block, so that a block is still in the cache when it is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]

_BLOCK_BYTES = 1 << 18
_COUNTER = bytes(16)


class Mask(NamedTuple):
    """One mask to add: its 32-byte key, and whether it is subtracted instead."""

    key: bytes
    negative: bool


def word_type(ring_bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest little-endian unsigned type that holds one ring element."""
    return np.dtype("<u2" if ring_bits <= 16 else "<u4" if ring_bits <= 32 else "<u8")


def add_masks(total: Words, masks: Iterable[Mask]) -> None:
    """Add all masks to a vector in place, modulo the size of its words.

    A ring of fewer bits than its word is reduced once at the end, by `reduce_to_ring`.

    Args:
        total: Ring elements, shape (vector_length,), dtype `word_type(ring_bits)`; changed.
        masks: The masks, taken one at a time.
    """
    zeros = bytes(min(total.nbytes, _BLOCK_BYTES))
    buffer = bytearray(len(zeros))
    for mask in masks:
        _add_stream(total, mask, zeros, buffer)


def reduce_to_ring(total: Words, ring_bits: int) -> None:
    """Keep the low `ring_bits` bits of every element, in place."""
    if ring_bits < 8 * total.itemsize:
        np.bitwise_and(total, total.dtype.type((1 << ring_bits) - 1), out=total)


def _add_stream(total: Words, mask: Mask, zeros: bytes, buffer: bytearray) -> None:
    encryptor = Cipher(AES256(mask.key), CTR(_COUNTER)).encryptor()
    apply = np.subtract if mask.negative else np.add
    stream = np.frombuffer(buffer, dtype=total.dtype)
    for start in range(0, len(total), len(stream)):
        block = total[start : start + len(stream)]
        size = block.nbytes
        encryptor.update_into(zeros if size == len(zeros) else zeros[:size], buffer)
        apply(block, stream[: len(block)], out=block)

"""Random numbers of each example and step, for losses that sample.

A loss sees a batch. It does not know how many examples the client has or which of them it sees, and
under `dp_sgd` it may not ask. So its random numbers are a hash of the example's own mark, the key
of the step and a counter. Then an example's loss does not depend on the rest of the batch, as
bounds on single examples require; the same run gives the same numbers; and each step has its own
key. These numbers give no privacy: noise for privacy comes from elsewhere.

The hash is SplitMix64 (Steele, Lea & Flood 2014, "Fast Splittable Pseudorandom Number Generators"),
on whole numbers that wrap at 64 bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import Arrays

MARK: Final = "mark"
"""The 64 bits that stand for an example, (n,) int64."""
_GOLDEN: Final = 0x9E3779B97F4A7C15 - 2**64
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_BITS: Final = 23
"""Bits of a uniform number: with one half added they fit single precision, without 0 and 1."""


def marked(arrays: Arrays) -> Arrays:
    """Return n examples, each with a mark that is a hash of its own content."""
    names = sorted(arrays)
    rows = zip(*(np.asarray(arrays[name]) for name in names), strict=True)
    digests = [
        hashlib.blake2b(b"".join(np.asarray(part).tobytes() for part in row), digest_size=8)
        for row in rows
    ]
    marks: NDArray[np.int64] = np.frombuffer(b"".join(d.digest() for d in digests), "<i8")
    return {**arrays, MARK: marks.astype(np.int64)}


class Draws:
    """Keys of one step after the other.

    A child of the generator draws each key. So batches are the same as without keys, and several
    trainings in a row have the keys of one long training.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        """Take the generator that draws batches."""
        self._rng = rng
        self._key: int | None = None

    @property
    def key(self) -> int:
        """The key of this step."""
        if self._key is None:
            (child,) = self._rng.spawn(1)
            self._key = int(child.integers(0, 2**63))
        return self._key

    def advance(self, trained: Mapping[str, Tensor]) -> None:
        """Go to the next step; a trainer calls this after each step."""
        self._key = None


def uniforms(marks: Tensor, key: int, width: int) -> Tensor:
    """Return numbers (B, width), uniform in (0, 1), of marks (B,) and the key of the step."""
    counters = torch.arange(1, width + 1, device=marks.device) * _GOLDEN
    bits = mixed(mixed(marks ^ key).unsqueeze(-1) + counters)
    whole = _shifted(bits, 64 - _BITS).to(torch.float32)
    drawn: Tensor = (whole + 0.5) / 2**_BITS
    return drawn


def normals(marks: Tensor, key: int, width: int) -> Tensor:
    """Return standard normal numbers (B, width); see `uniforms`."""
    drawn: Tensor = math.sqrt(2.0) * torch.erfinv(2.0 * uniforms(marks, key, width) - 1.0)
    return drawn


def mixed(words: Tensor) -> Tensor:
    """Return SplitMix64's output for states of 64 bits, as int64."""
    for bits, factor in _MIXERS:
        words = (words ^ _shifted(words, bits)) * factor
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    # A right shift of a signed number fills up with its sign.
    return (words >> bits) & ((1 << (64 - bits)) - 1)

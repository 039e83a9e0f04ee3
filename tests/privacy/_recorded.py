"""Noise from bytes that are known: what a mechanism makes of them can be pinned."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from privacy.randomness import NoiseSource, SeededNoise, standard_normal_from


def seeded(seed: int = 0) -> SeededNoise:
    """The noise of a simulation."""
    return SeededNoise(np.random.default_rng(seed))


class RecordedNoise(NoiseSource):
    """A noise source whose bytes are SHAKE-256 of a name, read from the start."""

    name = "recorded"
    protects = False

    def __init__(self, record: str = "record") -> None:
        self.seed = record.encode()
        self.position = 0

    def uniform_bytes(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        return hashlib.shake_256(self.seed).digest(self.position)[start:]

    def standard_normal(self, size: int) -> NDArray[np.float64]:
        return standard_normal_from(self.uniform_bytes, size)

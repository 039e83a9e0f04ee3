"""Noise that the coordinator adds to a sum."""

from __future__ import annotations

from platform.config import RunConfig
from platform.config.randomness import stream
from privacy import (
    NoiseSource,
    SeededNoise,
    SystemNoise,
)


def coordinator_noise(config: RunConfig, round_number: int, attempt: int) -> NoiseSource:
    """Return where the coordinator's own noise of an attempt comes from (`central_noise`)."""
    if config.privacy.noise_source == "os":
        return SystemNoise()
    return SeededNoise(stream(config.seed, "central noise", round_number, attempt))

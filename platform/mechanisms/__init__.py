"""Privacy mechanisms as a run is configured with them: one file each, and the registry of all."""

from __future__ import annotations

from platform.mechanisms.mechanism import (
    Circumstances,
    EntryNoise,
    Mechanism,
    NoiseDistribution,
    Settings,
    Steps,
    Sums,
    no_caveats,
)
from platform.mechanisms.registry import BUILT_IN, KNOWN, Mechanisms

__all__ = [
    "BUILT_IN",
    "KNOWN",
    "Circumstances",
    "EntryNoise",
    "Mechanism",
    "Mechanisms",
    "NoiseDistribution",
    "Settings",
    "Steps",
    "Sums",
    "no_caveats",
]

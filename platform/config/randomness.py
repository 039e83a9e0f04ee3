"""Seeded randomness for simulation, sampling and initialisation.

Every stream is derived from a seed and the names of its purpose, so that no two purposes share a
stream and none depends on how many numbers another drew. Keys, masks and noise for real data never
come from here; they come from the operating system (`privacy.SystemNoise`).
"""

from __future__ import annotations

import hashlib
import json

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the generator of one purpose, e.g. `stream(seed, "batches", client, round_number)`."""
    return np.random.default_rng(np.frombuffer(key_of(seed, *purpose), "<u4"))


def key_of(seed: int, *purpose: str | int) -> bytes:
    """Return the 32 bytes of one purpose: a stream's seed, or the key of draws by a hash."""
    return hashlib.sha256(json.dumps([seed, *purpose]).encode()).digest()

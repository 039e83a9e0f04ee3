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
    text = json.dumps([seed, *purpose])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, "<u4"))

"""Which examples a step sees: shuffled epochs, or a Poisson sample of secret coins."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privacy.randomness import Entropy, NoiseSource

_WORD = 2**64


def shuffled_batches(
    count: int, batch_size: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers of batches without end: one permutation per epoch, cut into pieces.

    Args:
        count: Number of examples.
        batch_size: Rows per batch; the last batch of an epoch holds what is left.
        rng: Draws a permutation when an epoch begins.

    Yields:
        Row numbers, shape (at most `batch_size`,), int64.
    """
    while True:
        order = rng.permutation(count)
        for start in range(0, count, batch_size):
            yield order[start : start + batch_size]


def coins_beside(noise: NoiseSource, rng: np.random.Generator) -> Entropy:
    """Return where the coins of Poisson batches come from: the same kind of source as the noise.

    Amplification by sampling holds against whoever does not know the coins. Coins from a recorded
    seed would leave the unamplified epsilon, so noise that protects goes with the operating
    system's entropy, and only a simulation's seeded noise goes with seeded coins.

    Args:
        noise: The mechanism's noise.
        rng: Of the batches; used beside noise that protects nobody.
    """
    return os.urandom if noise.protects else rng.bytes


def poisson_batches(
    count: int, sampling_probability: float, entropy: Entropy
) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers of batches without end, each row in each batch on a coin of its own.

    A coin is a 64-bit word below floor(probability x 2^64): the probability is never above what
    was asked for, which is what accounting needs, and below it by less than 2^-64.

    Args:
        count: Number of examples, which may be 0.
        sampling_probability: Above 0, at most 1; 1 takes every row.
        entropy: Gives the coins' bytes.

    Yields:
        Row numbers in ascending order, int64; may be empty.
    """
    threshold = int(sampling_probability * _WORD)
    while True:
        words = np.frombuffer(entropy(8 * count), dtype="<u8")
        # A threshold of 2^64 itself does not fit into a word.
        taken = np.full(count, True) if threshold >= _WORD else words < np.uint64(threshold)
        yield np.flatnonzero(taken).astype(np.int64)

"""Seeded streams: one per purpose, independent of each other, the same everywhere."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from platform.config.randomness import stream


def test_one_purpose_one_stream():
    one, other = stream(1, "batches", "client", 3), stream(1, "batches", "client", 3)
    assert np.array_equal(one.integers(0, 2**60, 20), other.integers(0, 2**60, 20))


def test_a_known_answer():
    """SHA-256 of the JSON text `[0, "cohort", 1]` seeds NumPy's default generator."""
    import hashlib

    digest = hashlib.sha256(b'[0, "cohort", 1]').digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
    expected = np.random.default_rng(words)
    assert stream(0, "cohort", 1).integers(0, 2**60) == expected.integers(0, 2**60)


@pytest.mark.parametrize(
    ("one", "other"),
    list(
        itertools.combinations(
            [
                (1, "a"),
                (2, "a"),
                (1, "b"),
                (1, "a", 1),
                (1, "a", "1"),
                (1, "a1"),
                (11, "a"),
                (1, 1, "a"),
                (1, "a", "b"),
                (1, 'a", "b'),
            ],
            2,
        )
    ),
    ids=str,
)
def test_other_purposes_have_other_streams(one, other):
    assert stream(*one).integers(0, 2**60) != stream(*other).integers(0, 2**60)


def test_streams_do_not_follow_one_another():
    """Neighbouring seeds and rounds are uncorrelated: 20,000 draws, five deviations."""
    draws = [stream(seed, "noise", 1).standard_normal(20_000) for seed in range(3)]
    draws += [stream(0, "noise", number).standard_normal(20_000) for number in (2, 3)]
    correlations = np.corrcoef(draws) - np.eye(5)
    assert np.abs(correlations).max() < 5 / np.sqrt(20_000)

"""Draws by a keyed hash: about the share, none lost, each record for itself, and by the key."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from platform.data.dataset import Split
from platform.data.partition import ClientIndices, carve, places


def carved(numbers, share, key=b"mine"):
    """A client with every second row, as texts: what trains and what validates."""
    zeros = np.zeros(len(numbers), np.int64)
    split = Split(np.zeros((0, 1, 1, 3), np.uint8), zeros, zeros, tuple(map(str, numbers)))
    before = ClientIndices(np.arange(0, len(numbers), 2), np.array([3, 5]))
    return before, carve(before, split, share, key)


def test_a_place_by_hand():
    digest = hashlib.sha256(b"x").digest()
    key = hmac.new(b"mine", b"validation", "sha256").digest()
    expected = int.from_bytes(hmac.new(key, digest, "sha256").digest()[:6]) / 2**48
    assert places([digest], b"mine", "validation").tolist() == [expected]


def test_a_share_is_met_on_average():
    """Of 2,000 coins of 0.3 within five deviations (20.5) of 600."""
    assert abs(len(carved(range(4000), 0.3)[1].validation) - 600) < 103


@given(st.lists(st.integers(0, 10**6), max_size=40), st.floats(0.0, 1.0, exclude_max=True))
def test_nothing_is_lost_doubled_or_taken_from_the_test_images(numbers, share):
    before, after = carved(numbers, share)
    assert sorted([*after.train, *after.validation]) == before.train.tolist()
    assert after.test is before.test
    assert (np.diff(after.train) > 0).all() and (np.diff(after.validation) > 0).all()


def test_the_key_says_which_ones_and_draws_are_independent():
    rows = [carved(range(80), 0.5, key)[1].validation.tolist() for key in (b"a", b"a", b"b")]
    assert rows[0] == rows[1] != rows[2]
    digests = [hashlib.sha256(bytes([n])).digest() for n in range(200)]
    tests, validation = (places(digests, b"a", draw) < 0.5 for draw in ("test", "validation"))
    # Within five deviations (7.1) of half of them.
    assert abs(int((tests == validation).sum()) - 100) < 36

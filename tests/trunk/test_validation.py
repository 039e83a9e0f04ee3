"""Validation images: how many of each class, by hand, and none twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform.data.partition import ClientIndices
from platform.data.validation import carve
from platform.errors import ConfigError

TESTS = np.array([3, 5])


def carved(sizes, share, seed=0):
    """A client with every second row of classes of these sizes."""
    labels = np.repeat(np.arange(len(sizes)), np.array(sizes) * 2)
    client = ClientIndices(np.arange(0, len(labels), 2), TESTS)
    return labels, client, carve(client, labels, share, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("sizes", "share", "kept"),
    [
        ([10, 4], 0.2, [2, 1]),
        # Half to even: 2.5 is two, 1.5 is two.
        ([10, 6], 0.25, [2, 2]),
        # Never all of a class, and nothing of a single image.
        ([4, 1], 0.9, [3, 0]),
        ([2, 2, 16], 0.1, [0, 0, 2]),
    ],
)
def test_counts_by_hand(sizes, share, kept):
    labels, _, client = carved(sizes, share)
    counts = [
        np.bincount(labels[rows], minlength=len(sizes)).tolist()
        for rows in (client.validation, client.train)
    ]
    assert counts == [kept, [size - count for size, count in zip(sizes, kept, strict=True)]]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.floats(0.01, 0.99),
    st.integers(0, 1000),
)
def test_nothing_is_lost_doubled_or_taken_from_the_test_images(sizes, share, seed):
    try:
        _, before, after = carved(sizes, share, seed)
    except ConfigError:
        assert all(round(share * size) == 0 or size == 1 for size in sizes)
        return
    assert sorted([*after.train, *after.validation]) == before.train.tolist()
    assert after.test is before.test
    assert (np.diff(after.train) > 0).all() and (np.diff(after.validation) > 0).all()
    assert len(after.train) >= len(sizes)


def test_the_generator_says_which_ones():
    rows = [carved([30], 0.5, seed)[2].validation.tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_a_share_below_one_image_is_refused():
    with pytest.raises(ConfigError) as caught:
        carved([4, 4], 0.1)
    assert str(caught.value) == (
        "task.validation_share: 0.1 of a client's 8 training images is less than one image of any "
        "class; use a larger share or more shots"
    )

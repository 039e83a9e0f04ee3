"""Examples some at a time, and shares of labels: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from methods.networks.method import blocks, label_shares


@pytest.mark.parametrize(
    ("count", "rows", "sizes"),
    [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 9, [3]), (1, 1, [1]), (0, 4, [0])],
)
def test_every_row_comes_once_and_in_order(count, rows, sizes):
    arrays = {"labels": np.arange(count), "pixels": np.arange(3 * count).reshape(count, 3)}
    found = list(blocks(arrays, rows))
    assert [len(block["labels"]) for block in found] == sizes
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([block[name] for block in found]), array)
        assert all(block[name].shape[1:] == array.shape[1:] for block in found)


def test_shares_of_labels():
    """Class 1 and those behind the last label that occurs have none."""
    shares = label_shares(np.array([2, 0, 2, 2]), 5)
    assert shares.tolist() == [0.25, 0.0, 0.75, 0.0, 0.0]
    assert shares.dtype == np.float32
    assert label_shares(np.array([], np.int64), 2).tolist() == [0.0, 0.0]

"""A metric beside an update: its coordinate is bounded, and its mean comes back unbiased."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy import NoisedMetric

SHARES = st.floats(0.0, 1.0)
NORMS = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(
    ("value", "coordinate"),
    # b = 0.5 x 4 = 2: 2 (2a - 1).
    [(0.0, -2.0), (0.25, -1.0), (0.5, 0.0), (0.9, 1.6), (1.0, 2.0)],
)
def test_coordinate_by_hand(value: float, coordinate: float) -> None:
    metric = NoisedMetric(ratio=0.5)
    assert metric.bound(4.0) == 2.0
    assert metric.coordinate(value, 4.0) == pytest.approx(coordinate, abs=1e-15)
    assert metric.mean(coordinate, 4.0) == pytest.approx(value, abs=1e-15)


def test_the_mean_is_not_cut() -> None:
    metric = NoisedMetric()
    assert metric.mean(3.0, 1.0) == 2.0
    assert metric.mean(-2.0, 1.0) == -0.5


def test_deviation_by_hand() -> None:
    # A mean coordinate of deviation 0.6 is an accuracy of deviation 0.6 / (2 x 1.5).
    assert NoisedMetric(ratio=0.5).deviation(0.6, 3.0) == pytest.approx(0.2)


@given(SHARES, NORMS, st.floats(1e-3, 1e3))
def test_no_share_is_beyond_the_bound(value: float, norm: float, ratio: float) -> None:
    metric = NoisedMetric(ratio=ratio)
    assert abs(metric.coordinate(value, norm)) <= metric.bound(norm)


@given(st.lists(SHARES, min_size=1, max_size=20), NORMS, st.floats(1e-3, 1e3))
def test_the_mean_of_the_coordinates_is_that_of_the_shares(
    values: list[float], norm: float, ratio: float
) -> None:
    metric = NoisedMetric(ratio=ratio)
    mean = float(np.mean([metric.coordinate(value, norm) for value in values]))
    assert metric.mean(mean, norm) == pytest.approx(float(np.mean(values)), abs=1e-12)


@pytest.mark.parametrize("value", [-1e-9, 1.0 + 1e-9, math.nan, math.inf, 40.0])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"it must lie in \[0, 1\]"):
        NoisedMetric().coordinate(value, 1.0)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_that_means_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio is"):
        NoisedMetric(ratio=ratio)

"""Signal to noise as an interval: coverage by simulation, reduction laws, numbers from tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privacy import signal_to_noise

RUNS = 2_000
MISSED = stats.binom.isf([1 - 1e-6, 1e-6], RUNS, 0.05)
"""Fewest and most of 2,000 intervals of 95% that may miss the truth."""


def intervals(size, ratio, deviation=0.3):
    """Intervals of this many coordinates whose signal is this much longer than its noise."""
    rng = np.random.default_rng(7)
    direction = rng.standard_normal(size)
    signal = direction / np.linalg.norm(direction) * ratio * deviation * math.sqrt(size)
    draws = (signal + deviation * rng.standard_normal(size) for _ in range(RUNS))
    return [signal_to_noise(draw, deviation) for draw in draws]


@pytest.mark.parametrize(("size", "ratio"), [(1, 3.0), (512, 0.5)])
def test_intervals_cover_the_ratio_that_was_put_in(size, ratio):
    missed = sum(not found.low <= ratio <= found.high for found in intervals(size, ratio))
    assert MISSED[0] <= missed <= MISSED[1]


@pytest.mark.parametrize("size", [1, 512])
def test_noise_alone_is_below_detection_but_for_one_time_in_forty(size):
    """Its lower end is above 0 as often as chi-square is above its 97.5% point."""
    found = intervals(size, 0.0)
    few, many = stats.binom.isf([1 - 1e-6, 1e-6], RUNS, 0.025)
    assert few <= sum(interval.low > 0.0 for interval in found) <= many
    assert all(0.0 <= interval.low <= interval.high for interval in found)


def test_ends_are_where_the_quantiles_are():
    """By the distribution functions themselves, and for one coordinate by the normal law."""
    found = signal_to_noise(np.full(100, 2.0), 1.0)
    low, high = (100 * end**2 for end in (found.low, found.high))
    assert stats.ncx2.cdf(400.0, 100, low) == pytest.approx(0.975, abs=1e-6)
    assert stats.ncx2.cdf(400.0, 100, high) == pytest.approx(0.025, abs=1e-6)
    # |x + g| with x far from 0 is x + g: 10 -+ 1.96.
    single = signal_to_noise(np.array([20.0]), 2.0)
    assert (single.low, single.high) == pytest.approx((10 - 1.959964, 10 + 1.959964), abs=1e-5)


@pytest.mark.parametrize("ratio", [9.9e2, 1.01e3, 1e9])
@pytest.mark.parametrize("size", [1, 100_000])
def test_hardly_any_noise(size, ratio):
    found = signal_to_noise(np.full(size, ratio), 1.0)
    assert found.low < ratio < found.high
    width = 2 * 1.959964 * math.sqrt(1 + 1 / (2 * ratio**2)) / math.sqrt(size)
    assert found.high - found.low == pytest.approx(width, rel=1e-2)


def test_refused():
    with pytest.raises(ValueError, match="standard_deviation is 0"):
        signal_to_noise(np.ones(2), 0.0)
    with pytest.raises(ValueError, match="coordinates is 0"):
        signal_to_noise(np.zeros(0), 1.0)

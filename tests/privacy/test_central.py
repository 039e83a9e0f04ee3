"""Central noise: rounding never lengthens, and the noise of the sum is what the ledger says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy import (
    GAUSSIAN,
    CalibrationError,
    CentralNoise,
    SeededNoise,
    SignedGrid,
    epsilon,
    noise_for_sum,
)
from privacy.central import central_ring_bits, protect_for_centre
from tests.privacy._rows import release_of

BASE = CentralNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)
DIMENSION = 50_000


def mechanism(**changes: Any) -> CentralNoise:
    return dataclasses.replace(BASE, **changes)


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def row(how: CentralNoise, dimension: int = 10_000, **changes: Any) -> Any:
    return release_of(how, dimension, **changes)


# --------------------------------------------------------------------------- what clients send


@given(
    seed=st.integers(0, 2**32),
    dimension=st.integers(1, 400),
    scaled=st.floats(1_000.0, 2.0**30),
    shape=st.sampled_from(["spread", "spike", "halves", "far", "tails"]),
)
def test_no_rounded_update_is_longer_than_the_ledger_says(
    seed: int, dimension: int, scaled: float, shape: str
) -> None:
    rng, scale = np.random.default_rng(seed), scaled / 0.5
    vector = {
        "spread": np.full(dimension, 0.5 / math.sqrt(dimension)),
        "spike": np.eye(1, dimension)[0] * 0.5,
        # Half a step everywhere: rounding can lengthen it most.
        "halves": np.full(dimension, 0.5 / scale),
        "far": rng.standard_normal(dimension) * 1e12,
        "tails": rng.standard_cauchy(dimension),
    }[shape]
    how = mechanism(scale=scale)
    result = protect_for_centre(vector, how, ring_bits=64, noise=SeededNoise(rng))
    steps = [int(level) for level in result.levels.view(np.int64)]
    limit = (row(how, dimension).clipping_norm * scale) ** 2
    assert sum(step * step for step in steps) <= limit * (1 + 1e-12)


def test_an_update_is_carried_within_a_step_and_right_on_average() -> None:
    vector = np.array([0.1, -0.2, 0.00003, 0.0])
    how, grid = mechanism(), SignedGrid(4_096.0, 32, 1)
    sent = [
        grid.dequantise(protect_for_centre(vector, how, ring_bits=32, noise=seeded(k)).levels)
        for k in range(2_000)
    ]
    assert np.abs(np.array(sent) - vector).max() < 1 / 4_096
    # A coin's deviation is at most half a step; five of them over 2,000 tries.
    assert np.abs(np.mean(sent, axis=0) - vector).max() < 5 * 0.5 / 4_096 / math.sqrt(2_000)


# ----------------------------------------------------------------------- what the coordinator adds


def test_no_noise_is_allowed_and_costs_infinity() -> None:
    how = mechanism(noise_multiplier=0.0)
    np.testing.assert_array_equal(noise_for_sum(how, 3, seeded()), [0, 0, 0])
    assert epsilon([row(how)], 1e-5).epsilon == math.inf


# --------------------------------------------------------------------------------------- the row


def test_the_row_by_hand() -> None:
    # 1000 steps and 10,000 coordinates: 1000^2 + 2500 + 1000 + 50 = 1,003,550 steps squared.
    how = mechanism(clipping_norm=2.0, scale=500.0, noise_multiplier=1.5)
    found = row(how)
    assert found.clipping_norm == pytest.approx(math.sqrt(1_003_550) / 500.0)
    assert found.sensitivity == 2.0 * found.clipping_norm
    assert (found.standard_deviation, found.law, found.cohort) == (3.0, GAUSSIAN, None)
    single = row(dataclasses.replace(how, relation="add_or_remove_one"))
    assert single.sensitivity == single.clipping_norm == found.clipping_norm


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_neighbours_move_the_sum_by_no_more_than_the_sensitivity(relation: Any) -> None:
    how = mechanism(relation=relation)
    rng = np.random.default_rng(9)
    grid = SignedGrid(how.scale, 64, 2)
    worst = 0.0
    for seed in range(100):
        one = rng.standard_normal(64) * 10.0
        # Opposite beyond the ball, or not there.
        other = -one if relation == "replace_one" else np.zeros(64)
        a, b = (
            grid.dequantise(protect_for_centre(v, how, ring_bits=64, noise=seeded(seed)).levels)
            for v in (one, other)
        )
        worst = max(worst, float(np.linalg.norm(a - b)))
    sensitivity = row(how, 64).sensitivity
    assert 0.99 * sensitivity < worst <= sensitivity


# --------------------------------------------------------------------------- ring and refusals


def test_the_ring_holds_the_longest_sum() -> None:
    # 2^20 steps over one coordinate: (2^20 + 1)^2 against 2^40 + 1/4 + 2^20 + 1/2, the less.
    how = mechanism(clipping_norm=1.0, scale=2.0**20, noise_multiplier=0.0)
    longest = math.sqrt(2**40 + 2**20)
    most = int(2**31 / longest)
    assert most * longest < 2**31 <= (most + 1) * longest
    assert central_ring_bits(how, dimension=1, clients=most) == 32
    assert central_ring_bits(how, dimension=1, clients=most + 1) == 33
    with pytest.raises(CalibrationError, match="sum of 8796093022208 clients wraps around"):
        central_ring_bits(how, dimension=1, clients=2**43)
    for name in ("dimension", "clients"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            central_ring_bits(how, **{"dimension": 1, "clients": 1} | {name: 0})


@pytest.mark.parametrize("dimension", [1, 8_192])
@pytest.mark.parametrize("multiplier", [0.01, 1_000.0])
def test_the_ring_holds_the_noise_too(dimension: int, multiplier: float) -> None:
    how, clients = mechanism(noise_multiplier=multiplier), 10
    deviation = multiplier * how.scaled_norm
    half = 2 ** (central_ring_bits(how, dimension=dimension, clients=clients) - 1)
    longest = row(how, dimension).clipping_norm * how.scale
    chance = 2 * dimension * stats.norm.sf((half - clients * longest) / deviation)
    assert chance <= 2.0**-40
    # And not twice as large as it takes: in half of it the chance is above.
    smaller = 2 * dimension * stats.norm.sf((half / 2 - clients * longest) / deviation)
    assert smaller > 2.0**-41 or half == 2**15


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clipping_norm": 0.0}, ValueError, "clipping_norm is 0"),
        ({"scale": math.inf}, ValueError, "scale is inf"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1"),
        ({"relation": "swap"}, ValueError, "relation is 'swap'"),
        ({"scale": 1_999.0}, CalibrationError, "999.5 steps of the grid; it must be from 1000"),
        ({"scale": 2.0**32}, CalibrationError, "to 2\\^30"),
    ],
)
def test_what_means_nothing_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mechanism(**changes)

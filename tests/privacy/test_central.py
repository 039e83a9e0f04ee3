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
    CohortSampling,
    NonFiniteUpdate,
    SeededNoise,
    SignedGrid,
    SystemNoise,
    epsilon,
    noise_for_sum,
)
from privacy.central import central_ring_bits, protect_for_centre
from privacy.randomness import NoiseSource
from tests.privacy._rows import release_of

BASE = CentralNoise(clipping_norm=0.5, noise_multiplier=2.0, scale=4_096.0)
DIMENSION = 50_000


def mechanism(**changes: Any) -> CentralNoise:
    return dataclasses.replace(BASE, **changes)


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def row(how: CentralNoise, dimension: int = 10_000, **changes: Any) -> Any:
    fields = {"run_id": "r", "round_number": 3, "attempt": 1, "pseudonym": "a"}
    return release_of(how, dimension, **fields | changes)


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


@given(st.integers(2, 64), st.integers(0, 2**32))
def test_the_ring_is_a_quotient_of_the_widest(ring_bits: int, seed: int) -> None:
    # The same coins in any ring: what wraps around is off by the ring and no coin is drawn anew.
    vector = np.random.default_rng(seed).standard_normal(20)
    wide, narrow = (
        protect_for_centre(vector, mechanism(), ring_bits=bits, noise=seeded(seed)).levels
        for bits in (64, ring_bits)
    )
    np.testing.assert_array_equal(wide & np.uint64(2**ring_bits - 1), narrow)


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


def test_what_stays_on_the_client() -> None:
    result = protect_for_centre(np.array([3.0, 4.0]), mechanism(), ring_bits=32, noise=seeded())
    assert (result.norm, result.was_clipped, result.saturated) == (5.0, True, 0)
    assert result.levels.dtype == np.uint64
    np.testing.assert_allclose(result.levels / 4_096.0, [0.3, 0.4], atol=1 / 4_096)
    assert protect_for_centre(np.zeros(0), mechanism(), ring_bits=32, noise=seeded()).norm == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_updates_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NonFiniteUpdate):
        protect_for_centre(np.array([0.0, value]), mechanism(), ring_bits=32, noise=seeded())


def test_a_bare_generator_is_no_noise_source() -> None:
    bare: Any = np.random.default_rng(0)
    with pytest.raises(TypeError, match="noise is a Generator"):
        protect_for_centre(np.zeros(3), mechanism(), ring_bits=32, noise=bare)
    with pytest.raises(TypeError, match="noise is a Generator"):
        noise_for_sum(mechanism(), 3, bare)


@pytest.mark.parametrize("ring_bits", [0, 1, 65])
def test_rings_that_hold_nothing_are_refused(ring_bits: int) -> None:
    with pytest.raises(ValueError, match=f"ring_bits is {ring_bits}"):
        protect_for_centre(np.zeros(3), mechanism(), ring_bits=ring_bits, noise=seeded())


# ----------------------------------------------------------------------- what the coordinator adds


@pytest.mark.parametrize(
    ("noise", "alpha"),
    [pytest.param(seeded(5), 1e-6, id="seeded"), pytest.param(SystemNoise(), 1e-9, id="os")],
)
@pytest.mark.parametrize(("clipping_norm", "multiplier"), [(0.5, 4.0), (3.0, 0.05)])
def test_noise_of_the_sum_has_the_variance_of_the_ledger(
    noise: NoiseSource, alpha: float, clipping_norm: float, multiplier: float
) -> None:
    how = mechanism(clipping_norm=clipping_norm, noise_multiplier=multiplier)
    drawn = noise_for_sum(how, DIMENSION, noise)
    assert drawn.shape == (DIMENSION,)
    # In steps of the grid; rounding to whole ones adds a twelfth of a step squared.
    variance = (row(how).standard_deviation * how.scale) ** 2 + 1 / 12
    square = float(np.sum(drawn.astype(np.float64) ** 2)) / variance
    assert stats.chi2.ppf(alpha / 2, DIMENSION) < square < stats.chi2.isf(alpha / 2, DIMENSION)
    assert row(how).standard_deviation == pytest.approx(clipping_norm * multiplier)


@pytest.mark.parametrize(
    ("noise", "alpha"),
    [pytest.param(seeded(6), 1e-6, id="seeded"), pytest.param(SystemNoise(), 1e-9, id="os")],
)
def test_noise_is_fresh_at_each_call_and_each_coordinate(noise: NoiseSource, alpha: float) -> None:
    first, second = (noise_for_sum(mechanism(), DIMENSION, noise) for _ in range(2))
    for one, other in ((first, second), (first[:-1], first[1:])):
        correlation = float(np.corrcoef(one, other)[0, 1])
        assert abs(correlation) * math.sqrt(DIMENSION) < stats.norm.isf(alpha / 2)


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
    assert (found.mechanism.name, found.channel, found.status) == (
        "central_noise",
        "sum",
        "reserved",
    )
    assert (found.standard_deviation, found.law, found.cohort) == (3.0, GAUSSIAN, None)
    assert (found.run_id, found.round_number, found.attempt, found.pseudonym) == ("r", 3, 1, "a")
    single = row(dataclasses.replace(how, relation="add_or_remove_one"), status="released")
    assert single.sensitivity == single.clipping_norm == found.clipping_norm
    assert single.status == "released"


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


def test_a_cohort_drawn_in_secret_is_on_the_row() -> None:
    cohort = CohortSampling(kind="poisson", size=10, population=100, is_drawn=False)
    assert row(mechanism(), cohort=cohort).cohort == cohort


@pytest.mark.parametrize("channel", ["pool", "metrics"])
def test_only_the_sum_is_noised(channel: str) -> None:
    with pytest.raises(ValueError, match=f"channel is '{channel}'; it must be 'sum'"):
        row(mechanism(), channel=channel)


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


@pytest.mark.parametrize("dimension", [1, 100, 8_192])
@pytest.mark.parametrize("multiplier", [0.01, 5.0, 1_000.0])
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


def test_a_full_ring_does_not_wrap_around() -> None:
    how = mechanism(clipping_norm=1.0, scale=2.0**20, noise_multiplier=0.0)
    clients = int(2**31 / math.sqrt(2**40 + 2**20))
    total = np.zeros(1, dtype=np.uint64)
    for sign in (1.0, -1.0):
        total[:] = 0
        for _ in range(clients):
            sent = protect_for_centre(np.array([9 * sign]), how, ring_bits=32, noise=seeded())
            total += sent.levels
        opened = SignedGrid(how.scale, 32, clients).dequantise_sum(
            total & np.uint64(2**32 - 1), clients
        )
        assert opened[0] == pytest.approx(sign * clients, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clipping_norm": 0.0}, ValueError, "clipping_norm is 0"),
        ({"clipping_norm": math.nan}, ValueError, "clipping_norm is nan"),
        ({"scale": math.inf}, ValueError, "scale is inf"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier is nan"),
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


def test_the_coarsest_and_the_finest_grid_are_allowed() -> None:
    assert mechanism(scale=2_000.0).scaled_norm == 1_000.0
    assert mechanism(scale=2.0**31).scaled_norm == 2.0**30

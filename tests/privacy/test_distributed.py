"""Distributed noise: what the sum carries is what the ledger says, whoever drops out or tells."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from privacy import (
    CalibrationError,
    DistributedNoise,
    NonFiniteUpdate,
    Release,
    SeededNoise,
    SignedGrid,
    SystemNoise,
    calibrate,
    calibrate_noise_multiplier,
    clip,
    default_scale,
    epsilon,
    protect_share,
    required_ring_bits,
    smallest_multiplier,
)
from privacy.distributed import largest_sum
from privacy.errors import SensitivityViolation
from privacy.randomness import NoiseSource
from privacy.rounding import round_conditionally, squared_norm_after_rounding
from tests.privacy._rows import release_of

ALPHA = 1e-9
DIMENSION = 4_000

BASE = DistributedNoise(
    clipping_norm=0.3,
    noise_multiplier=2.0,
    minimum_survivors=10,
    corrupt=2,
    scale=2.0**13,
)

kinds = pytest.mark.parametrize("kind", ["discrete_gaussian", "skellam"])


def mechanism(**changes: Any) -> DistributedNoise:
    return dataclasses.replace(BASE, **changes)


def seeded(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def ring_sum(
    updates: Sequence[NDArray[np.float64]],
    how: DistributedNoise,
    ring_bits: int,
    noise: NoiseSource,
) -> NDArray[np.uint64]:
    total = np.zeros(updates[0].size, dtype=np.uint64)
    for update in updates:
        total += protect_share(update, how, ring_bits=ring_bits, noise=noise).levels
    return total & np.uint64(2**ring_bits - 1)


def open_sum(
    levels: NDArray[np.uint64], how: DistributedNoise, ring_bits: int
) -> NDArray[np.float64]:
    return SignedGrid(how.scale, ring_bits, 1_000).dequantise_sum(levels, 1_000)


def row(how: DistributedNoise, dimension: int = DIMENSION, **changes: Any) -> Any:
    fields = {"run_id": "r", "round_number": 1, "attempt": 0, "pseudonym": "a"}
    return release_of(how, dimension, **fields | changes)


# ------------------------------------------------------------------------------ noise of the sum


@kinds
@pytest.mark.parametrize("noise", [SystemNoise(), seeded(3)], ids=["os", "seeded"])
@pytest.mark.parametrize(("survivors", "corrupt"), [(10, 2), (5, 0), (40, 39)])
@pytest.mark.parametrize("scale", [2.0**12, 2.0**17])
def test_the_honest_shares_alone_have_the_noise_of_the_ledger(
    kind: str, noise: NoiseSource, survivors: int, corrupt: int, scale: float
) -> None:
    how = mechanism(
        kind=kind, minimum_survivors=survivors, corrupt=corrupt, scale=scale, noise_multiplier=3.0
    )
    # Exactly m_min survive, c of them tell what they drew: theirs is subtracted, or left out.
    zeros = [np.zeros(DIMENSION)] * (survivors - corrupt)
    left = open_sum(ring_sum(zeros, how, 32, noise), how, 32)
    square = float(np.sum((left / row(how).standard_deviation) ** 2))
    # Skellam noise has a trace of excess kurtosis, which the factor covers.
    assert stats.chi2.ppf(ALPHA / 2, DIMENSION) < square * 1.01
    assert square * 0.99 < stats.chi2.isf(ALPHA / 2, DIMENSION)
    assert row(how).standard_deviation == pytest.approx(3.0 * 0.3)


@kinds
def test_more_survivors_bring_more_noise_and_never_less(kind: str) -> None:
    how = mechanism(kind=kind)
    everybody = open_sum(ring_sum([np.zeros(DIMENSION)] * 20, how, 32, seeded(4)), how, 32)
    variance = float(np.mean((everybody / how.standard_deviation) ** 2))
    assert variance == pytest.approx(20 / 8, rel=0.15)


@kinds
def test_shares_differ_between_clients_and_rounds(kind: str) -> None:
    how, zero = mechanism(kind=kind), np.zeros(DIMENSION)
    first, second = (
        open_sum(protect_share(zero, how, ring_bits=32, noise=SystemNoise()).levels, how, 32)
        for _ in range(2)
    )
    correlation = float(np.corrcoef(first, second)[0, 1])
    assert abs(correlation) * math.sqrt(DIMENSION) < stats.norm.isf(ALPHA / 2)


@kinds
@pytest.mark.parametrize("ring_bits", [16, 23, 64])
@pytest.mark.parametrize("noise", [SystemNoise(), seeded(5)], ids=["os", "seeded"])
def test_the_sum_through_the_ring_is_the_sum_within_the_noise(
    kind: str, ring_bits: int, noise: NoiseSource
) -> None:
    rng = np.random.default_rng(8)
    shared = rng.standard_normal(DIMENSION)
    # From far inside the ball, where nothing is clipped, to far outside.
    updates = [
        (shared + rng.standard_normal(DIMENSION)) * size for size in np.geomspace(1e-4, 10, 12)
    ]
    how = mechanism(kind=kind, noise_multiplier=0.02)
    assert required_ring_bits(how, dimension=DIMENSION, clients=12) == 16
    found = open_sum(ring_sum(updates, how, ring_bits, noise), how, ring_bits)
    wanted = np.sum([clip(update, how.clipping_norm).vector for update in updates], axis=0)
    variance = (12 * how.share_deviation**2 + 12 * 0.25) / how.scale**2
    residual = found - wanted
    assert np.sum(residual**2) / variance < stats.chi2.isf(ALPHA, DIMENSION)
    assert np.sum(residual**2) / variance > 0.8 * stats.chi2.ppf(ALPHA, DIMENSION)
    assert abs(residual.mean()) < stats.norm.isf(ALPHA / 2) * math.sqrt(variance / DIMENSION)
    assert np.corrcoef(found, wanted)[0, 1] > 0.9


def test_what_stays_on_the_client() -> None:
    update = np.full(16, 1.0)
    result = protect_share(update, mechanism(), ring_bits=32, noise=seeded(0))
    assert result.was_clipped
    assert result.norm == pytest.approx(4.0)
    assert result.saturated == 0
    assert result.levels.dtype == np.uint64
    assert int(result.levels.max()) < 2**32


def test_empty_updates_pass() -> None:
    result = protect_share(np.zeros(0), mechanism(), ring_bits=32, noise=seeded(0))
    assert result.levels.shape == (0,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_updates_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NonFiniteUpdate):
        protect_share(np.array([0.0, value]), mechanism(), ring_bits=32, noise=seeded(0))


def test_a_bare_generator_is_no_noise_source() -> None:
    bare: Any = np.random.default_rng(0)
    with pytest.raises(TypeError, match="noise is a Generator"):
        protect_share(np.zeros(3), mechanism(), ring_bits=32, noise=bare)


# -------------------------------------------------------------------------------------- rounding


def test_bound_after_rounding_by_hand() -> None:
    # c = 1000, d = 10,000: c^2 + 2500 + (1000 + 50) = 1,003,550, far below (1000 + 100)^2.
    assert squared_norm_after_rounding(1000.0, 10_000) == 1_003_550
    # c = 1, d = 1: (1 + 1)^2 = 4 against 1 + 0.25 + 1.5 = 2.75.
    assert squared_norm_after_rounding(1.0, 1) == 2
    # c = 0.1, d = 4: (0.1 + 2)^2 = 4.41 against 0.01 + 1 + 1.1 = 2.11.
    assert squared_norm_after_rounding(0.1, 4) == 2


def test_the_ledger_has_the_norm_after_rounding() -> None:
    how = mechanism(clipping_norm=2.0, scale=500.0)
    assert row(how, 10_000).clipping_norm == pytest.approx(math.sqrt(1_003_550) / 500.0)
    assert row(how, 10_000).clipping_norm > 2.0 * 1.0017
    assert row(how, 10_000).sensitivity == 2.0 * row(how, 10_000).clipping_norm
    single = dataclasses.replace(how, relation="add_or_remove_one")
    assert row(single, 10_000).sensitivity == row(single, 10_000).clipping_norm


def test_rounding_is_repeated_until_it_is_short() -> None:
    # 10,000 times 9.5: all up is 10^6, above 950^2 + 2500 + 1000 = 906,000; all down is 810,000.
    tries = [b"\x00" * 40_000, b"\xff" * 40_000]
    rounded = round_conditionally(lambda count: tries.pop(0), np.full(10_000, 9.5), 950.0)
    assert tries == []
    np.testing.assert_array_equal(rounded, 9)


def test_the_condition_holds_always_and_is_not_idle() -> None:
    vector, norm = np.full(2_000, 21.5), 21.5 * math.sqrt(2_000)
    limit = squared_norm_after_rounding(norm, 2_000)
    rng = np.random.default_rng(1)
    lengths = []
    for _ in range(200):
        rounded = round_conditionally(rng.bytes, vector, norm)
        assert np.abs(rounded - vector).max() < 1.0
        lengths.append(int(np.sum(rounded**2)))
    assert max(lengths) <= limit
    free = np.floor(vector) + rng.integers(0, 2, (200, 2_000))
    assert (np.sum(free**2, axis=1) > limit).sum() > 5


@given(seed=st.integers(0, 2**32), dimension=st.integers(1, 300), norm=st.floats(1.0, 1e9))
def test_rounded_vectors_are_short_whatever_the_direction(
    seed: int, dimension: int, norm: float
) -> None:
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(dimension) ** 3
    vector = direction / max(1e-300, float(np.linalg.norm(direction))) * norm
    rounded = round_conditionally(rng.bytes, vector, norm)
    assert sum(int(value) ** 2 for value in rounded) <= squared_norm_after_rounding(norm, dimension)


def test_rounding_is_right_on_average() -> None:
    rng = np.random.default_rng(2)
    vector = rng.uniform(-30, 30, 50)
    norm = float(np.linalg.norm(vector))
    mean = np.mean([round_conditionally(rng.bytes, vector, norm) for _ in range(20_000)], axis=0)
    # The condition shortens a little; what is left is a hundredth of a step.
    np.testing.assert_allclose(mean, vector, atol=0.05)


def test_vectors_beyond_the_norm_are_refused() -> None:
    with pytest.raises(SensitivityViolation, match="no try of rounding has a norm"):
        round_conditionally(np.random.default_rng(0).bytes, np.full(10_000, 20.5), 1500.0)
    with pytest.raises(SensitivityViolation, match="no try of rounding has a norm"):
        round_conditionally(np.random.default_rng(0).bytes, np.array([1e300]), 1500.0)
    with pytest.raises(ValueError, match="at most 2\\^30"):
        squared_norm_after_rounding(2.0**31, 4)


# ----------------------------------------------------------------------------- ring and headroom


@pytest.mark.parametrize("bits", [8, 16])
def test_wrap_around_is_off_by_the_ring_and_nothing_else(bits: int) -> None:
    # Reduction modulo the ring is a function of what was noised, and the row does not know the
    # ring: what wraps around loses utility and nothing is charged for it.
    how = mechanism(noise_multiplier=20.0)
    wide = ring_sum([np.full(50, 0.04)] * 12, how, 64, seeded(6))
    narrow = ring_sum([np.full(50, 0.04)] * 12, how, bits, seeded(6))
    np.testing.assert_array_equal(wide & np.uint64(2**bits - 1), narrow)
    off = (open_sum(wide, how, 64) - open_sum(narrow, how, bits)) * how.scale / 2**bits
    np.testing.assert_array_equal(off, np.rint(off))
    assert np.abs(off).max() > 0


@pytest.mark.parametrize("ring_bits", [-1, 0, 1, 65])
def test_rings_that_hold_nothing_are_refused(ring_bits: int) -> None:
    with pytest.raises(ValueError, match=f"ring_bits is {ring_bits}; it must be from 2 to 64"):
        protect_share(np.zeros(1), mechanism(), ring_bits=ring_bits, noise=seeded(0))


def test_headroom_by_hand() -> None:
    # C = 1,000 steps, n = 100, d = 10,000: 100 sqrt(1,003,550), noise 100 a share so 1,000 in all,
    # L = ln(20,000 x 2^40) = 37.6294, sqrt(2 L) = 8.67519, L/3 = 12.543.
    how = mechanism(clipping_norm=1.0, scale=1000.0, noise_multiplier=0.1 * math.sqrt(8))
    assert how.share_deviation == pytest.approx(100.0)
    found = largest_sum(how, dimension=10_000, clients=100)
    assert found == pytest.approx(100 * math.sqrt(1_003_550) + 8_675.19 + 12.543, rel=1e-6)


def test_ring_is_chosen_by_the_headroom() -> None:
    how = mechanism(clipping_norm=1.0, scale=2.0**20, noise_multiplier=1.0)
    assert required_ring_bits(how, dimension=100, clients=1_000) == 32
    assert required_ring_bits(how, dimension=100, clients=3_000) == 33
    with pytest.raises(CalibrationError, match="ring of 64 bits"):
        required_ring_bits(how, dimension=100, clients=2**44)
    with pytest.raises(ValueError, match="clients is 0"):
        required_ring_bits(how, dimension=100, clients=0)


@kinds
def test_tail_bound_of_the_headroom_holds_exactly(kind: str) -> None:
    # P(|sum of noise| >= t) against the true law of the sum, at the smallest share allowed.
    n, exponent = 12, math.log(2.0) + 40 * math.log(2.0)
    limit = 1.5 * math.sqrt(n) * math.sqrt(2 * exponent) + exponent / 3
    k = np.arange(-40, 41)
    share = stats.skellam.pmf(k, 1.125, 1.125) if kind == "skellam" else np.exp(-(k**2) / 4.5)
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, share / share.sum())
    distance = np.abs(np.arange(total.size) - total.size // 2)
    assert total[distance >= limit].sum() < 2.0**-40


@pytest.mark.parametrize("clipping_norm", [1e-6, 0.3, 1.0, 65_536.0, 1e9])
def test_default_scale_is_a_power_of_two_that_is_fine_enough(clipping_norm: float) -> None:
    scale = default_scale(clipping_norm)
    assert math.frexp(scale)[0] == 0.5
    assert 2.0**16 <= clipping_norm * scale < 2.0**17
    how = mechanism(clipping_norm=clipping_norm, scale=scale)
    assert how.rounded_norm(2**20) < clipping_norm * (1 + 1e-4)


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Eight shares: 1.5 sqrt(8) / (0.3 x 8192) = 0.0017264 is the least multiplier.
        ({"noise_multiplier": 0.00172}, "1.49.* steps of the grid; it must be from 1.5"),
        ({"noise_multiplier": 0.0}, "deviation of 0 steps"),
        ({"noise_multiplier": 1e9}, "to 2\\^21"),
        ({"scale": 3_333.0}, "999.9 steps of the grid; it must be from 1000"),
        ({"scale": 2.0**32}, "to 2\\^30"),
        ({"corrupt": 10}, "minimum_survivors is 10; it must be above corrupt, which is 10"),
        ({"corrupt": 11}, "no honest share"),
        ({"minimum_survivors": 0, "corrupt": 0}, "no honest share"),
    ],
)
def test_what_the_theorems_do_not_carry_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        mechanism(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"clipping_norm": math.nan},
        {"clipping_norm": 0.0},
        {"scale": math.inf},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": -1.0},
        {"corrupt": -1},
        {"kind": "laplace"},
        {"relation": "replace"},
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w+ is"):
        mechanism(**changes)


def test_the_least_noise_allowed_is_allowed() -> None:
    assert mechanism(noise_multiplier=0.0017265).share_deviation == pytest.approx(1.5, rel=1e-3)
    assert mechanism(scale=3_334.0).scaled_norm == pytest.approx(1000.2)


def test_a_pool_entry_is_no_sum() -> None:
    with pytest.raises(ValueError, match="channel is 'pool'; it must be 'sum'"):
        row(mechanism(), channel="pool")


# ----------------------------------------------------------------------------------- calibration

PLAN: dict[str, Any] = {
    "dimension": 2_048,
    "clipping_norm": 0.3,
    "minimum_survivors": 60,
    "corrupt": 10,
    "scale": default_scale(0.3),
}


def calibrated(target: float, rounds: int, **plan: Any) -> DistributedNoise:
    """The least noise with which so many sums fit the target, as a run is calibrated."""
    plan = dict(plan)
    dimension = plan.pop("dimension")

    def planned(multiplier: float) -> list[Release]:
        how = DistributedNoise(noise_multiplier=multiplier, **plan)
        return [dataclasses.replace(row(how, dimension), count=rounds)]

    least = smallest_multiplier(
        plan["clipping_norm"] * plan["scale"], plan["minimum_survivors"] - plan["corrupt"]
    )
    found = calibrate(planned, target, 1e-5, smallest=least)
    return DistributedNoise(noise_multiplier=found, **plan)


def spend(how: DistributedNoise, rounds: int) -> float:
    rows = [row(how, 2_048, round_number=number) for number in range(rounds)]
    return epsilon(rows, 1e-5).epsilon


@kinds
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize(("target", "rounds"), [(0.5, 1), (8.0, 10), (30.0, 3)])
def test_calibrated_noise_just_fits(kind: str, relation: Any, target: float, rounds: int) -> None:
    plan = PLAN | {"kind": kind, "relation": relation}
    how = calibrated(target, rounds, **plan)
    assert spend(how, rounds) <= target
    less = dataclasses.replace(how, noise_multiplier=how.noise_multiplier * (1 - 3e-6))
    assert spend(less, rounds) > target
    # Against the exact Gaussian: dearer by the conversion from concentrated DP alone.
    gaussian = calibrate_noise_multiplier(
        target, 1e-5, releases_per_round=1, rounds=rounds, relation=relation
    )
    assert gaussian < how.noise_multiplier < 1.13 * gaussian


def test_a_target_that_the_grid_overfulfils_gives_the_least_noise() -> None:
    how = calibrated(1e9, 1, **PLAN | {"scale": 4_000.0})
    assert how.share_deviation == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize(("scaled_norm", "shares"), [(1_000.0, 1), (65_536.0, 8), (2.0**30, 300)])
def test_the_smallest_multiplier_is_allowed_and_nothing_below(
    scaled_norm: float, shares: int
) -> None:
    changes: dict[str, Any] = {"clipping_norm": 0.5, "scale": 2.0 * scaled_norm}
    changes |= {"minimum_survivors": shares + 3, "corrupt": 3}
    least = smallest_multiplier(scaled_norm, shares)
    # Of a share it is 1.5 sqrt(shares) / C in steps of the grid.
    assert least == pytest.approx(1.5 * math.sqrt(shares) / scaled_norm, rel=1e-8)
    assert mechanism(**changes, noise_multiplier=least).share_deviation >= 1.5
    with pytest.raises(CalibrationError, match=r"must be from 1\.5"):
        mechanism(**changes, noise_multiplier=least * (1 - 1e-8))
    # Fewer shares than one are the class's to refuse, in its own words.
    assert smallest_multiplier(scaled_norm, -2) == smallest_multiplier(scaled_norm, 1)
    with pytest.raises(ValueError, match="scaled_norm is 0"):
        smallest_multiplier(0.0)


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        (math.nan, {}, "target_epsilon is nan"),
        (0.0, {}, "target_epsilon is 0"),
        (1.0, {"corrupt": 60}, "minimum_survivors is 60"),
        (1e-5, {"scale": 2.0**28}, "to 2\\^21"),
    ],
)
def test_calibration_refuses(target: float, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        calibrated(target, 1, **PLAN | changes)

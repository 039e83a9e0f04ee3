"""All of the integer noise on one client: its law, its price and its row."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privacy import (
    CalibrationError,
    DistributedNoise,
    IntegerNoise,
    IntegerUploadNoise,
    NonFiniteUpdate,
    SeededNoise,
    SignedGrid,
    SystemNoise,
    epsilon,
    protect_share,
)
from privacy.randomness import NoiseSource
from tests.privacy._rows import release_of

DELTA = 1e-5
ALPHA = 1e-9

# 1,000 steps of the grid to the norm, and noise of 700.
BASE = IntegerUploadNoise(clipping_norm=2.0, noise_multiplier=0.7, scale=500.0)


def mechanism(**changes: Any) -> IntegerUploadNoise:
    return dataclasses.replace(BASE, **changes)


def seeded(seed: int = 0) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def row(how: IntegerUploadNoise, dimension: int = 1, **changes: Any) -> Any:
    fields = {"run_id": "r", "round_number": 3, "attempt": 1, "pseudonym": "a"}
    return release_of(how, dimension, **fields | changes)


def steps(
    update: NDArray[np.float64], how: IntegerUploadNoise, noise: NoiseSource
) -> NDArray[np.float64]:
    """What leaves, in steps of the grid."""
    levels = how.protect(update, SignedGrid(how.scale, 64, 1), noise).levels
    return np.asarray(SignedGrid(1.0, 64, 1).dequantise(levels))


# ------------------------------------------------------------------------------------ the law


def law(deviation: float, reach: int) -> NDArray[np.float64]:
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / deviation) ** 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("noise", [SystemNoise(), seeded(2)], ids=["os", "seeded"])
@pytest.mark.parametrize("deviation", [1.5, 4.0])
def test_what_leaves_is_the_update_and_a_discrete_gaussian(
    noise: NoiseSource, deviation: float
) -> None:
    # An update on the grid is rounded to itself, so the difference is the noise alone.
    how, size = mechanism(noise_multiplier=deviation / 1_000.0), 60_000
    update = np.zeros(size)
    update[::2] = 1 / 500.0
    drawn = (steps(update, how, noise) - update * 500.0).astype(int)
    reach = math.ceil(3 * deviation)
    inside = np.clip(drawn, -reach - 1, reach + 1)
    found = np.bincount(inside + reach + 1, minlength=2 * reach + 3)
    exact = law(deviation, 60)
    middle = exact[60 - reach : 61 + reach]
    tail = exact[: 60 - reach].sum()
    wanted = size * np.concatenate([[tail], middle, [tail]])
    assert stats.chisquare(found, wanted).pvalue > ALPHA


def exact_epsilon(deviation: float, shift: int) -> float:
    """Epsilon of one coordinate that moves by `shift` steps, by summation of the exact law."""
    reach = math.ceil(14 * deviation) + shift
    p = law(deviation, reach)
    gap = np.zeros(shift)
    near, far = np.concatenate([p, gap]), np.concatenate([gap, p])
    low, high = 0.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        delta = float(np.maximum(near - math.exp(middle) * far, 0.0).sum())
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


@pytest.mark.parametrize(("relation", "times"), [("replace_one", 2), ("add_or_remove_one", 1)])
@pytest.mark.parametrize("multiplier", [0.7, 3.0, 20.0])
def test_the_price_is_above_the_exact_one_and_not_far(
    relation: Any, times: int, multiplier: float
) -> None:
    how = mechanism(relation=relation, noise_multiplier=multiplier)
    # In one dimension the bound after rounding is sqrt(1000^2 + 1/4 + 1000 + 1/2) = 1000.5 steps.
    exact = exact_epsilon(multiplier * 1_000.0, times * 1_000)
    bound = epsilon([row(how)], DELTA).epsilon
    assert exact <= bound <= 1.25 * exact + 0.02


@pytest.mark.parametrize(("relation", "times"), [("replace_one", 2), ("add_or_remove_one", 1)])
def test_neighbours_are_as_far_apart_as_the_row_says(relation: Any, times: int) -> None:
    how = mechanism(relation=relation)
    far = np.array([1e9, 0.0])
    other = -far if times == 2 else np.zeros(2)
    # The same coins: the noise cancels and what is left is how far a neighbour moved.
    apart = steps(far, how, seeded(1)) - steps(other, how, seeded(1))
    moved = float(np.linalg.norm(apart)) / 500.0
    assert 0.99 * times * 2.0 < moved <= row(how, 2).sensitivity


@pytest.mark.parametrize("kind", ["spread", "spike"])
def test_it_is_distributed_noise_of_a_single_share(kind: str) -> None:
    update = np.full(50, 1.0) if kind == "spread" else np.eye(1, 50)[0] * 9.0
    share = DistributedNoise(
        clipping_norm=2.0, noise_multiplier=0.7, minimum_survivors=1, corrupt=0, scale=500.0
    )
    one = mechanism().protect(update, SignedGrid(500.0, 32, 1), seeded(3))
    other = protect_share(update, share, ring_bits=32, noise=seeded(3))
    np.testing.assert_array_equal(one.levels, other.levels)
    assert (one.norm, one.was_clipped) == (other.norm, True)
    assert mechanism().standard_deviation == share.standard_deviation == 1.4
    assert mechanism().scaled_norm == 1_000.0


# ------------------------------------------------------------------------------------ the row


def test_the_row_by_hand() -> None:
    # 1000 steps and 10,000 coordinates: 1000^2 + 2500 + 1000 + 50 = 1,003,550 steps squared.
    found = row(mechanism(), 10_000)
    assert found.clipping_norm == pytest.approx(math.sqrt(1_003_550) / 500.0)
    assert found.sensitivity == 2.0 * found.clipping_norm
    assert found.standard_deviation == pytest.approx(1.4)
    assert (found.mechanism.name, found.channel, found.status) == (
        "upload_noise",
        "sum",
        "reserved",
    )
    assert (found.run_id, found.round_number, found.attempt, found.pseudonym) == ("r", 3, 1, "a")
    noise = found.law
    assert isinstance(noise, IntegerNoise)
    assert noise.share_deviation == pytest.approx(700.0)
    assert (noise.name, noise.shares, noise.corrupt) == ("discrete_gaussian", 1, 0)
    assert noise.dimension == 10_000


@pytest.mark.parametrize("channel", ["sum", "pool", "metrics"])
def test_it_may_go_anywhere_at_the_same_price(channel: str) -> None:
    found = row(mechanism(), 64, channel=channel, status="released")
    assert (found.channel, found.status) == (channel, "released")
    assert epsilon([found], DELTA) == epsilon([row(mechanism(), 64)], DELTA)


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clipping_norm": 0.0}, ValueError, "clipping_norm is 0"),
        ({"scale": math.nan}, ValueError, "scale is nan"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier is nan"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier is -1"),
        ({"relation": "swap"}, ValueError, "relation is 'swap'"),
        ({"noise_multiplier": 0.0014}, CalibrationError, "1.4 steps of the grid"),
        ({"noise_multiplier": 0.0}, CalibrationError, "deviation of 0 steps"),
        ({"noise_multiplier": 2_098.0}, CalibrationError, "to 2\\^21"),
        ({"scale": 499.0}, CalibrationError, "998 steps of the grid; it must be from 1000"),
    ],
)
def test_what_no_theorem_covers_is_refused_at_once(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mechanism(**changes)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_updates_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(NonFiniteUpdate):
        steps(np.array([0.0, value]), mechanism(), seeded())


def test_a_bare_generator_is_no_noise_source() -> None:
    bare: Any = np.random.default_rng(0)
    with pytest.raises(TypeError, match="noise is a Generator"):
        steps(np.zeros(3), mechanism(), bare)

"""Levels carry sums within half a step per unit of weight, and say when they cannot."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import CalibrationError, NonFiniteUpdate, ProtocolViolation
from privacy.grids import Quantiser


def test_hand_worked_levels() -> None:
    # 2 bits over [-3, 3]: levels 0..3 stand for -3, -1, 1, 3.
    quantiser = Quantiser(3.0, 2)
    assert quantiser.step == 2.0
    result = quantiser.quantise(np.array([-3.0, -1.9, -0.1, 0.2, 2.1, 3.0]))
    np.testing.assert_array_equal(result.levels, [0, 1, 1, 2, 3, 3])
    assert result.levels.dtype == np.uint64
    assert result.saturated == 0
    np.testing.assert_array_equal(quantiser.dequantise(result.levels), [-3, -1, -1, 1, 3, 3])


def test_hand_worked_weighted_sum() -> None:
    # Weights 1 and 2 of the values -1 (level 1) and 3 (level 3): the sum is 5, not the mean.
    quantiser = Quantiser(3.0, 2)
    total = np.array([1 * 1 + 2 * 3], dtype=np.uint64)
    np.testing.assert_array_equal(quantiser.dequantise_sum(total, 3), [5.0])


@given(
    bits=st.integers(2, 32),
    value_bound=st.floats(1e-6, 1e6),
    clients=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    uniform=st.booleans(),
)
def test_sum_is_within_half_a_step_per_unit_of_weight(
    bits: int, value_bound: float, clients: int, seed: int, *, uniform: bool
) -> None:
    rng = np.random.default_rng(seed)
    quantiser = Quantiser(value_bound, bits)
    updates = rng.uniform(-value_bound, value_bound, (clients, 16))
    weights = np.ones(clients, dtype=int) if uniform else rng.integers(1, 500, clients)
    total = np.zeros(16, dtype=np.uint64)
    for update, weight in zip(updates, weights, strict=True):
        quantised = quantiser.quantise(update)
        assert quantised.saturated == 0
        total += np.uint64(weight) * quantised.levels
    weight = int(weights.sum())
    error = np.abs(quantiser.dequantise_sum(total, weight) - weights @ updates)
    rounding = 1e-13 * weight * value_bound
    assert error.max() <= 0.5 * weight * quantiser.step * (1 + 1e-6) + rounding


def test_low_bits_of_a_huge_sum_survive() -> None:
    # Totals near 2^63 differ by one level, which float64 could not tell apart.
    quantiser = Quantiser(1.0, 32)
    weight = 2**31
    middle = weight * quantiser.largest_level // 2
    totals = np.array([middle, middle + 1, middle - 1], dtype=np.uint64)
    values = quantiser.dequantise_sum(totals, weight) / quantiser.step
    np.testing.assert_allclose(values, [0.0, 1.0, -1.0])


def test_extreme_totals_of_the_largest_weight() -> None:
    quantiser = Quantiser(1.0, 32)
    weight = (2**64 - 1) // quantiser.largest_level
    totals = np.array([0, weight * quantiser.largest_level], dtype=np.uint64)
    np.testing.assert_allclose(quantiser.dequantise_sum(totals, weight), [-weight, weight])


def test_saturation_is_counted_and_cut() -> None:
    quantiser = Quantiser(1.0, 8)
    result = quantiser.quantise(np.array([-1.0, 1.0, 1.0001, -7.0, 0.0]))
    assert result.saturated == 2
    np.testing.assert_array_equal(result.levels[:4], [0, 255, 255, 0])


@given(st.floats(1e-6, 1e6), st.integers(2, 32))
def test_the_bound_itself_never_saturates_nor_overflows(value_bound: float, bits: int) -> None:
    quantiser = Quantiser(value_bound, bits)
    result = quantiser.quantise(np.array([-value_bound, value_bound]))
    np.testing.assert_array_equal(result.levels, [0, 2**bits - 1])
    assert result.saturated == 0


@pytest.mark.parametrize(
    ("bits", "weight", "ring"),
    [
        (8, 1, 16),  # none is smaller than 16
        (8, 257, 16),  # 257 x 255 = 2^16 - 1 just fits
        (8, 258, 17),
        (16, 1, 16),
        (16, 2, 17),
        (16, 65_537, 32),  # 65537 x 65535 = 2^32 - 1 just fits
        (16, 65_538, 33),
        (32, 1, 32),
        (32, 2, 33),
        (32, 2**32 + 1, 64),  # (2^32 + 1)(2^32 - 1) = 2^64 - 1 just fits
        (20, 0, 16),
    ],
)
def test_smallest_ring_without_wrap_around(bits: int, weight: int, ring: int) -> None:
    assert Quantiser(1.0, bits).ring_bits(weight) == ring


def test_no_ring_is_large_enough() -> None:
    with pytest.raises(CalibrationError, match="wraps around"):
        Quantiser(1.0, 32).ring_bits(2**32 + 2)


def test_a_sum_above_what_the_weight_can_give_is_refused() -> None:
    quantiser = Quantiser(1.0, 8)
    quantiser.dequantise_sum(np.array([510], dtype=np.uint64), 2)
    with pytest.raises(
        ProtocolViolation,
        match="above what so many clients can",
    ):
        quantiser.dequantise_sum(np.array([511], dtype=np.uint64), 2)
    with pytest.raises(ProtocolViolation):
        quantiser.dequantise(np.array([256], dtype=np.uint64))


def test_ring_of_32_bits_may_come_as_such() -> None:
    quantiser = Quantiser(3.0, 2)
    np.testing.assert_array_equal(quantiser.dequantise_sum(np.array([7], np.uint32), 3), [5.0])


def test_empty_vectors_and_empty_sums() -> None:
    quantiser = Quantiser(1.0, 8)
    assert quantiser.quantise(np.zeros(0)).levels.shape == (0,)
    assert quantiser.dequantise_sum(np.zeros(0, dtype=np.uint64), 5).shape == (0,)
    np.testing.assert_array_equal(quantiser.dequantise_sum(np.zeros(2, dtype=np.uint64), 0), [0, 0])


def test_wrong_arguments_are_refused() -> None:
    quantiser = Quantiser(1.0, 8)
    with pytest.raises(NonFiniteUpdate):
        quantiser.quantise(np.array([np.nan]))
    with pytest.raises(ValueError, match="unsigned"):
        quantiser.dequantise(np.array([1, 2]))
    with pytest.raises(ValueError, match="total_weight"):
        quantiser.ring_bits(-1)
    for value_bound, bits in [(0.0, 8), (np.inf, 8), (1.0, 1), (1.0, 33)]:
        with pytest.raises(ValueError, match=r"value_bound|bits"):
            Quantiser(value_bound, bits)


def test_quantisers_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Quantiser(1.0, 8).bits = 9  # type: ignore[misc]

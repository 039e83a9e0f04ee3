"""Integers go round the ring and come back as what they were."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import CalibrationError, NonFiniteUpdate, ProtocolViolation
from privacy.grids import Quantiser, SignedGrid


def words(signed, bits):
    """Two's complement by Python's integers, which know no width."""
    return np.array([value % 2**bits for value in signed], dtype=np.uint64)


@pytest.mark.parametrize("bits", [2, 33, 64])
def test_twos_complement_by_hand_at_every_width(bits):
    half = 2 ** (bits - 1)
    signed = [-half, -half + 1, -1, 0, 1, half - 1]
    grid = SignedGrid(2.0**13, bits, 1)
    found = grid.dequantise(words(signed, bits))
    np.testing.assert_array_equal(found, np.array([float(value) for value in signed]) / 2.0**13)
    assert found.dtype == np.float64
    # The extremes by their bits: 100...0 is the lowest, 011...1 the highest, 111...1 is -1.
    extremes = np.array([half, half - 1, 2 * half - 1], dtype=np.uint64)
    lowest, highest, minus_one = grid.dequantise(extremes)
    assert (lowest, minus_one) == (-float(half) / 2**13, -1 / 2**13)
    assert highest == float(half - 1) / 2**13
    assert grid.largest_level == 2 * half - 1


@given(
    bits=st.integers(2, 64), values=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=40)
)
def test_sums_modulo_the_ring_are_right_up_to_its_size(bits, values):
    total = np.zeros(1, dtype=np.uint64)
    for value in values:
        total += words([value], bits)
    grid = SignedGrid(1.0, bits, len(values))
    found = int(grid.dequantise_sum(total & np.uint64(2**bits - 1), len(values))[0])
    # Half a ring is the most; what comes out is the sum's nearest representative.
    half = 2 ** (bits - 1)
    wanted = (sum(values) + half) % (2 * half) - half
    assert found == int(float(wanted))


def test_how_many_were_summed_changes_the_check_and_not_the_values():
    grid, levels = SignedGrid(4.0, 32, 3), words([-8, 6], 32)
    for weight in range(4):
        np.testing.assert_array_equal(grid.dequantise_sum(levels, weight), [-2.0, 1.5])
        assert grid.ring_bits(weight) == 32
    for ask in (grid.ring_bits, lambda weight: grid.dequantise_sum(levels, weight)):
        with pytest.raises(CalibrationError, match=r"3 clients .* of 4"):
            ask(4)
        with pytest.raises(ValueError, match="total_weight is -1"):
            ask(-1)


@pytest.mark.parametrize("bits", [2, 63])
def test_levels_outside_the_ring_are_refused(bits):
    grid = SignedGrid(1.0, bits, 1)
    grid.dequantise(np.array([2**bits - 1], dtype=np.uint64))
    with pytest.raises(ValueError, match=f"at or above 2\\^{bits}"):
        grid.dequantise(np.array([0, 2**bits], dtype=np.uint64))
    with pytest.raises(ValueError, match="unsigned integers"):
        grid.dequantise(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("scale", "bits", "clients", "message"),
    [
        (math.inf, 32, 1, "scale is inf"),
        (1.0, 32, 0, "clients is 0"),
        (1.0, 1, 1, "bits is 1; it must be from 2 to 64"),
        (1.0, 65, 1, "bits is 65"),
    ],
)
def test_grids_that_carry_nothing_are_refused(scale, bits, clients, message):
    with pytest.raises(ValueError, match=message):
        SignedGrid(scale, bits, clients)


def squared(steps):
    """In exact integers, as any of them may be."""
    return sum(step * step for step in steps)


def signed(levels, bits):
    half = 1 << (bits - 1)
    return [int(level) - (int(level) >= half) * 2 * half for level in levels]


@given(
    bits=st.sampled_from([16, 23, 32, 63, 64]),
    longest=st.one_of(st.integers(1, 2**20), st.integers(2**58, 2**62)),
    steps=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    size=st.integers(0, 63),
)
def test_what_is_admitted_is_never_longer_than_asked(bits, longest, steps, size):
    grid = SignedGrid(1.0, bits, 1, longest)
    sent = np.array([(step >> size) % 2**bits for step in steps], np.uint64)
    before, after = signed(sent, bits), signed(grid.admit(sent), bits)
    assert squared(after) <= longest
    if squared(before) <= longest:
        assert after == before
        return
    # It is shortened in its own direction, by whole steps towards zero.
    factor = math.sqrt(longest / squared(before))
    for was, now in zip(before, after, strict=True):
        assert was * now >= 0 and abs(now) <= abs(was)
        assert abs(now) == pytest.approx(abs(was) * factor, rel=1e-2, abs=2.0)


@pytest.mark.parametrize(
    "grid", [SignedGrid(1.0, 16, 1, 9), SignedGrid(1.0, 16, 1), Quantiser(1.0, 16)]
)
@pytest.mark.parametrize(
    "sent",
    [
        np.array([2**16], np.uint64),
        np.array([1.0, 2.0**46]),
        np.array([np.nan]),
        np.array([1, 2], np.int64),
        np.array([[1, 2]], np.uint64),
        np.uint64(3),
    ],
    ids=["beyond the grid", "numbers", "no number", "signed", "a matrix", "a single one"],
)
def test_what_is_no_vector_of_levels_is_not_admitted(grid, sent):
    with pytest.raises(ProtocolViolation, match="an upload") as caught:
        grid.admit(np.asarray(sent))
    assert not any(character.isdigit() for character in str(caught.value))


def test_hand_worked_levels():
    # 2 bits over [-3, 3]: levels 0..3 stand for -3, -1, 1, 3.
    quantiser = Quantiser(3.0, 2)
    assert quantiser.step == 2.0
    result = quantiser.quantise(np.array([-3.0, -1.9, -0.1, 0.2, 2.1, 3.0]))
    np.testing.assert_array_equal(result.levels, [0, 1, 1, 2, 3, 3])
    assert result.levels.dtype == np.uint64
    assert result.saturated == 0
    np.testing.assert_array_equal(quantiser.dequantise(result.levels), [-3, -1, -1, 1, 3, 3])


@given(
    bits=st.integers(2, 32),
    value_bound=st.floats(1e-6, 1e6),
    clients=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    uniform=st.booleans(),
)
def test_sum_is_within_half_a_step_per_unit_of_weight(bits, value_bound, clients, seed, *, uniform):
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


def test_low_bits_of_a_huge_sum_survive():
    # Totals near 2^63 differ by one level, which float64 could not tell apart.
    quantiser = Quantiser(1.0, 32)
    weight = 2**31
    middle = weight * quantiser.largest_level // 2
    totals = np.array([middle, middle + 1, middle - 1], dtype=np.uint64)
    values = quantiser.dequantise_sum(totals, weight) / quantiser.step
    np.testing.assert_allclose(values, [0.0, 1.0, -1.0])


@pytest.mark.parametrize(
    ("bits", "weight", "ring"),
    [
        (8, 1, 16),  # none is smaller than 16
        (8, 257, 16),  # 257 x 255 = 2^16 - 1 just fits
        (8, 258, 17),
        (16, 65_537, 32),  # 65537 x 65535 = 2^32 - 1 just fits
        (16, 65_538, 33),
        (32, 2**32 + 1, 64),  # (2^32 + 1)(2^32 - 1) = 2^64 - 1 just fits
        (20, 0, 16),
    ],
)
def test_smallest_ring_without_wrap_around(bits, weight, ring):
    assert Quantiser(1.0, bits).ring_bits(weight) == ring
    with pytest.raises(CalibrationError, match="wraps around"):
        Quantiser(1.0, 32).ring_bits(2**32 + 2)


def test_a_sum_above_what_the_weight_can_give_is_refused():
    quantiser = Quantiser(1.0, 8)
    quantiser.dequantise_sum(np.array([510], dtype=np.uint64), 2)
    with pytest.raises(ProtocolViolation, match="above what"):
        quantiser.dequantise_sum(np.array([511], dtype=np.uint64), 2)
    with pytest.raises(ProtocolViolation):
        quantiser.dequantise(np.array([256], dtype=np.uint64))


def test_quantisers_that_mean_nothing_are_refused():
    quantiser = Quantiser(1.0, 8)
    with pytest.raises(NonFiniteUpdate):
        quantiser.quantise(np.array([np.nan]))
    with pytest.raises(ValueError, match="total_weight"):
        quantiser.ring_bits(-1)
    for value_bound, bits in [(0.0, 8), (np.inf, 8), (1.0, 1), (1.0, 33)]:
        with pytest.raises(ValueError, match=r"value_bound|bits"):
            Quantiser(value_bound, bits)

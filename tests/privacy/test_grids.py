"""Integers go round the ring and come back as what they were."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy import CalibrationError, ProtocolViolation, Quantiser, SignedGrid
from privacy.grids import Grid

widths = pytest.mark.parametrize("bits", range(2, 65))


def words(signed: list[int], bits: int) -> np.typing.NDArray[np.uint64]:
    """Two's complement by Python's integers, which know no width."""
    return np.array([value % 2**bits for value in signed], dtype=np.uint64)


@widths
def test_twos_complement_by_hand_at_every_width(bits: int) -> None:
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
    bits=st.integers(2, 64),
    values=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=40),
)
def test_sums_modulo_the_ring_are_right_up_to_its_size(bits: int, values: list[int]) -> None:
    total = np.zeros(1, dtype=np.uint64)
    for value in values:
        total += words([value], bits)
    grid = SignedGrid(1.0, bits, len(values))
    found = int(grid.dequantise_sum(total & np.uint64(2**bits - 1), len(values))[0])
    # Half a ring is the most; what comes out is the sum's nearest representative.
    half = 2 ** (bits - 1)
    wanted = (sum(values) + half) % (2 * half) - half
    assert found == int(float(wanted))


@given(st.integers(2, 64), st.data())
def test_sums_that_fit_are_exact(bits: int, data: st.DataObject) -> None:
    reach = (2 ** (bits - 1) - 1) // 5
    values = data.draw(st.lists(st.integers(-reach, reach), min_size=5, max_size=5))
    total = np.zeros(1, dtype=np.uint64)
    for value in values:
        total += words([value], bits)
    found = SignedGrid(1.0, bits, 5).dequantise_sum(total & np.uint64(2**bits - 1), 5)
    assert found[0] == float(sum(values))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_every_unsigned_word_is_read(dtype: type[np.unsignedinteger]) -> None:
    found = SignedGrid(4.0, 8, 3).dequantise_sum(np.array([255, 128, 127, 4], dtype=dtype), 3)
    np.testing.assert_array_equal(found, [-0.25, -32.0, 31.75, 1.0])


def test_the_empty_vector_and_the_empty_sum() -> None:
    grid = SignedGrid(4.0, 32, 3)
    assert grid.dequantise(np.zeros(0, np.uint64)).shape == (0,)
    np.testing.assert_array_equal(grid.dequantise_sum(np.zeros(2, np.uint64), 0), [0.0, 0.0])


def test_how_many_were_summed_changes_the_check_and_not_the_values() -> None:
    grid, levels = SignedGrid(4.0, 32, 3), words([-8, 6], 32)
    for weight in range(4):
        np.testing.assert_array_equal(grid.dequantise_sum(levels, weight), [-2.0, 1.5])
        assert grid.ring_bits(weight) == 32
    for ask in (grid.ring_bits, lambda weight: grid.dequantise_sum(levels, weight)):
        with pytest.raises(CalibrationError, match=r"ring for 3 clients .* sum of 4"):
            ask(4)
        with pytest.raises(ValueError, match="total_weight is -1; it must not be negative"):
            ask(-1)


@pytest.mark.parametrize("bits", [2, 8, 33, 63])
def test_levels_outside_the_ring_are_refused(bits: int) -> None:
    grid = SignedGrid(1.0, bits, 1)
    grid.dequantise(np.array([2**bits - 1], dtype=np.uint64))
    with pytest.raises(ValueError, match=f"at or above 2\\^{bits}, the ring's size"):
        grid.dequantise(np.array([0, 2**bits], dtype=np.uint64))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.bool_])
def test_levels_that_are_no_unsigned_integers_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(ValueError, match="must be unsigned integers"):
        SignedGrid(1.0, 32, 1).dequantise(np.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("scale", "bits", "clients", "message"),
    [
        (0.0, 32, 1, "scale is 0"),
        (math.nan, 32, 1, "scale is nan"),
        (math.inf, 32, 1, "scale is inf"),
        (1.0, 32, 0, "clients is 0"),
        (1.0, 1, 1, "bits is 1; it must be from 2 to 64"),
        (1.0, 65, 1, "bits is 65"),
    ],
)
def test_grids_that_carry_nothing_are_refused(
    scale: float, bits: int, clients: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SignedGrid(scale, bits, clients)


@pytest.mark.parametrize(
    ("grid", "ring"), [(SignedGrid(100.0, 32, 4), 32), (Quantiser(2.0, 16), 18)]
)
def test_both_grids_keep_the_protocol(grid: Grid, ring: int) -> None:
    levels = np.array([0, 1, grid.largest_level], dtype=np.uint64)
    np.testing.assert_array_equal(grid.dequantise(levels), grid.dequantise_sum(levels, 1))
    # Four levels of 16 bits reach 4 x 65,535 < 2^18.
    assert grid.ring_bits(4) == ring


# ------------------------------------------------------------------------- uploads without a mask


def squared(steps: list[int]) -> int:
    """In exact integers, as any of them may be."""
    return sum(step * step for step in steps)


def signed(levels: NDArray[np.uint64], bits: int) -> list[int]:
    half = 1 << (bits - 1)
    return [int(level) - (int(level) >= half) * 2 * half for level in levels]


@given(
    bits=st.sampled_from([16, 23, 32, 63, 64]),
    longest=st.one_of(st.integers(1, 2**20), st.integers(2**58, 2**62)),
    steps=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    size=st.integers(0, 63),
)
def test_what_is_admitted_is_never_longer_than_asked(
    bits: int, longest: int, steps: list[int], size: int
) -> None:
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


def test_noised_uploads_are_never_shortened() -> None:
    sent = np.array([2**15, 2**16 - 1, 5], np.uint64)
    assert SignedGrid(1.0, 16, 1).admit(sent).tolist() == sent.tolist()
    assert Quantiser(1.0, 16).admit(sent).tolist() == sent.tolist()


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
def test_what_is_no_vector_of_levels_is_not_admitted(grid: Grid, sent: NDArray[Any]) -> None:
    with pytest.raises(ProtocolViolation, match="an upload") as caught:
        grid.admit(np.asarray(sent))
    assert not any(character.isdigit() for character in str(caught.value))


@given(st.integers(-(2**40), 2**40), st.floats(-1e12, 1e12))
def test_rounded_noise_on_an_integer_is_the_noised_integer_rounded(step: int, drawn: float) -> None:
    """Why rounding the noise is post-processing; ties, of probability zero, go to even numbers."""
    assume(abs(Fraction(drawn) - math.floor(drawn) - Fraction(1, 2)) > 0)
    assert step + round(Fraction(drawn)) == round(step + Fraction(drawn))

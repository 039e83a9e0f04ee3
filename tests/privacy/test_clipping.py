"""Nothing leaves longer than C, in exact arithmetic; a norm that adapts finds its quantile."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy import (
    AdaptiveClipping,
    CentralNoise,
    NoisedMetric,
    SeededNoise,
    grid_of,
    protect_upload,
)
from privacy.clipping import clip
from privacy.errors import NonFiniteUpdate, SensitivityViolation
from tests.privacy._rows import release_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VECTORS = hnp.arrays(np.float64, st.integers(0, 40), elements=FINITE)
NORMS = st.floats(1e-100, 1e100)


def exact_square(vector):
    return sum((Fraction(float(x)) ** 2 for x in vector), Fraction(0))


@given(VECTORS, NORMS)
def test_exact_norm_never_exceeds_the_clipping_norm(vector, clipping_norm):
    result = clip(vector, clipping_norm)
    assert exact_square(result.vector) <= Fraction(clipping_norm) ** 2


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_exact_norm_holds_at_the_boundary(size):
    # Vectors scaled to C by hand land on either side of it by rounding: the hard case.
    rng = np.random.default_rng(size)
    for clipping_norm in (0.1, 1.0, 3.7):
        vector = rng.standard_normal(size)
        vector *= clipping_norm / np.linalg.norm(vector)
        result = clip(vector, clipping_norm)
        assert exact_square(result.vector) <= Fraction(clipping_norm) ** 2
        np.testing.assert_allclose(result.vector, vector, rtol=1e-11)


def test_long_vector_keeps_its_direction_and_uses_the_whole_ball():
    result = clip(np.array([30.0, 40.0]), 5.0)
    np.testing.assert_allclose(result.vector, [3.0, 4.0], rtol=1e-13)
    assert (result.norm, result.was_clipped) == (50.0, True)


def test_short_vector_passes_bit_for_bit_as_a_copy():
    vector = np.array([0.3, -0.4])
    result = clip(vector, 1.0)
    np.testing.assert_array_equal(result.vector, vector)
    assert result.vector is not vector
    assert (result.norm, result.was_clipped) == (0.5, False)


@pytest.mark.parametrize("scale", [1e-300, 1e308])
def test_squares_that_overflow_or_vanish(scale):
    result = clip(np.array([0.6, 0.8]) * scale, 1.0)
    expected = np.array([0.6, 0.8]) * min(1.0, scale)
    np.testing.assert_allclose(result.vector, expected, rtol=1e-13)
    assert result.norm == pytest.approx(scale)


@pytest.mark.parametrize("cut", [clip, AdaptiveClipping().append_flag])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_non_finite_updates_are_refused_without_their_position(cut, bad):
    with pytest.raises(NonFiniteUpdate, match="not finite") as caught:
        cut(np.array([1.0, 2.0, bad, bad]), 1.0)
    assert not any(character.isdigit() for character in str(caught.value))
    assert isinstance(caught.value, SensitivityViolation)


@pytest.mark.parametrize("clipping_norm", [0.0, -1.0, np.nan, np.inf])
def test_meaningless_norms_are_refused(clipping_norm):
    with pytest.raises(ValueError, match="clipping_norm"):
        clip(np.ones(2), clipping_norm)


def test_a_matrix_is_refused():
    with pytest.raises(ValueError, match="2 axes"):
        clip(np.ones((2, 2)), 1.0)


UPDATES = hnp.arrays(np.float64, st.integers(0, 30), elements=st.floats(-1e6, 1e6))


def test_flag_by_hand():
    adaptive = AdaptiveClipping(flag_ratio=0.1)
    short = adaptive.append_flag(np.array([3.0, 4.0]), 10.0)
    np.testing.assert_array_equal(short.vector, [3.0, 4.0, 1.0])
    assert (short.norm, short.was_clipped) == (5.0, False)
    long = adaptive.append_flag(np.array([30.0, 40.0]), 10.0)
    np.testing.assert_allclose(long.vector, [6.0, 8.0, -1.0], rtol=1e-12)
    assert (long.norm, long.was_clipped) == (50.0, True)
    # sqrt(4^2 + 3^2) = 5 where b is three quarters of C.
    assert AdaptiveClipping(flag_ratio=0.75).joint_norm(4.0) == 5.0


@given(UPDATES, st.floats(1e-6, 1e6), st.floats(1e-3, 1.0))
def test_update_and_flag_together_are_within_the_joint_norm(update, clipping_norm, flag_ratio):
    adaptive = AdaptiveClipping(flag_ratio=flag_ratio)
    result = adaptive.append_flag(update, clipping_norm)
    assert result.vector.size == update.size + 1
    joint = adaptive.joint_norm(clipping_norm)
    # The bound is sqrt(C^2 + b^2), up to the last bits of the float that holds it.
    exact = Fraction(clipping_norm) ** 2 * (1 + Fraction(flag_ratio) ** 2)
    assert abs(Fraction(joint) ** 2 / exact - 1) < Fraction(2) ** -50
    assert exact_square(result.vector[:-1]) <= Fraction(clipping_norm) ** 2
    # The flag is a product rounded once: at most an ulp beyond b, and then only with an update
    # that is all of C within the clip's margin.
    flag = Fraction(abs(float(result.vector[-1])))
    assert abs(flag / (Fraction(flag_ratio) * Fraction(clipping_norm)) - 1) <= Fraction(2) ** -53
    if update.size:
        assert exact_square(result.vector) <= Fraction(joint) ** 2


@settings(max_examples=60, deadline=None)
@given(UPDATES, st.floats(1e-3, 1e3), st.floats(0.01, 10.0), st.integers(0, 2**32))
def test_what_is_noised_is_within_the_norm_of_the_ledger(update, clipping_norm, flag_ratio, seed):
    # The mechanism clips once more at the joint norm, so the row holds whatever came before.
    adaptive = AdaptiveClipping(flag_ratio=flag_ratio)
    joint = adaptive.joint_norm(clipping_norm)
    mechanism = CentralNoise(clipping_norm=joint, noise_multiplier=1.0, scale=4_096.0 / joint)
    flagged = adaptive.append_flag(update, clipping_norm).vector
    grid = grid_of(mechanism, flagged.size, bits=16, clients=1)
    noise = SeededNoise(np.random.default_rng(seed))
    sent = grid.dequantise(protect_upload(flagged, mechanism, grid, noise).levels)
    row = release_of(mechanism, flagged.size)
    assert float(np.linalg.norm(sent)) <= row.clipping_norm * (1 + 1e-12)
    assert row.clipping_norm >= joint
    # And the second clipping does not touch the flag: it comes back within a step.
    assert abs(sent[-1] - flagged[-1]) <= 1.0 / mechanism.scale


@given(st.lists(st.booleans(), min_size=1, max_size=50), st.floats(1e-6, 1e6))
def test_the_mean_flag_says_how_many_were_clipped(clipped, norm):
    adaptive = AdaptiveClipping(flag_ratio=0.3)
    flags = [
        float(adaptive.append_flag(np.array([norm * (3.0 if far else 0.3)]), norm).vector[-1])
        for far in clipped
    ]
    fraction = adaptive.clipped_fraction(sum(flags) / len(flags), norm)
    assert fraction == pytest.approx(sum(clipped) / len(clipped), abs=1e-12)


@pytest.mark.parametrize(
    ("mean_flag", "fraction"),
    # b = 0.2: (1 + mean / b) / 2 fitted, cut to [0, 1].
    [(0.2, 0.0), (0.1, 0.25), (0.0, 0.5), (-0.2, 1.0), (0.5, 0.0), (-9.0, 1.0)],
)
def test_noised_flags_are_cut_to_a_fraction(mean_flag, fraction):
    assert AdaptiveClipping().clipped_fraction(mean_flag, 2.0) == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("clipped_fraction", "factor"),
    # Andrew et al. 2021, Algorithm 1: C exp(-0.2 (f - 0.5)) with f = 1 - clipped.
    [(0.5, 1.0), (0.0, math.exp(-0.1)), (0.25, math.exp(-0.05))],
)
def test_next_norm_by_hand(clipped_fraction, factor):
    assert AdaptiveClipping().next_norm(3.0, clipped_fraction) == pytest.approx(3.0 * factor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantile": 0.0}, "quantile is 0.0; it must lie strictly between 0 and 1"),
        ({"quantile": 1.0}, "quantile is 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0"),
        ({"flag_ratio": math.inf}, "flag_ratio is inf"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveClipping(**changes)


def test_coordinate_of_a_metric_by_hand():
    metric = NoisedMetric(ratio=0.5)
    assert metric.bound(4.0) == 2.0
    # b = 0.5 x 4 = 2: 2 (2a - 1).
    for value, coordinate in ((0.0, -2.0), (0.25, -1.0), (1.0, 2.0)):
        assert metric.coordinate(value, 4.0) == pytest.approx(coordinate, abs=1e-15)
        assert metric.mean(coordinate, 4.0) == pytest.approx(value, abs=1e-15)
    # The mean is not cut.
    metric = NoisedMetric()
    assert metric.mean(3.0, 1.0) == 2.0
    assert metric.mean(-2.0, 1.0) == -0.5
    # A mean coordinate of deviation 0.6 is an accuracy of deviation 0.6 / (2 x 1.5).
    assert NoisedMetric(ratio=0.5).deviation(0.6, 3.0) == pytest.approx(0.2)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e3),
)
def test_the_mean_of_the_coordinates_is_that_of_the_shares(values, norm, ratio):
    metric = NoisedMetric(ratio=ratio)
    coordinates = [metric.coordinate(value, norm) for value in values]
    assert max(map(abs, coordinates)) <= metric.bound(norm)
    mean = float(np.mean(coordinates))
    assert metric.mean(mean, norm) == pytest.approx(float(np.mean(values)), abs=1e-12)


@pytest.mark.parametrize("value", [-1e-9, 1.0 + 1e-9, math.nan])
def test_what_is_no_share_or_ratio_is_refused(value):
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        NoisedMetric().coordinate(value, 1.0)
    for ratio in (0.0, math.nan):
        with pytest.raises(ValueError, match="ratio is"):
            NoisedMetric(ratio=ratio)

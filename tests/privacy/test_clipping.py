"""Nothing leaves `clip` longer than C, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privacy.clipping import clip
from privacy.errors import NonFiniteUpdate, SensitivityViolation

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VECTORS = hnp.arrays(np.float64, st.integers(0, 40), elements=FINITE)
NORMS = st.floats(1e-100, 1e100)


def exact_square(vector):
    return sum((Fraction(float(x)) ** 2 for x in vector), Fraction(0))


@given(VECTORS, NORMS)
def test_exact_norm_never_exceeds_the_clipping_norm(vector, clipping_norm):
    result = clip(vector, clipping_norm)
    assert exact_square(result.vector) <= Fraction(clipping_norm) ** 2


@pytest.mark.parametrize("size", [1, 3, 8192])
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_updates_are_refused_without_their_position(bad):
    with pytest.raises(NonFiniteUpdate, match="not finite") as caught:
        clip(np.array([1.0, 2.0, bad, bad]), 1.0)
    assert not any(character.isdigit() for character in str(caught.value))
    assert isinstance(caught.value, SensitivityViolation)


@pytest.mark.parametrize("clipping_norm", [0.0, -1.0, np.nan, np.inf])
def test_meaningless_norms_are_refused(clipping_norm):
    with pytest.raises(ValueError, match="clipping_norm"):
        clip(np.ones(2), clipping_norm)


def test_a_matrix_is_refused():
    with pytest.raises(ValueError, match="2 axes"):
        clip(np.ones((2, 2)), 1.0)

"""The norm of a sum: honest ones pass, shifted ones do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import largest_norm, require_plausible_norm


def test_without_noise_it_is_the_triangle_inequality():
    assert largest_norm(length=100, cohort_size=7, clipping_norm=2.0) == pytest.approx(14.0)
    rounded = largest_norm(length=100, cohort_size=7, clipping_norm=2.0, step=0.1)
    # Seven vectors are rounded, and the noise that is added to their sum.
    assert rounded == pytest.approx(14.0 + 8 * 0.05 * 10)


@pytest.mark.parametrize("length", [1, 1000])
def test_the_noise_term_covers_all_but_a_trillionth(length):
    bound = largest_norm(length=length, cohort_size=4, clipping_norm=0.0, noise_in_sum=6.0)
    tail = stats.chi2.sf((bound / 6.0) ** 2, length)
    assert 0 < tail <= 2.0**-40
    assert bound < 6.0 * (math.sqrt(length) + 12)


def test_honest_sums_pass_and_a_shifted_one_does_not():
    rng = np.random.default_rng(3)
    bound = largest_norm(
        length=500, cohort_size=10, clipping_norm=1.0, noise_in_sum=0.1 * math.sqrt(10)
    )
    for _ in range(50):
        vectors = rng.normal(size=(10, 500))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        total = vectors.sum(axis=0) + rng.normal(scale=0.1, size=(10, 500)).sum(axis=0)
        require_plausible_norm(total, bound)
    with pytest.raises(ProtocolViolation, match="longer than") as caught:
        require_plausible_norm(total + 3.0, bound)
    assert not any(character.isdigit() for character in str(caught.value))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ProtocolViolation):
        require_plausible_norm(np.array([0.0, value]), 1e9)

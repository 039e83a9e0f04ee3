"""Direct tests of noise: right noise passes as often as promised, wrong noise does not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest, pearsonr

from privacy.auditing import (
    AuditError,
    verify_distribution,
    verify_independence,
    verify_noise_variance,
)
from privacy.errors import NonFiniteUpdate

ALPHA = 1e-6


@pytest.mark.parametrize(
    "verify",
    [
        lambda noise: verify_noise_variance(noise, 2.0, 1e-12),
        lambda noise: verify_independence(noise.reshape(2, -1), 1e-12),
    ],
    ids=["variance", "independence"],
)
def test_p_values_of_right_noise_are_uniform(verify):
    rng = np.random.default_rng(0)
    p_values = [verify(2.0 * rng.standard_normal(10)) for _ in range(500)]
    assert kstest(p_values, "uniform").pvalue > 1e-4


def test_the_distribution_refuses_no_more_than_promised():
    rng = np.random.default_rng(1)
    p_values = [verify_distribution(rng.standard_normal(400), 1.0, 1e-12) for _ in range(80)]
    assert np.mean(np.array(p_values) < 0.1) <= 0.1 + 3 * np.sqrt(0.1 / 80)


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_another_variance_is_refused(factor):
    noise = factor * np.random.default_rng(2).standard_normal(20_000)
    with pytest.raises(AuditError, match="variance") as raised:
        verify_noise_variance(noise, 1.0, ALPHA)
    assert raised.value.p_value < ALPHA


def test_the_variance_test_is_the_chi_square_of_its_sample():
    # One sample at 1.959964 deviations: 5% on both sides of the normal law, but the chi-square
    # test doubles the smaller tail of the square.
    sample = np.array([1.959964])
    p_value = verify_noise_variance(sample, 1.0, 1e-9)
    assert p_value == pytest.approx(0.1, rel=1e-5)
    # Refused is what lies below alpha.
    assert verify_noise_variance(sample, 1.0, p_value) == p_value


@pytest.mark.parametrize(
    "shape",
    [
        lambda rng: rng.laplace(0.0, 2**-0.5, 20_000),
        lambda rng: np.clip(rng.standard_normal(20_000), -2.9, 2.9),
        lambda rng: np.where(rng.random(20_000) < 0.01, 0.0, rng.standard_normal(20_000)) * 0.9,
    ],
    ids=["laplace", "cut tails", "a little smaller"],
)
def test_another_law_of_about_the_same_variance_is_refused(shape):
    with pytest.raises(AuditError, match="not normal"):
        verify_distribution(shape(np.random.default_rng(4)), 1.0, ALPHA)


def noise_of(rounds=6, clients=5, size=200):
    return np.random.default_rng(5).standard_normal((rounds, clients, size))


@pytest.mark.parametrize(
    ("factor", "of", "to", "named"),
    [(-1.0, (1, 2), (4, 2), "7 and 22"), (1.0, (3, 0), (3, 4), "15 and 19")],
)
def test_a_vector_repeated_between_rounds_or_clients_is_refused(factor, of, to, named):
    noise = noise_of()
    noise[to] = factor * noise[of]
    with pytest.raises(AuditError, match=f"vectors {named}") as raised:
        verify_independence(noise, ALPHA)
    assert raised.value.p_value < 1e-100


def test_partly_shared_noise_is_refused():
    noise = noise_of()
    noise += 0.8 * np.random.default_rng(6).standard_normal(200)
    with pytest.raises(AuditError, match="correlated"):
        verify_independence(noise, ALPHA)


def test_a_missing_draw_is_refused():
    noise = noise_of()
    noise[0, 0] = 0.0
    with pytest.raises(AuditError, match="zero"):
        verify_independence(noise, ALPHA)


def test_correlation_has_students_p_value():
    """scipy's is for centred vectors of one more coordinate: rotate the mean away."""
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal((2, 9))
    basis = np.linalg.qr(np.column_stack([np.ones(10), rng.standard_normal((10, 9))]))[0][:, 1:]
    expected = pearsonr(basis @ x, basis @ y).pvalue
    assert verify_independence(np.stack([x, y]), 1e-12) == pytest.approx(expected, rel=1e-9)


def test_pairs_are_corrected_for_their_number():
    rng = np.random.default_rng(9)
    noise = rng.standard_normal((4, 30))
    noise[2] += 0.8 * noise[3]
    pairs = [noise[[i, j]] for i in range(4) for j in range(i)]
    smallest = min(verify_independence(pair, 1e-12) for pair in pairs)
    assert verify_independence(noise, 1e-12) == pytest.approx(6 * smallest, rel=1e-9)


def test_two_coordinates_do_not_confuse_near_with_equal():
    near = np.array([[1.0, 0.0], [1.0, 1e-9]])
    assert verify_independence(near, 1e-12) == pytest.approx(2e-9 / np.pi, rel=1e-6)


def test_what_is_not_finite_is_refused():
    noise = np.ones((2, 3))
    noise[1, 1] = np.inf
    with pytest.raises(NonFiniteUpdate):
        verify_independence(noise, ALPHA)
    with pytest.raises(NonFiniteUpdate):
        verify_noise_variance(noise[1], 1.0, ALPHA)


@pytest.mark.parametrize("shape", [(4,), (1, 5), (3, 1), (2, 2, 2, 2)])
def test_shapes_without_pairs_are_refused(shape):
    with pytest.raises(ValueError, match="rounds_of_noise"):
        verify_independence(np.ones(shape), ALPHA)


def test_no_samples_and_no_deviation_are_refused():
    with pytest.raises(ValueError, match="empty"):
        verify_noise_variance(np.empty(0), 1.0, ALPHA)
    with pytest.raises(ValueError, match="standard_deviation"):
        verify_distribution(np.ones(3), 0.0, ALPHA)

"""The arithmetic of the study on releases: what correlated noise costs a client, by brute force."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from benchmarks._correlated_noise import (
    best_bands,
    errors,
    prefix_sums,
    sensitivity,
    square_root,
)


def patterns(rounds: int, separation: int):
    """Every set of rounds that are at least so far apart."""
    for size in range(1, rounds + 1):
        for chosen in combinations(range(rounds), size):
            if all(later - earlier >= separation for earlier, later in pairwise(chosen)):
                yield chosen


def brute_force(factor: np.ndarray, separation: int) -> float:
    """The furthest that any client moves C x: all patterns, and each vector of either sign.

    The move is convex in each vector, so its largest is at vectors of norm 1; products of columns
    that are not negative make equal directions the worst, so one dimension is enough.
    """
    return max(
        float(np.linalg.norm(factor[:, list(chosen)] @ np.array(signs)))
        for chosen in patterns(len(factor), separation)
        for signs in product((-1.0, 1.0), repeat=len(chosen))
    )


@pytest.mark.parametrize("rounds", [1, 2, 5, 8])
@pytest.mark.parametrize("separation", [1, 2, 3, 5])
def test_sensitivity_is_the_furthest_of_all_patterns(rounds, separation):
    most = rounds if separation == 1 else min(rounds, separation)
    for bands in range(1, most + 1):
        factor = square_root(rounds, bands)
        expected = brute_force(factor, separation)
        assert sensitivity(factor, separation) == pytest.approx(expected, rel=1e-12)


def test_sensitivity_of_columns_of_any_length():
    """The longest columns need not be every b-th from the first on."""
    factor = np.diag([1.0, 3.0, 1.0, 1.0, 2.0, 5.0, 1.0])
    for separation in (2, 3, 4):
        assert sensitivity(factor, separation) == pytest.approx(brute_force(factor, separation))
    assert sensitivity(factor, 3) == pytest.approx(math.sqrt(9 + 25))


def test_columns_that_overlap_are_refused():
    with pytest.raises(ValueError, match="more than 2 diagonals"):
        sensitivity(square_root(6, 3), 2)
    with pytest.raises(ValueError, match="negative product"):
        sensitivity(np.array([[1.0, 0.0], [-1.0, 1.0]]), 1)


def test_the_square_root_by_hand_and_by_its_law():
    assert square_root(4, 4)[:, 0].tolist() == pytest.approx([1.0, 1 / 2, 3 / 8, 5 / 16])
    assert square_root(4, 2)[:, 0].tolist() == pytest.approx([1.0, 1 / 2, 0.0, 0.0])
    root = square_root(30, 30)
    np.testing.assert_allclose(root @ root, prefix_sums(30), atol=1e-12)
    assert np.array_equal(square_root(5, 1), np.eye(5))


def test_errors_of_independent_noise_by_hand():
    """A prefix of t rounds has the noise of t; a client is in every third of nine."""
    mean_square, last = errors(np.eye(9), 3)
    assert last == pytest.approx(math.sqrt(3) * math.sqrt(9))
    assert mean_square == pytest.approx(math.sqrt(3) * math.sqrt(5))


def test_errors_are_those_of_noise_that_is_drawn():
    """A x + B z with A = B C: z drawn, decoded by C's inverse, and summed up."""
    factor = square_root(6, 3)
    drawn = np.random.default_rng(1).standard_normal((6, 200_000)) * sensitivity(factor, 3)
    noise = np.cumsum(np.linalg.solve(factor, drawn), axis=0)
    found = np.sqrt((noise**2).mean(axis=1))
    mean_square, last = errors(factor, 3)
    assert found[-1] == pytest.approx(last, rel=0.01)
    assert math.sqrt((found**2).mean()) == pytest.approx(mean_square, rel=0.01)


def test_correlation_helps_a_rotation_and_nobody_who_is_always_there():
    bands, least = best_bands(20, 5)
    independent = errors(np.eye(20), 5)[0]
    assert bands == 5 and 1.5 < independent / least < 1.8
    assert best_bands(20, 1) == (1, pytest.approx(errors(np.eye(20), 1)[0]))

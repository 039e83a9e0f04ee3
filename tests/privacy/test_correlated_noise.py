"""The arithmetic of the study on releases: what correlated noise costs a client, by brute force."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from benchmarks._correlated_noise import errors, sensitivity, square_root


def patterns(rounds, separation):
    """Every set of rounds that are at least so far apart."""
    for size in range(1, rounds + 1):
        for chosen in combinations(range(rounds), size):
            if all(later - earlier >= separation for earlier, later in pairwise(chosen)):
                yield chosen


def brute_force(factor, separation):
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


def test_columns_that_overlap_are_refused():
    with pytest.raises(ValueError, match="more than 2 diagonals"):
        sensitivity(square_root(6, 3), 2)
    with pytest.raises(ValueError, match="negative product"):
        sensitivity(np.array([[1.0, 0.0], [-1.0, 1.0]]), 1)


def test_errors_are_those_of_noise_that_is_drawn():
    """A x + B z with A = B C: z drawn, decoded by C's inverse, and summed up."""
    factor = square_root(6, 3)
    drawn = np.random.default_rng(1).standard_normal((6, 200_000)) * sensitivity(factor, 3)
    noise = np.cumsum(np.linalg.solve(factor, drawn), axis=0)
    found = np.sqrt((noise**2).mean(axis=1))
    mean_square, last = errors(factor, 3)
    assert found[-1] == pytest.approx(last, rel=0.01)
    assert math.sqrt((found**2).mean()) == pytest.approx(mean_square, rel=0.01)

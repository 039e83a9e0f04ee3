"""Signal, noise and what a release costs: against the real code, simulation and brute force."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from benchmarks._correlated_noise import errors, sensitivity, square_root
from benchmarks._private_mean import PrivateMean
from privacy import CentralNoise, GroupCounts, SeededNoise, noise_in_sum, signal_to_noise
from privacy.central import noise_for_sum, protect_for_centre
from tests.privacy._walk import delta_of


@pytest.mark.parametrize(
    ("epsilon", "groups", "dimension", "rounds"), [(1.0, 1, 512, 10), (8.0, 4, 16, 5)]
)
def test_it_is_the_formula(epsilon, groups, dimension, rounds):
    mean = PrivateMean(
        epsilon=epsilon, delta=1e-5, rounds=rounds, dimension=dimension, groups=groups
    )
    # The Gaussian mechanism's mu, from its formula (Balle and Wang 2018).
    mu = brentq(lambda mu: delta_of(epsilon, mu) - 1e-5, 1e-3, 50.0, xtol=1e-12)
    expected = groups * 2.0 * math.sqrt(rounds * dimension) / mu
    assert mean.clients_needed() == pytest.approx(expected, abs=1.0)
    assert mean.clients_needed(coherence=0.5) == pytest.approx(2 * expected, abs=1.0)
    assert mean.signal_to_noise(mean.clients_needed()) >= 1.0
    assert mean.signal_to_noise(mean.clients_needed() - 1) < 1.0


def test_at_the_boundary_the_real_code_has_as_much_signal_as_noise():
    """Clients, mechanism, sum and division by the noised count, as a round has them."""
    groups, dimension, norm_bound = 3, 12, 0.2
    mean = PrivateMean(epsilon=8.0, delta=1e-5, rounds=4, dimension=dimension, groups=groups)
    rng = np.random.default_rng(3)
    counts = GroupCounts(groups=groups, ratio=1.0)
    mechanism = CentralNoise(
        clipping_norm=norm_bound,
        noise_multiplier=mean.noise_multiplier,
        scale=2.0**20,
        counts=counts,
    )
    towards = np.eye(dimension)[0]
    each = []
    for _ in range(400):
        update = towards + 0.3 * rng.normal(size=dimension)
        each.append(3.0 * update / np.linalg.norm(update))
    coherence = float(np.linalg.norm(np.mean(each, axis=0))) / 3.0
    clients = mean.clients_needed(coherence)
    members, length = clients // groups, groups * dimension + groups
    noise = SeededNoise(rng)
    total = np.zeros(length)
    for i in range(members):
        vector = np.zeros(length)
        vector[:dimension], vector[-groups] = each[i], counts.bound(norm_bound)
        sent = protect_for_centre(vector, mechanism, ring_bits=48, noise=noise).levels
        signed = sent.astype(np.int64) - (sent >> np.uint64(47)).astype(np.int64) * 2**48
        total += signed / mechanism.scale
    signal = np.linalg.norm(total[:dimension]) / members
    found = []
    for _ in range(2000):
        noised = total + noise_for_sum(mechanism, length, noise) / mechanism.scale
        count = max(noised[-groups] / counts.bound(norm_bound), members / 2)
        step = noised[:dimension] / count
        found.append(np.linalg.norm(step - total[:dimension] / count) * count / members)
    measured = signal / math.sqrt(np.mean(np.square(found)))
    assert measured == pytest.approx(1.0, abs=0.08)
    assert noise_in_sum(mechanism, clients) == pytest.approx(mean.noise_multiplier * norm_bound)


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


RUNS = 2_000
MISSED = stats.binom.isf([1 - 1e-6, 1e-6], RUNS, 0.05)
"""Fewest and most of 2,000 intervals of 95% that may miss the truth."""


def intervals(size, ratio, deviation=0.3):
    """Intervals of this many coordinates whose signal is this much longer than its noise."""
    rng = np.random.default_rng(7)
    direction = rng.standard_normal(size)
    signal = direction / np.linalg.norm(direction) * ratio * deviation * math.sqrt(size)
    draws = (signal + deviation * rng.standard_normal(size) for _ in range(RUNS))
    return [signal_to_noise(draw, deviation) for draw in draws]


@pytest.mark.parametrize(("size", "ratio"), [(1, 3.0), (512, 0.5)])
def test_intervals_cover_the_ratio_that_was_put_in(size, ratio):
    missed = sum(not found.low <= ratio <= found.high for found in intervals(size, ratio))
    assert MISSED[0] <= missed <= MISSED[1]


@pytest.mark.parametrize("size", [1, 512])
def test_noise_alone_is_below_detection_but_for_one_time_in_forty(size):
    """Its lower end is above 0 as often as chi-square is above its 97.5% point."""
    found = intervals(size, 0.0)
    few, many = stats.binom.isf([1 - 1e-6, 1e-6], RUNS, 0.025)
    assert few <= sum(interval.low > 0.0 for interval in found) <= many
    assert all(0.0 <= interval.low <= interval.high for interval in found)


def test_ends_are_where_the_quantiles_are():
    """By the distribution functions themselves, and for one coordinate by the normal law."""
    found = signal_to_noise(np.full(100, 2.0), 1.0)
    low, high = (100 * end**2 for end in (found.low, found.high))
    assert stats.ncx2.cdf(400.0, 100, low) == pytest.approx(0.975, abs=1e-6)
    assert stats.ncx2.cdf(400.0, 100, high) == pytest.approx(0.025, abs=1e-6)
    # |x + g| with x far from 0 is x + g: 10 -+ 1.96.
    single = signal_to_noise(np.array([20.0]), 2.0)
    assert (single.low, single.high) == pytest.approx((10 - 1.959964, 10 + 1.959964), abs=1e-5)


@pytest.mark.parametrize("ratio", [9.9e2, 1.01e3, 1e9])
@pytest.mark.parametrize("size", [1, 100_000])
def test_hardly_any_noise(size, ratio):
    found = signal_to_noise(np.full(size, ratio), 1.0)
    assert found.low < ratio < found.high
    width = 2 * 1.959964 * math.sqrt(1 + 1 / (2 * ratio**2)) / math.sqrt(size)
    assert found.high - found.low == pytest.approx(width, rel=1e-2)


def test_refused():
    with pytest.raises(ValueError, match="standard_deviation is 0"):
        signal_to_noise(np.ones(2), 0.0)
    with pytest.raises(ValueError, match="coordinates is 0"):
        signal_to_noise(np.zeros(0), 1.0)

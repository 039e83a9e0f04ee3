"""The formula of the page on private experts, held against the code that clips, sums and noises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks._private_mean import PrivateMean
from privacy import CentralNoise, GroupCounts, SeededNoise, noise_in_sum
from privacy.central import noise_for_sum, protect_for_centre


def mu_of(epsilon: float, delta: float) -> float:
    """The Gaussian mechanism's, from its formula (Balle and Wang 2018)."""

    def excess(mu: float) -> float:
        second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return float(norm.cdf(-epsilon / mu + mu / 2) - second - delta)

    return float(brentq(excess, 1e-3, 50.0, xtol=1e-12))


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 8.0])
@pytest.mark.parametrize(("groups", "dimension", "rounds"), [(1, 512, 10), (4, 16, 5), (8, 32, 10)])
def test_it_is_the_formula(epsilon, groups, dimension, rounds):
    mean = PrivateMean(
        epsilon=epsilon, delta=1e-5, rounds=rounds, dimension=dimension, groups=groups
    )
    expected = groups * 2.0 * math.sqrt(rounds * dimension) / mu_of(epsilon, 1e-5)
    assert mean.clients_needed() == pytest.approx(expected, abs=1.0)
    assert mean.clients_needed(coherence=0.5) == pytest.approx(2 * expected, abs=1.0)
    assert mean.signal_to_noise(mean.clients_needed()) >= 1.0
    assert mean.signal_to_noise(mean.clients_needed() - 1) < 1.0


def test_signal_to_noise_of_one_mean_by_hand():
    # privacy.md, section 5: 4.377178 at 1e-5 is mu = 1, so deviation 2 C / n in each direction.
    budget = {"epsilon": 4.377178, "delta": 1e-5, "dimension": 25}
    assert PrivateMean(**budget, rounds=1).signal_to_noise(100) == pytest.approx(10.0, abs=1e-4)
    assert PrivateMean(**budget, rounds=4).signal_to_noise(100, 0.5) == pytest.approx(2.5, abs=1e-4)


def test_a_client_more_or_less_pays_for_its_count():
    plain = PrivateMean(
        epsilon=4.0, delta=1e-5, rounds=10, dimension=16, relation="add_or_remove_one"
    )
    counted = PrivateMean(
        epsilon=4.0,
        delta=1e-5,
        rounds=10,
        dimension=16,
        relation="add_or_remove_one",
        count_ratio=0.25,
    )
    ratio = counted.noise_multiplier / plain.noise_multiplier
    assert ratio == pytest.approx(math.hypot(1.0, 0.25))
    replaced = PrivateMean(epsilon=4.0, delta=1e-5, rounds=10, dimension=16)
    assert replaced.noise_multiplier == pytest.approx(2 * plain.noise_multiplier, rel=1e-6)


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

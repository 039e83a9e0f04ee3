"""What a secret cohort releases, computed exactly, against what the accountant claims for it.

One dimension, C = 1 and noise z: a round's output is a mixture of Gaussians around every sum that a
draw can give, and its privacy is the hockey-stick divergence between the mixtures of two
neighbours, integrated over the line. No theorem on sampling is used on this side.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from privacy import CohortSampling, epsilon
from tests.privacy._rows import FACTS, released

DELTA = 1e-5
PAIRS = {
    "replace_one": [(1.0, -1.0), (-1.0, 1.0)],
    "add_or_remove_one": [(1.0, None), (None, 1.0), (-1.0, None), (None, -1.0)],
}
"""What the client in question gives in two neighbouring worlds; None is not there at all."""


def draws(count, how, size, population):
    """The probability of drawing k given ones and no other of so many clients, for each k."""
    rate = size / population
    if how == "poisson":
        return [rate**k * (1 - rate) ** (count - k) for k in range(count + 1)]
    return [1 / math.comb(population, size) if k == size else 0.0 for k in range(count + 1)]


def brute_force(mine, others, how, size, *, minimum=0):
    """Sums every subset of the population; fewer than `minimum` give noise alone."""
    values = [*others] if mine is None else [mine, *others]
    chance = draws(len(values), how, size, len(others) + 1)
    law = Counter()
    for subset in itertools.product((False, True), repeat=len(values)):
        drawn = list(itertools.compress(values, subset))
        total = sum(drawn) if len(drawn) >= minimum else 0.0
        law[round(total, 12)] += chance[len(drawn)]
    return law


def alike(mine, other, clients, rate, *, minimum=0):
    """The same of Poisson cohorts where all others give one number, which needs no subsets."""
    law = Counter()
    for among in range(clients):
        coin = binom.pmf(among, clients - 1, rate)
        for is_drawn, chance in ((True, rate), (False, 1 - rate)):
            there = is_drawn and mine is not None
            total = among * other + (mine or 0.0) * there
            law[round(total if among + there >= minimum else 0.0, 12)] += coin * chance
    return law


def density(law, noise, line):
    whole = sum(
        p * np.exp(-0.5 * ((line - mean) / noise) ** 2) for mean, p in law.items() if p > 1e-30
    )
    return whole / (noise * math.sqrt(2 * math.pi))


def true_epsilon(one, other, noise):
    """Where the hockey-stick divergence, integrated over the line, is delta.

    What lies beyond 12 deviations is below 1e-30; steps of noise / 200 leave errors below 1e-6.
    """
    means = [*one, *other]
    low, high = min(means) - 12 * noise, max(means) + 12 * noise
    line = np.linspace(low, high, 1 + math.ceil(200 * (high - low) / noise))
    ours, theirs = density(one, noise, line), density(other, noise, line)

    def beyond(eps):
        excess = np.maximum(ours - math.exp(eps) * theirs, 0.0)
        return float(np.trapezoid(excess, line)) - DELTA

    return float(brentq(beyond, 0.0, 60.0, xtol=1e-6)) if beyond(0.0) > 0 else 0.0


@lru_cache
def claimed(noise, how, size, population, relation):
    """What the observer is told of one round."""
    cohort = CohortSampling(kind=how, size=size, population=population, is_drawn=True)
    row = released(noise, mechanism=FACTS["central_noise"], relation=relation, cohort=cohort)
    return epsilon([row], DELTA).epsilon


SLOW = pytest.mark.slow
OTHERS = {
    "zeros": lambda n: [0.0] * n,
    "all at C": lambda n: [1.0] * n,
    "both ends": lambda n: [(-1.0) ** i for i in range(n)],
    "uneven": lambda n: [math.cos(i * i) for i in range(n)],
}


@pytest.mark.parametrize("relation", PAIRS)
@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize(
    ("population", "size", "noise"),
    [(2, 1, 2.0), pytest.param(5, 1, 0.7, marks=SLOW), pytest.param(6, 2, 2.0, marks=SLOW)],
)
@pytest.mark.parametrize("minimum", [0, 1])
@pytest.mark.pairs
def test_no_poisson_cohort_tells_more_than_claimed(
    relation, others, population, size, noise, minimum
):
    most = claimed(noise, "poisson", size, population, relation)
    rest = OTHERS[others](population - 1)
    for pair in PAIRS[relation]:
        laws = [brute_force(mine, rest, "poisson", size, minimum=minimum) for mine in pair]
        assert true_epsilon(*laws, noise) <= most * (1 + 1e-4)


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize(
    ("population", "size", "noise"),
    [(6, 2, 0.8), pytest.param(7, 3, 2.0, marks=SLOW)],
)
def test_no_cohort_of_fixed_size_tells_more_than_claimed(others, population, size, noise):
    most = claimed(noise, "fixed_size", size, population, "replace_one")
    rest = OTHERS[others](population - 1)
    for pair in PAIRS["replace_one"]:
        laws = [brute_force(mine, rest, "fixed_size", size) for mine in pair]
        assert true_epsilon(*laws, noise) <= most


@pytest.mark.parametrize("relation", PAIRS)
def test_the_claim_is_reached_where_nobody_hides_the_client(relation):
    """It is no looser than it has to be: with zeros beside it, a client costs what is claimed."""
    most = claimed(1.0, "poisson", 20, 100, relation)
    pairs = [[alike(mine, 0.0, 100, 0.2) for mine in pair] for pair in PAIRS[relation]]
    assert max(true_epsilon(*laws, 1.0) for laws in pairs) == pytest.approx(most, rel=1e-3)


def test_noise_alone_below_a_minimum_tells_far_more_than_claimed():
    """At one client less than the minimum, one coin switches the whole sum on.

    100 clients, 20 drawn on average, z = 1, and all others at C: were sums of fewer than 20
    withheld, the claim of 2.669 would hide a cost of 6.416.
    """
    most = claimed(1.0, "poisson", 20, 100, "replace_one")
    assert most == pytest.approx(2.669, abs=1e-3)
    withheld = [alike(mine, 1.0, 100, 0.2, minimum=20) for mine in (-1.0, 1.0)]
    assert true_epsilon(withheld[0], withheld[1], 1.0) == pytest.approx(6.416, abs=1e-3)
    released = [alike(mine, 1.0, 100, 0.2) for mine in (-1.0, 1.0)]
    assert true_epsilon(released[0], released[1], 1.0) < most

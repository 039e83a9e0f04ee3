"""Theorem 1 of PM-MoE (Feng et al. 2025): the accuracy of a mixture of experts, by simulation.

Claim. M >= 2 experts are right independently, each with probability p > 0. A gate gives each right
expert (1 + a) times the weight of each wrong one, a > 0. With s experts right it picks a right one
with probability (1 + a)s / (M + a s), and over the draw of s

    P_MPE >= (1 + a)p / (1 + a(p + (1 - p)/M)) > p.

The appendix is sound: s C(M, s) = M C(M - 1, s - 1) turns the sum over s >= 1 (the term s = 0 is
zero) into M p E[(1 + a) / (M + a(t + 1))] with t binomial of M - 1 draws, not of M as the main
text's "t = s - 1" suggests; the function of t is convex, Jensen's inequality gives the bound.

Where the statement is looser than its proof:

- p = 1 is allowed, but then all three sides are 1: the second ">" needs p < 1.
- "Each with an average accuracy rate of p" is proved for equal ones. With unequal ones of mean p
  the bound still holds: s has less spread, and (1 + a)s / (M + a s) is concave (Hoeffding 1956).
- Independence is needed. Experts that are right together have P_MPE = p, below the bound.
- p is the mean over all clients' experts on one client's data. "Does not degrade the performance of
  local models" does not follow: the own expert may be far better than that mean.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from methods.networks.mixture import shares

GRID = tuple(
    itertools.product((2, 3, 8, 20, 100), (0.05, 0.3, 0.5, 0.9, 0.99), (0.01, 0.5, 2.0, 20.0))
)


def bound(experts: int, p: float, a: float) -> float:
    return (1 + a) * p / (1 + a * (p + (1 - p) / experts))


def exact(experts: int, p: float, a: float) -> float:
    """The law of total probability over the number of right experts."""
    return sum(
        math.comb(experts, s) * p**s * (1 - p) ** (experts - s) * (1 + a) * s / (experts + a * s)
        for s in range(experts + 1)
    )


def picked_right(right: np.ndarray, a: float) -> np.ndarray:
    """Probability (n,) that our gate's weights pick a right expert, from which are right (n, M)."""
    scores = torch.from_numpy(np.where(right, math.log1p(a), 0.0))
    weights = shares(scores, torch.ones(right.shape, dtype=torch.bool), None, renormalise=False)
    return (weights.numpy() * right).sum(axis=1)


@pytest.mark.parametrize(("experts", "p", "a"), GRID)
def test_the_bound_holds_and_is_above_p(experts, p, a):
    assert exact(experts, p, a) >= bound(experts, p, a) - 1e-12
    assert bound(experts, p, a) > p


@pytest.mark.parametrize(("experts", "p", "a"), GRID[::7])
def test_simulated_mixtures_have_the_exact_accuracy(experts, p, a):
    """40,000 draws; a probability's mean is off by five standard errors once in two million."""
    draws = 40_000
    right = np.random.default_rng([experts, int(100 * p)]).random((draws, experts)) < p
    chances = picked_right(right, a)
    error = 5 * chances.std() / math.sqrt(draws)
    assert chances.mean() == pytest.approx(exact(experts, p, a), abs=error)
    assert chances.mean() + error >= bound(experts, p, a)


def test_the_odds_by_hand():
    """Three of four right at 1 + a = 3: 9 of 10; none right: never."""
    right = np.array([[True, True, False, True], [False] * 4, [True] * 4])
    np.testing.assert_allclose(picked_right(right, 2.0), [0.9, 0.0, 1.0])


def test_the_bound_grows_with_alpha_and_with_the_number_of_experts():
    """In M because (1 - p)/M falls; the exact accuracy does both, too."""
    for p in (0.05, 0.5, 0.95):
        for value in (bound, exact):
            for experts in (2, 10):
                rising = [value(experts, p, a) for a in (0.01, 0.1, 1.0, 10.0, 100.0)]
                assert rising == sorted(rising)
                assert len(set(rising)) == 5
            for a in (0.1, 10.0):
                rising = [value(experts, p, a) for experts in (2, 3, 5, 20, 200)]
                assert rising == sorted(rising)
                assert len(set(rising)) == 5


def test_the_limits():
    """A perfect gate of few experts is right where one of them is: 1 - (1 - p)^M, not always."""
    assert exact(3, 0.5, 1e12) == pytest.approx(1 - 0.5**3)
    assert bound(3, 0.5, 1e12) == pytest.approx(0.75)
    assert bound(10**9, 0.5, 1e9) == pytest.approx(1.0, abs=1e-6)


def test_at_p_one_nothing_is_gained():
    assert bound(5, 1.0, 3.0) == pytest.approx(1.0)
    assert exact(5, 1.0, 3.0) == pytest.approx(1.0)


def law_of_sum(chances: tuple[float, ...]) -> np.ndarray:
    """Probabilities of 0..M right experts of unequal accuracy."""
    law = np.ones(1)
    for p in chances:
        law = np.convolve(law, [1 - p, p])
    return law


@pytest.mark.parametrize(
    "chances", [(0.9, 0.1), (0.9, 0.5, 0.1), (1.0, 0.2, 0.3), (0.99, 0.05, 0.05, 0.05, 0.06)]
)
@pytest.mark.parametrize("a", [0.1, 1.0, 10.0])
def test_unequal_experts_of_mean_p_keep_to_the_bound(chances, a):
    experts, p = len(chances), sum(chances) / len(chances)
    s = np.arange(experts + 1)
    accuracy = float(law_of_sum(chances) @ ((1 + a) * s / (experts + a * s)))
    assert accuracy >= exact(experts, p, a) - 1e-12
    assert accuracy >= bound(experts, p, a) - 1e-12


def test_experts_that_are_right_together_gain_nothing():
    right = np.repeat(np.random.default_rng(0).random((20_000, 1)) < 0.6, 8, axis=1)
    accuracy = picked_right(right, 4.0).mean()
    assert accuracy == pytest.approx(right[:, 0].mean())
    assert accuracy < bound(8, 0.6, 4.0) - 0.1


def test_the_own_expert_can_be_better_than_the_mixture():
    """Own 0.9, other 0.1, a = 0.1: one is right in 0.82 of cases, both in 0.09.

    The mixture has 0.09 + 0.82 * 1.1/2.1 = 0.52, more than the mean 0.5 and far less than 0.9.
    """
    law = law_of_sum((0.9, 0.1))
    accuracy = law[2] + law[1] * 1.1 / 2.1
    assert accuracy == pytest.approx(0.5195, abs=1e-4)
    assert 0.5 < accuracy < 0.9
    assert accuracy >= bound(2, 0.5, 0.1)

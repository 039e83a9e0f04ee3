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


def test_the_odds_by_hand():
    """Three of four right at 1 + a = 3: 9 of 10; none right: never."""
    right = np.array([[True, True, False, True], [False] * 4, [True] * 4])
    np.testing.assert_allclose(picked_right(right, 2.0), [0.9, 0.0, 1.0])

"""Noise that is correlated between rounds: factors of the prefix sums and their sensitivity.

T rounds that add x release the prefix sums A x, where A is lower triangular ones. With A = B C,
noise z of one deviation on C x gives A x + B z (the matrix mechanism; Choquette-Choo et al. 2023,
"Multi-epoch matrix factorization mechanisms for private machine learning", ICML). The deviation of
z is proportional to how far one client moves C x, over all rounds in which the client takes part.

The factor is the banded square root of Kalinin and Lampert (2024, "Banded square root matrix
factorization for differentially private model training", NeurIPS): A = S^2 with S lower triangular
Toeplitz. C keeps the first p diagonals of S; p = 1 is independent noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

Matrix = NDArray[np.float64]


def prefix_sums(rounds: int) -> Matrix:
    """A (T, T), lower triangular ones."""
    return np.tril(np.ones((rounds, rounds)))


def square_root(rounds: int, bands: int) -> Matrix:
    """C (T, T): the first p diagonals of the square root of A.

    The j-th diagonal is binom(2j, j) / 4^j, the j-th coefficient of (1 - x)^(-1/2).
    """
    j = np.arange(1, rounds)
    diagonals = np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])
    diagonals[bands:] = 0.0
    return np.tril(toeplitz(diagonals))


def sensitivity(factor: Matrix, separation: int) -> float:
    """The farthest that one client can move C x, if its vectors have norm 1.

    The client chooses rounds that are at least b apart. With at most b diagonals, no two of its
    columns share a row, so the square is the largest sum of squared columns that are b apart.
    With b = 1 the client takes part in all rounds, because no two columns have a negative product.

    Args:
        factor: C (T, T), lower triangular.
        separation: b.

    Raises:
        ValueError: If columns have a negative product (b = 1), or C has more than b diagonals.
    """
    gram = factor.T @ factor
    if separation == 1:
        if gram.min() < 0.0:
            raise ValueError("two columns have a negative product; valid are products of 0 or more")
        return float(np.sqrt(gram.sum()))
    if np.tril(factor, -separation).any():
        raise ValueError(f"more than {separation} diagonals; valid are as many or fewer")
    best = np.zeros(len(gram) + separation)
    for column in reversed(range(len(gram))):
        best[column] = max(best[column + 1], gram[column, column] + best[column + separation])
    return float(np.sqrt(best[0]))


def errors(factor: Matrix, separation: int) -> tuple[float, float]:
    """Deviation of a prefix sum's noise, if z has C's sensitivity as its deviation.

    Returns:
        The root mean square over all prefixes, and the deviation of the last prefix.
    """
    rounds = len(factor)
    # Solve B C = A for B.
    left = solve_triangular(factor.T, prefix_sums(rounds).T, lower=False).T
    norms = np.linalg.norm(left, axis=1)
    scale = sensitivity(factor, separation)
    return scale * float(np.sqrt(np.mean(norms**2))), scale * float(norms[-1])


def best_bands(rounds: int, separation: int) -> tuple[int, float]:
    """The number of diagonals with the least error over all prefixes, and this error."""
    found = {p: errors(square_root(rounds, p), separation)[0] for p in _allowed(rounds, separation)}
    best = min(found, key=lambda bands: found[bands])
    return best, found[best]


def _allowed(rounds: int, separation: int) -> range:
    # With b = 1 every number is allowed: a client takes part in all rounds anyway.
    return range(1, (rounds if separation == 1 else min(rounds, separation)) + 1)

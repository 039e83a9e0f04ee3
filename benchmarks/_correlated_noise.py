"""Noise that is correlated between rounds: factors of the prefix sums and their sensitivity.

What matters of T rounds are the prefix sums A x of what each adds, A being lower triangular ones.
With A = B C, noise z of one deviation on C x gives A x + B z (the matrix mechanism; Choquette-Choo
et al. 2023, "Multi-epoch matrix factorization mechanisms for private machine learning", ICML). Its
deviation is proportional to how far one client moves C x, over all rounds in which it takes part.

The factor is the banded square root of Kalinin and Lampert (2024, "Banded square root matrix
factorization for differentially private model training", NeurIPS): A = S^2 with S lower triangular
Toeplitz, of which C keeps the first p diagonals. p = 1 is independent noise.
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
    """C (T, T): the square root of A, its first p diagonals kept.

    Its j-th is binom(2j, j) / 4^j, the j-th coefficient of (1 - x)^(-1/2).
    """
    j = np.arange(1, rounds)
    diagonals = np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])
    diagonals[bands:] = 0.0
    return np.tril(toeplitz(diagonals))


def sensitivity(factor: Matrix, separation: int) -> float:
    """How far one client moves C x at most, whose vectors have norm 1.

    It takes part in rounds of its choice that are at least b apart. With at most b diagonals no two
    of its columns share a row, so it is the largest sum of squared columns that are b apart. With
    b = 1 it takes part in all rounds, where no two columns have a negative product.

    Args:
        factor: C (T, T), lower triangular.
        separation: b.

    Raises:
        ValueError: If columns that are b apart share rows otherwise.
    """
    gram = factor.T @ factor
    if separation == 1:
        if gram.min() < 0.0:
            raise ValueError("two columns have a negative product; valid are none such")
        return float(np.sqrt(gram.sum()))
    if np.tril(factor, -separation).any():
        raise ValueError(f"more than {separation} diagonals; valid are at most as many")
    best = np.zeros(len(gram) + separation)
    for column in reversed(range(len(gram))):
        best[column] = max(best[column + 1], gram[column, column] + best[column + separation])
    return float(np.sqrt(best[0]))


def errors(factor: Matrix, separation: int) -> tuple[float, float]:
    """Deviation of a prefix sum's noise, for a client that moves C x by 1 at deviation 1.

    Returns:
        The root of the mean square over all prefixes, and that of the last.
    """
    rounds = len(factor)
    # B = A C^-1, by solving B C = A.
    left = solve_triangular(factor.T, prefix_sums(rounds).T, lower=False).T
    norms = np.linalg.norm(left, axis=1)
    scale = sensitivity(factor, separation)
    return scale * float(np.sqrt(np.mean(norms**2))), scale * float(norms[-1])


def best_bands(rounds: int, separation: int) -> tuple[int, float]:
    """The number of diagonals with the least error over all prefixes, and that error."""
    found = {p: errors(square_root(rounds, p), separation)[0] for p in _allowed(rounds, separation)}
    best = min(found, key=lambda bands: found[bands])
    return best, found[best]


def _allowed(rounds: int, separation: int) -> range:
    # With b = 1 any number: all columns are in every client's pattern anyway.
    return range(1, (rounds if separation == 1 else min(rounds, separation)) + 1)

"""Nearest neighbours among many vectors: looked for in float32, decided in float64.

One product with a resident float32 matrix gives all distances to several queries but for rounding,
and a bound on that. Whoever cannot be told from the k nearest by them is measured again in float64,
so what is found is what comparing all of them in float64 would find, ties included.

Source of the bound: |fl(x'y) - x'y| <= n u / (1 - n u) |x|'|y| in any order of summation (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2048
"""Coordinates that are added up in float32; blocks are added up in float64."""
_UNIT, _FINE_UNIT = 2.0**-24, 2.0**-53
_CENTRE = 31
"""Vectors whose median is the centre, so that a few far ones do not move it."""


@dataclass(frozen=True)
class Search:
    """One search.

    Attributes:
        query: The vector to be near to, by its place.
        candidates: Places of those that may be found, rising.
    """

    query: int
    candidates: NDArray[np.intp]


class Neighbours:
    """Vectors of one length that stay as they are."""

    def __init__(self, vector: Callable[[int], NDArray[np.float64]], number: int) -> None:
        """Lay out the matrix.

        Args:
            vector: Returns the vector of a place, (d,), alike each time; of finite numbers that
                come from float32.
            number: How many there are, at least one.
        """
        self._vector = vector
        some = np.unique(np.linspace(0, number - 1, _CENTRE).astype(int))
        # Distances are small beside vectors that lie far from zero and close to each other.
        centre = np.median([vector(place) for place in some], axis=0)
        self._rows = np.empty((number, len(centre)), np.float32)
        self._lengths, self._scales = np.empty(number), np.empty(number)
        for place in range(number):
            moved = vector(place) - centre
            self._lengths[place] = np.linalg.norm(moved)
            # Each has a scale of its own, a power of two: a huge one takes no digits from the rest.
            self._scales[place] = np.ldexp(1.0, np.frexp(self._lengths[place])[1])
            self._rows[place] = moved / self._scales[place]

    def nearest(self, searches: Sequence[Search], k: int) -> list[NDArray[np.intp]]:
        """Return the places of the k nearest candidates of each search, the nearest first.

        Of those that are equally far the ones of smaller place are nearer. All searches share one
        pass over the matrix.

        Args:
            searches: What is looked for.
            k: How many, at most as many as there are candidates.
        """
        products = self._products([search.query for search in searches])
        return [
            self._decided(search, self._undecided(search, column, k), k)
            for search, column in zip(searches, products.T, strict=True)
        ]

    def _products(self, queries: Sequence[int]) -> NDArray[np.float64]:
        total = np.zeros((len(self._rows), len(queries)))
        for start in range(0, self._rows.shape[1], _BLOCK):
            block = self._rows[:, start : start + _BLOCK]
            # Laid out anew: a vector is multiplied faster than a matrix of one column.
            asked = np.ascontiguousarray(block[queries].T)
            total += (block @ asked[:, 0])[:, None] if len(queries) == 1 else block @ asked
        return total

    def _undecided(self, search: Search, products: NDArray[np.float64], k: int) -> NDArray[np.intp]:
        """Return the candidates that may be among the k nearest, rising."""
        mine, rows = search.query, search.candidates
        lengths, scales = self._lengths[rows], self._scales[rows]
        squares = lengths**2 + self._lengths[mine] ** 2
        distances = squares - 2 * scales * self._scales[mine] * products[rows]
        slack = _coarse() * lengths * self._lengths[mine] + _fine(self._rows.shape[1]) * squares
        limit = np.partition(distances + slack, k - 1)[k - 1]
        return rows[np.flatnonzero(distances - slack <= limit)]

    def _decided(self, search: Search, few: NDArray[np.intp], k: int) -> NDArray[np.intp]:
        query = self._vector(search.query)
        distances = [float(np.linalg.norm(self._vector(int(row)) - query)) for row in few]
        return few[np.argsort(np.asarray(distances), kind="stable")[:k]]


def _coarse() -> float:
    """Return the most by which twice a float32 product is off, as a part of both lengths.

    Rounding of both rows included, and of what is too small for float32.
    """
    steps = (_BLOCK + 8) * _UNIT
    return 2 * steps / (1 - steps)


def _fine(length: int) -> float:
    """Return the most by which all that is done in float64 is off, as a part of both squares."""
    return 16 * (length + 16) * _FINE_UNIT

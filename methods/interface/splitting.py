"""Splitting: an expert that nobody picks becomes a copy of one that too many pick.

Where two groups of clients meet in one expert of K early on, they stay: its mean suits both better
than any expert that is left. So a crowded expert is split, as centroids are in Linde, Buzo and Gray
(1980, "An Algorithm for Vector Quantizer Design"): an empty one becomes its copy, moved aside.
Clients of one group fit one of the two better, those of the other group the other, and from then
on each has a mean of its own. Which experts are split follows from noised counts alone, and where
copies move from draws that no data enter: it is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from methods.interface.counts import Groups
from methods.interface.directions import Spec, flat, length, shaped
from methods.interface.method import Arrays

CROWDED: Final = 2.0
"""An expert is split where it has more than so many times an even share of the clients, n / K."""


def splits(groups: Groups) -> Iterator[tuple[int, int]]:
    """Yield which empty expert becomes a copy of which crowded one, in the order of the empty ones.

    One that was split counts with half of its clients from then on.

    Args:
        groups: Noised counts; an expert is empty where its count is below the floor.
    """
    left = np.maximum(groups.counts, 0.0)
    even = float(left.sum()) / len(left)
    for empty in np.flatnonzero(groups.counts < groups.floor):
        largest = int(np.argmax(left))
        if left[largest] <= CROWDED * even or groups.counts[largest] < groups.floor:
            return
        left[largest] /= 2.0
        yield int(empty), largest


def aside(mean: Arrays, spec: Spec, rng: np.random.Generator) -> Arrays:
    """Return an update as long as a mean, in a direction that is drawn uniformly.

    Args:
        mean: The update that an expert has just taken.
        spec: Its tensors.
        rng: Draws that no data enter.
    """
    drawn = rng.standard_normal(length(spec))
    drawn *= np.linalg.norm(flat(mean, spec)) / np.linalg.norm(drawn)
    return shaped(drawn.astype(np.float32), spec)

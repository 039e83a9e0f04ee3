"""Random shares in two steps: of superclasses, and of the classes within each.

Pachinko allocation (Li and McCallum 2006) as federated learning deals out CIFAR-100 with it (Reddi
et al. 2021, "Adaptive Federated Optimization", appendix on data sets). A client draws shares of the
superclasses from Dir(alpha) and, within each, shares of its classes from Dir(10). Then it draws its
even part of all images one by one: a superclass, a class in it, an image of that class, without
replacement. What has no image left drops out, and the other shares are scaled up.

The published code of FedOTP and of what builds on it does so by default for CIFAR-100
(`noniid-labeldir100`, with one seed for all runs): training and test images are one pool, and a
client tests with those of its images that the data set calls test images. What is left over where
clients do not divide the pool is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.data.dirichlet import Counts

Floats = NDArray[np.float64]

WITHIN: Final = 10.0
"""Concentration of the shares within a superclass, as published: nearly even."""


def pachinko_counts(
    sizes: Counts,
    superclasses: Sequence[int],
    clients: int,
    alpha: float,
    *,
    rng: np.random.Generator,
) -> Counts:
    """Draw how many images of each class a client gets.

    Args:
        sizes: Images of each class, training and test together, (classes,).
        superclasses: Of each class, (classes,).
        clients: Number of clients.
        alpha: Concentration of the shares of superclasses.
        rng: Draws shares, classes and images.

    Returns:
        Counts, (classes, clients), of which each column has the same sum.
    """
    left, groups = sizes.astype(np.int64), np.asarray(superclasses)
    counts = np.zeros((len(sizes), clients), np.int64)
    for client in range(clients):
        counts[:, client] = _one_client(left, groups, int(sizes.sum()) // clients, alpha, rng=rng)
    return counts


def _one_client(
    left: Counts, groups: NDArray[np.int64], images: int, alpha: float, *, rng: np.random.Generator
) -> Counts:
    """Return one client's images of each class, which are taken from what is left."""
    found = np.unique(groups[left > 0])
    members = [np.flatnonzero((groups == group) & (left > 0)) for group in found]
    outer = _Shares(rng.dirichlet(np.full(len(found), alpha)))
    inner = [_Shares(rng.dirichlet(np.full(len(own), WITHIN))) for own in members]
    counts = np.zeros_like(left)
    for first, second in rng.random((images, 2)):
        group = outer.at(first)
        place = inner[group].at(second)
        label = members[group][place]
        counts[label] += 1
        left[label] -= 1
        if not left[label]:
            inner[group].without(place)
            if not left[members[group]].any():
                outer.without(group)
    return counts


@dataclass
class _Shares:
    """Shares that sum to one; those that drop out are zero.

    Attributes:
        values: The shares.
        ends: Where each ends between nought and one.
    """

    values: Floats
    is_open: NDArray[np.bool_] = field(init=False)
    ends: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.is_open = np.ones(len(self.values), bool)
        self._scale()

    def at(self, place: float) -> int:
        """Return which share a number in [0, 1) falls into."""
        return int(np.searchsorted(self.ends, place, side="right"))

    def without(self, index: int) -> None:
        """Drop one share and scale the others up."""
        self.is_open[index] = False
        self._scale()

    def _scale(self) -> None:
        weights = np.where(self.is_open, self.values, 0.0)
        if not weights.sum() > 0.0:
            # All that is left underflowed; the published code gives no number here.
            weights = self.is_open.astype(np.float64)
        total = weights.sum()
        if total:
            self.ends = np.cumsum(weights / total)
            # Nothing beyond the last open one, whatever rounding made of the sum.
            self.ends[np.flatnonzero(self.is_open)[-1] :] = 1.0

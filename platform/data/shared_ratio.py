"""A share of each class for all alike, the rest unequal: the S ratio of PM-MoE.

As its code deals out data (a partition of PFLlib with a shared part): training and test images are
one pool; of each class a share S is spread evenly over all clients, what is left over going to the
last one; the rest goes out in Dirichlet shares, among those who hold less than their even part.
Then each client splits what it got, three quarters for training. Without a shared part this is
PFLlib's Dirichlet partition. The test images of a client so have the distribution of its training
images, and not of the data set's own test part.

The split is as published neither by class nor by domain: it is a shuffle of the client's images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.data.dirichlet import (
    DRAWS,
    Counts,
    DirichletShares,
    cut,
    has_enough,
    never_enough,
    share_out,
)

Indices = NDArray[np.int64]

TEST_SHARE: Final = 0.25
MOST_ASKED: Final = 40
"""PFLlib's least number of images of a client: a batch of ten for testing, 10 / (1 - 0.75)."""
_SPLITTABLE: Final = 2


@dataclass(frozen=True)
class SharedRatio:
    """How a class is dealt out.

    Attributes:
        ratio: The share S of each class that is spread evenly, in [0, 1].
        alpha: Concentration of the rest's shares; PM-MoE takes 0.1.
        minimum: Fewest images of a client, training and test together; None for PFLlib's, see
            `least_images`.
        fewest_classes: Of how many classes a client has images at least.
    """

    ratio: float = 0.0
    alpha: float = 0.1
    minimum: int | None = None
    fewest_classes: int = 1


def least_images(images: int, clients: int) -> int:
    """Return PFLlib's least number of images of a client.

    40, or half its even part if that is less.
    """
    return int(min(MOST_ASKED, images / clients / 2))


def shared_ratio_counts(
    rule: SharedRatio, sizes: Counts, clients: int, *, rng: np.random.Generator
) -> Counts:
    """Draw how many images of each class a client gets.

    Args:
        rule: How classes are dealt out.
        sizes: Images of each class, training and test together, (classes,); all are dealt out.
        clients: Number of clients.
        rng: Draws the shares.

    Returns:
        Counts, (classes, clients).

    Raises:
        ConfigError: If no draw out of `DRAWS` gave every client its least.
    """
    asked = least_images(int(sizes.sum()), clients) if rule.minimum is None else rule.minimum
    # One image can be no training and no test image at once.
    shares = DirichletShares(rule.alpha, max(asked, _SPLITTABLE), rule.fewest_classes)
    for _ in range(DRAWS):
        counts = _draw(rule, sizes, clients, rng)
        if counts is not None and has_enough(shares, counts):
            return counts
    of = f" of {rule.fewest_classes} classes" if rule.fewest_classes > 1 else ""
    raise never_enough(shares, f"{shares.minimum} images{of}", f"{clients} clients")


def split_own(rows: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split a client's rows into training and test rows, ascending.

    Args:
        rows: At least two; a quarter, rounded up, are test rows.
        rng: Shuffles them.
    """
    shuffled = rng.permutation(rows)
    tests = int(np.ceil(TEST_SHARE * len(rows)))
    return np.sort(shuffled[tests:]), np.sort(shuffled[:tests])


def _draw(
    rule: SharedRatio, sizes: Counts, clients: int, rng: np.random.Generator
) -> Counts | None:
    counts = np.zeros((len(sizes), clients), np.int64)
    even = sizes.sum() / clients
    for label, size in enumerate(sizes):
        shared = int(rule.ratio * size + 1e-9)
        counts[label] = shared // clients
        counts[label, -1] += shared % clients
        share = share_out(rule.alpha, counts.sum(axis=0), even, rng=rng)
        if share is None:
            return None
        counts[label] += cut(share, int(size) - shared)
    return counts

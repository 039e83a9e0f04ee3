"""Random shares of each class, as federated learning papers make clients unequal.

For each class the clients' shares are drawn from a symmetric Dirichlet distribution; clients that
already hold their even part get nothing more; and training and test images are split in the same
shares (the partition that FedPGP, appendix A.2, and pFedMoAP use on CIFAR, after Yurochkin et al.
2019, "Bayesian Nonparametric Federated Learning of Neural Networks", section 4). All is drawn again
until every client has enough. A published loop of this kind never ends where that cannot be; this
one gives up and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from platform.errors import ConfigError

Counts = NDArray[np.int64]

DRAWS: Final = 100
# Keeps a cumulative share that should be whole from being cut off below.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class DirichletShares:
    """How shares are drawn.

    Attributes:
        alpha: Concentration; the smaller, the more unequal. Large values make all clients alike.
        minimum: Fewest training images of a client.
        fewest_classes: Of how many classes a client has training images at least. A few shots of
            one class teach nothing about any other.
        minimum_test: Fewest test images of a client; published loops ask for `minimum` of them too.
    """

    alpha: float = 0.5
    minimum: int = 2
    fewest_classes: int = 1
    minimum_test: int = 1


def dirichlet_counts(
    shares: DirichletShares,
    train_sizes: Counts,
    test_sizes: Counts,
    clients: int,
    *,
    rng: np.random.Generator,
    whose: str = "clients",
) -> tuple[Counts, Counts]:
    """Draw how many images of each class a client gets.

    Args:
        shares: How they are drawn.
        train_sizes: Training images of each class that are dealt out, (classes,).
        test_sizes: Test images of each class, (classes,); all are dealt out.
        clients: Number of clients.
        rng: Draws the shares.
        whose: How errors call the clients.

    Returns:
        Counts of training and of test images, (classes, clients) each.

    Raises:
        ConfigError: If no draw out of `DRAWS` gave every client its least.
    """
    for _ in range(DRAWS):
        drawn = _draw(shares.alpha, train_sizes, test_sizes, clients, rng=rng)
        if drawn is None:
            continue
        train, test = drawn
        if has_enough(shares, train) and test.sum(axis=0).min() >= shares.minimum_test:
            return train, test
    tests = "a test image" if shares.minimum_test == 1 else f"{shares.minimum_test} test images"
    what = f"{shares.minimum} training images{_of_classes(shares)} and {tests}"
    raise never_enough(shares, what, f"{clients} {whose}")


def has_enough(shares: DirichletShares, counts: Counts) -> bool:
    """Return whether every client has its least of these images, (classes, clients)."""
    images, classes = counts.sum(axis=0), (counts > 0).sum(axis=0)
    return bool(images.min() >= shares.minimum and classes.min() >= shares.fewest_classes)


def never_enough(shares: DirichletShares, what: str, whose: str) -> ConfigError:
    """Return the refusal after the last draw.

    Args:
        shares: How they were drawn.
        what: What each client must have.
        whose: How many clients of what.
    """
    return ConfigError(
        f"task.partition.minimum: {what} for each of {whose} came out of none of {DRAWS} draws "
        f"with task.partition.alpha = {shares.alpha:g}; use fewer clients, more images or a larger "
        "alpha"
    )


def share_out(
    alpha: float, held: Counts, even: float, *, rng: np.random.Generator
) -> NDArray[np.float64] | None:
    """Return random shares of a class among the clients that hold less than their even part.

    Args:
        alpha: Concentration.
        held: Images that each client holds already, (clients,).
        even: A client's even part of all images.
        rng: Draws the shares.

    Returns:
        Shares (clients,) that sum to one; None where all of them underflow to nothing.
    """
    is_open = held < even
    # All have their part already where the classes that are left have no training images.
    drawn = rng.dirichlet(np.full(len(held), alpha)) * (is_open if is_open.any() else 1)
    return drawn / drawn.sum() if drawn.sum() > 0 else None


def cut(share: NDArray[np.float64], size: int) -> Counts:
    """Divide so many images into these shares, (clients,) each.

    Cumulative shares are rounded down.
    """
    ends = np.floor(np.cumsum(share) * size + _ROUNDING).astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)


def _draw(
    alpha: float, train_sizes: Counts, test_sizes: Counts, clients: int, *, rng: np.random.Generator
) -> tuple[Counts, Counts] | None:
    """Try once; None where the shares of all who may still get something underflow."""
    train = np.zeros((len(train_sizes), clients), np.int64)
    test = np.zeros((len(test_sizes), clients), np.int64)
    even = train_sizes.sum() / clients
    for label in range(len(train_sizes)):
        share = share_out(alpha, train.sum(axis=0), even, rng=rng)
        if share is None:
            return None
        train[label] = cut(share, train_sizes[label])
        test[label] = cut(share, test_sizes[label])
    return train, test


def _of_classes(shares: DirichletShares) -> str:
    return f" of {shares.fewest_classes} classes" if shares.fewest_classes > 1 else ""

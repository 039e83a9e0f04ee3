"""Who holds which images.

A partition is two steps with a seed each: the class map says how many images of each class a client
gets, and the shots say which ones. A client's test images follow the same distribution as its
training images: all test images of its classes, split evenly where several clients own a class, or
in the shares of the training images, each rounded down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from platform.data.dirichlet import Counts, DirichletShares, dirichlet_counts
from platform.errors import ConfigError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ClientIndices:
    """Row numbers of one client's images.

    Attributes:
        train: In the training split.
        test: In the test split.
        validation: In the training split, none of `train`.
    """

    train: Indices
    test: Indices
    validation: Indices = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class PartitionPlan:
    """What a partition needs to know.

    Attributes:
        kind: `pathological`, `iid`, `dirichlet` or `domain`.
        clients: Number of clients.
        classes: Number of classes; under `domain`, of pairs of domain and class, by domain.
        shots: Training images per owned class and client, fewer where a class has fewer; under
            `dirichlet`, per class in all. None takes all there are.
        shares: How `dirichlet` draws.
    """

    kind: str
    clients: int
    classes: int
    shots: int | None
    shares: DirichletShares = field(default_factory=DirichletShares)


def class_map(plan: PartitionPlan, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """The classes of each client, ascending; not for `dirichlet`, which has shares instead.

    Pathological: a shuffle of all classes cut into even, disjoint slices (pFedMoAP, section 5.1).

    Raises:
        ConfigError: If there are fewer classes than clients.
    """
    if plan.kind == "iid":
        return tuple(tuple(range(plan.classes)) for _ in range(plan.clients))
    if plan.classes < plan.clients:
        raise ConfigError(
            f"task.clients: {plan.clients} is more than the {plan.classes} classes that a "
            f"{plan.kind} partition deals out; valid: 1 to {plan.classes}"
        )
    # A domain's classes are neighbours, so that uncut order gives each client one domain.
    order = np.arange(plan.classes) if plan.kind == "domain" else rng.permutation(plan.classes)
    slices = np.array_split(order, plan.clients)
    return tuple(tuple(sorted(int(c) for c in part)) for part in slices)


def partition(
    plan: PartitionPlan,
    train_labels: Indices,
    test_labels: Indices,
    *,
    class_rng: np.random.Generator,
    shot_rng: np.random.Generator,
) -> tuple[ClientIndices, ...]:
    """Deals out the images; no image goes to two clients.

    Args:
        plan: Who gets how many.
        train_labels: Class of each training image, (n,), below `plan.classes`.
        test_labels: Class of each test image, (m,).
        class_rng: Draws how many images of each class a client gets.
        shot_rng: Draws which ones.

    Raises:
        ConfigError: If a class has too few images, or a client would get too few.
    """
    train_counts, test_counts = _counts(plan, train_labels, test_labels, class_rng)
    train: list[list[Indices]] = [[] for _ in range(plan.clients)]
    test: list[list[Indices]] = [[] for _ in range(plan.clients)]
    for label in range(plan.classes):
        rows = _rows(train_labels, label, shot_rng)
        _require_images(plan, len(rows), train_counts[label])
        _deal(rows, train_counts[label], train)
        _deal(_rows(test_labels, label, shot_rng), test_counts[label], test)
    clients = tuple(ClientIndices(_join(a), _join(b)) for a, b in zip(train, test, strict=True))
    _require_test_images(clients)
    return clients


def _counts(
    plan: PartitionPlan, train_labels: Indices, test_labels: Indices, rng: np.random.Generator
) -> tuple[Counts, Counts]:
    """Training and test images of each client by class, (classes, clients) each."""
    train_sizes = np.bincount(train_labels, minlength=plan.classes)
    test_sizes = np.bincount(test_labels, minlength=plan.classes)
    if plan.kind == "dirichlet":
        if plan.shots is not None:
            train_sizes = np.full(plan.classes, plan.shots)
        return dirichlet_counts(plan.shares, train_sizes, test_sizes, plan.clients, rng=rng)
    owns = np.zeros((plan.classes, plan.clients), np.int64)
    for client, classes in enumerate(class_map(plan, rng)):
        owns[list(classes), client] = 1
    test = np.stack(list(map(_evenly, test_sizes, owns)))
    if plan.shots is None:
        return np.stack(list(map(_evenly, train_sizes, owns))), test
    return plan.shots * owns, test


def _evenly(size: int, owns: Counts) -> Counts:
    """Splits so many images among the owners; the first ones get what is left over."""
    owners, position = int(owns.sum()), np.cumsum(owns) - 1
    shares = [len(part) for part in np.array_split(np.arange(size), max(owners, 1))]
    return np.where(owns == 1, np.asarray(shares)[np.maximum(position, 0)], 0)


def _rows(labels: Indices, label: int, rng: np.random.Generator) -> Indices:
    return rng.permutation(np.flatnonzero(labels == label)).astype(np.int64)


def _deal(rows: Indices, counts: Counts, hands: list[list[Indices]]) -> None:
    ends = np.cumsum(counts)
    for hand, start, end in zip(hands, ends - counts, ends, strict=True):
        if end > start:
            hand.append(rows[start:end])


def _require_images(plan: PartitionPlan, images: int, counts: Counts) -> None:
    if images >= counts.sum():
        return
    owners = 1 if plan.kind == "dirichlet" else int((counts > 0).sum())
    whose = "" if plan.kind == "dirichlet" else f" for each of {owners} clients"
    raise ConfigError(
        f"task.shots: {plan.shots}{whose} is more than the {images} training images of a class; "
        f"valid: 1 to {images // owners}"
    )


def _join(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _require_test_images(clients: Sequence[ClientIndices]) -> None:
    for client, indices in enumerate(clients):
        if not len(indices.test):
            raise ConfigError(
                f"task.clients: client {client} of {len(clients)} would have no test image; use "
                "fewer clients"
            )

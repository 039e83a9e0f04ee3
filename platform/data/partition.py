"""Who holds which images.

A partition is two steps with a seed each: the class map says which classes a client owns, and the
shots say which training images it gets of each. A client's test images are all test images of its
classes (split evenly where several clients own a class), so that training and test follow the same
distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from platform.errors import ConfigError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ClientIndices:
    """Row numbers of one client's images in the training and the test split."""

    train: Indices
    test: Indices


@dataclass(frozen=True)
class PartitionPlan:
    """What a partition needs to know.

    Attributes:
        kind: `pathological` or `iid`.
        clients: Number of clients.
        classes: Number of classes.
        shots: Training images per owned class and client.
    """

    kind: str
    clients: int
    classes: int
    shots: int


def class_map(plan: PartitionPlan, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """The classes of each client, ascending.

    Pathological: a shuffle of all classes cut into even, disjoint slices (pFedMoAP, section 5.1).

    Raises:
        ConfigError: If there are fewer classes than clients.
    """
    if plan.kind == "iid":
        return tuple(tuple(range(plan.classes)) for _ in range(plan.clients))
    if plan.classes < plan.clients:
        raise ConfigError(
            f"task.clients: {plan.clients} is more than the {plan.classes} classes that a "
            f"pathological partition deals out; valid: 1 to {plan.classes}"
        )
    slices = np.array_split(rng.permutation(plan.classes), plan.clients)
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

    Raises:
        ConfigError: If a class has too few images.
    """
    owned = class_map(plan, class_rng)
    owners: list[list[int]] = [[] for _ in range(plan.classes)]
    for client, classes in enumerate(owned):
        for label in classes:
            owners[label].append(client)
    train: list[list[Indices]] = [[] for _ in range(plan.clients)]
    test: list[list[Indices]] = [[] for _ in range(plan.clients)]
    for label, holders in enumerate(owners):
        _deal_shots(_rows(train_labels, label, shot_rng), holders, plan.shots, train)
        rest = np.array_split(_rows(test_labels, label, shot_rng), len(holders) or 1)
        for client, rows in zip(holders, rest, strict=False):
            test[client].append(rows)
    clients = tuple(ClientIndices(_join(a), _join(b)) for a, b in zip(train, test, strict=True))
    _require_test_images(clients)
    return clients


def _rows(labels: Indices, label: int, rng: np.random.Generator) -> Indices:
    return rng.permutation(np.flatnonzero(labels == label)).astype(np.int64)


def _deal_shots(
    rows: Indices, holders: Sequence[int], shots: int, train: list[list[Indices]]
) -> None:
    if len(rows) < shots * len(holders):
        raise ConfigError(
            f"task.shots: {shots} for each of {len(holders)} clients is more than the {len(rows)} "
            f"training images of a class; valid: 1 to {len(rows) // max(len(holders), 1)}"
        )
    for position, client in enumerate(holders):
        train[client].append(rows[position * shots : (position + 1) * shots])


def _join(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _require_test_images(clients: Sequence[ClientIndices]) -> None:
    for client, indices in enumerate(clients):
        if not len(indices.test):
            raise ConfigError(
                f"task.clients: client {client} of {len(clients)} would have no test image; use "
                "fewer clients"
            )

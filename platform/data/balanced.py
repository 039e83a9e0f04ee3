"""Many clients with little each: images whatever their class, or a few of the classes, in balance.

With disjoint classes twenty of them serve ten few-shot clients, and with shots of every class a
client holds at least as many images as there are classes. Neither is a thousand clients with a
handful of images each. Here classes are shared, images are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.dirichlet import Counts
from platform.errors import ConfigError

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """What a client gets, where it is neither shots of every class nor of classes of its own.

    Attributes:
        shared_classes: The share of classes that all clients own under `pathological`.
        classes: Classes of a client there, which others own as well; None for disjoint ones.
        images: Training images of a client under `iid`, whatever their class; None for shots.
        fewest_classes: Of how many classes a client has training images at least, under any kind;
            None for two under few shots, else one.
        slices: How `pathological` cuts disjoint classes where clients do not divide them.
    """

    shared_classes: float = 0.0
    classes: int | None = None
    images: int | None = None
    fewest_classes: int | None = None
    slices: Literal["even", "rounded"] = "even"

    @property
    def may_lack_tests(self) -> bool:
        """Whether so many clients are served that one may have no test image."""
        return self.classes is not None or self.images is not None


def random_counts(
    labels: Indices, classes: int, each: int, clients: int, *, rng: np.random.Generator
) -> Counts:
    """Draw how many images of each class a client gets that gets so many of all.

    As if every client drew from all images without replacement, one client after the other.

    Args:
        labels: Class of each image, (n,), below `classes`.
        classes: Number of classes.
        each: Images of a client.
        clients: Number of clients.
        rng: Draws them.

    Returns:
        Counts, (classes, clients), of which each column sums to `each`.

    Raises:
        ConfigError: If there are fewer images.
    """
    if each * clients > len(labels):
        most = len(labels) // clients
        valid = f"1 to {most}" if most else "fewer clients"
        raise ConfigError(
            f"task.partition.images_per_client: {each} for each of {clients} clients is more than "
            f"the {len(labels)} training images; valid: {valid}"
        )
    drawn = rng.permutation(labels)[: each * clients].reshape(clients, each)
    counts = np.zeros((classes, clients), np.int64)
    np.add.at(counts, (drawn, np.arange(clients)[:, None]), 1)
    return counts


def balanced_classes(
    classes: int, each: int, clients: int, *, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Draw as many classes for each client, so that all classes have as many owners, or one more.

    Clients choose one after the other, in random order, each at random among the classes that have
    the fewest owners so far, and none of them twice.

    Args:
        classes: Number of classes.
        each: Classes of a client.
        clients: Number of clients.
        rng: Draws the order and the classes.

    Returns:
        The classes of each client, ascending.

    Raises:
        ConfigError: If there are fewer classes than that, or some would have no owner.
    """
    fewest = -(-classes // clients)
    if not fewest <= each <= classes:
        raise ConfigError(
            f"task.partition.classes_per_client: {each} for each of {clients} clients is "
            f"{'more than' if each > classes else 'too few for an owner of each of'} the {classes} "
            f"classes; valid: {fewest} to {classes}"
        )
    owners = np.zeros(classes, np.int64)
    chosen: list[tuple[int, ...]] = [()] * clients
    for client in rng.permutation(clients):
        # A stable sort of a shuffle: by owners, at random among equals.
        order = rng.permutation(classes)
        own = order[np.argsort(owners[order], kind="stable")][:each]
        owners[own] += 1
        chosen[client] = tuple(sorted(own.tolist()))
    return tuple(chosen)

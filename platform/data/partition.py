"""Who holds which images, and keyed draws of records by their content.

A partition is two steps with a seed each: the class map says how many images of each class a client
gets, and the shots say which ones. A client's test images follow the same distribution as its
training images: all test images of its classes, split evenly where several clients own a class, or
in the shares of the training images, each rounded down; under `iid` test images of all classes,
whatever training images were drawn. A class with fewer images than the shots ask for gives all it
has, as in published loaders.

Keyed draws say which of a client's records are test images and which validate. A draw that shuffles
all of a client's records changes many of them when one comes or goes. Here each record falls on a
side by its own content and a key alone: one record more or less changes the side of no other, and
records of the same content are on the same side. The key must be a secret of whoever holds the
records, as anybody who knows it could compute which records train. In a federation it follows from
the secret in the holder's own store, in a simulation from a seed and the client's name. A share is
therefore met on average only, and a side may stay empty.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Indices, Split, content_digests
from platform.data.shares import (
    Counts,
    DirichletShares,
    Portion,
    SharedRatio,
    balanced_classes,
    dirichlet_counts,
    pachinko_counts,
    random_counts,
    shared_ratio_counts,
    split_own,
)
from platform.errors import ConfigError


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


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """What a partition needs to know.

    Attributes:
        kind: As in `task.partition.kind`.
        clients: Number of clients.
        classes: Number of classes; under `domain_dirichlet`, of pairs of domain and class, by
            domain.
        shots: Training images per owned class and client, fewer where a class has fewer; per class
            in all where clients get random shares, under `shared_ratio` training and test images
            together. None takes all there are, or what `portion` says.
        shares: How `dirichlet` and `domain_dirichlet` draw.
        domains: Names of the domains that `domain_dirichlet` deals out, which divide `clients`.
        portion: What a client gets under `iid` and `pathological`.
        shared_ratio: How `shared_ratio` draws.
    """

    kind: str
    clients: int
    classes: int
    shots: int | None
    shares: DirichletShares = field(default_factory=DirichletShares)
    domains: tuple[str, ...] = ()
    portion: Portion = field(default_factory=Portion)
    shared_ratio: SharedRatio = field(default_factory=SharedRatio)


_FEW_SHOT_CLASSES = 2
"""A client with a few images of one class only learns to say that class."""


def class_map(plan: PartitionPlan, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each client, ascending; not where clients get random shares of all.

    Pathological: a shuffle of all classes, the first ones for all clients if some are shared, the
    rest cut into even, disjoint slices (pFedMoAP, section 5.1; FedPGP's code for shared classes),
    or rounded ones with the rest for the last client (both papers' code); or so many of them for
    each, in balance.

    Raises:
        ConfigError: If there are too few classes for so many clients.
    """
    if plan.kind == "iid":
        return tuple(tuple(range(plan.classes)) for _ in range(plan.clients))
    if plan.portion.classes is not None:
        return balanced_classes(plan.classes, plan.portion.classes, plan.clients, rng=rng)
    shared = round(plan.portion.shared_classes * plan.classes)
    if plan.portion.shared_classes and not shared:
        raise ConfigError(
            f"task.partition.shared_classes: {plan.portion.shared_classes:g} of {plan.classes} "
            f"classes is less than half a class; valid: null, or from {1 / plan.classes:.2g}"
        )
    left, fewest = plan.classes - shared, _fewest_classes(plan)
    # Clients that share all classes own none alone; otherwise each is to have one of its own, and
    # two where a few shots of one class would be all it has.
    own = 0 if not left else max(1, fewest - shared)
    most = plan.clients if not own else left // own
    if plan.clients > most or shared + own < fewest:
        why = "" if fewest == 1 else ", two a client, since a few shots of one class teach nothing"
        if plan.portion.fewest_classes is not None:
            why = f" with task.partition.fewest_classes = {fewest}"
        valid = f"1 to {most}" if most else "a data set with more classes"
        of = f"{left} of {plan.classes} classes" if shared else f"{plan.classes} classes"
        raise ConfigError(
            f"task.clients: {plan.clients} is more than a {plan.kind} partition can deal {of} out "
            f"to{why}; valid: {valid}"
        )
    order = rng.permutation(plan.classes)
    common, rest = order[:shared].tolist(), order[shared:]
    if plan.portion.slices == "even":
        parts = np.array_split(rest, plan.clients)
    else:
        # C / N classes each, rounded (halves to even), and the remainder for the last client.
        each = round(len(rest) / plan.clients)
        if each * (plan.clients - 1) >= len(rest):
            raise ConfigError(
                f"task.partition.slices: rounded gives each of {plan.clients} clients {each} of "
                f"{len(rest)} classes and leaves none for the last one; valid: even"
            )
        parts = np.split(rest, np.arange(1, plan.clients) * each)
    return tuple(tuple(sorted((*common, *part.tolist()))) for part in parts)


def partition(
    plan: PartitionPlan,
    train_labels: Indices,
    test_labels: Indices,
    *,
    class_rng: np.random.Generator,
    shot_rng: np.random.Generator,
) -> tuple[ClientIndices, ...]:
    """Deal out the images; no image goes to two clients.

    Args:
        plan: Who gets how many; of any kind but `domain`, `shared_ratio` and
            `hierarchical_dirichlet`.
        train_labels: Class of each training image, (n,), below `plan.classes`.
        test_labels: Class of each test image, (m,).
        class_rng: Draws how many images of each class a client gets.
        shot_rng: Draws which ones.

    Raises:
        ConfigError: If no class has so many images, or a client would get too few.
    """
    sizes = [np.bincount(labels, minlength=plan.classes) for labels in (train_labels, test_labels)]
    if plan.portion.images is not None:
        each, everybody = plan.portion.images, np.ones((plan.classes, plan.clients), np.int64)
        train_counts = random_counts(train_labels, plan.classes, each, plan.clients, rng=class_rng)
        test_counts = _evenly(sizes[1], everybody)
    else:
        train_counts, test_counts = _counts(plan, sizes[0], sizes[1], class_rng)
    train: list[list[Indices]] = [[] for _ in range(plan.clients)]
    test: list[list[Indices]] = [[] for _ in range(plan.clients)]
    train_rows, test_rows = _by_class(train_labels, sizes[0]), _by_class(test_labels, sizes[1])
    for label in range(plan.classes):
        _deal(shot_rng.permutation(train_rows[label]), train_counts[label], train)
        _deal(shot_rng.permutation(test_rows[label]), test_counts[label], test)
    clients = tuple(ClientIndices(_join(a), _join(b)) for a, b in zip(train, test, strict=True))
    require_images(clients, may_lack_tests=plan.portion.may_lack_tests)
    _require_few_shot_classes(plan, [train_labels[client.train] for client in clients])
    return clients


def merged_partition(
    plan: PartitionPlan,
    labels: Indices,
    *,
    class_rng: np.random.Generator,
    shot_rng: np.random.Generator,
    split_rng: Callable[[int], np.random.Generator],
) -> tuple[ClientIndices, ...]:
    """Deal out training and test images as one pool, which each client then splits.

    Args:
        plan: Who gets how many; of the kind `shared_ratio`.
        labels: Class of each image, (n,), below `plan.classes`.
        class_rng: Draws how many images of each class a client gets.
        shot_rng: Draws which ones.
        split_rng: Splits the images of the client at a position.

    Raises:
        ConfigError: If no class has so many images, or a client would get too few.
    """
    sizes = np.bincount(labels, minlength=plan.classes)
    rule = replace(plan.shared_ratio, fewest_classes=_fewest_classes(plan))
    counts = shared_ratio_counts(rule, _cap(plan, sizes), plan.clients, rng=class_rng)
    hands: list[list[Indices]] = [[] for _ in range(plan.clients)]
    for rows, count in zip(_by_class(labels, sizes), counts, strict=True):
        _deal(shot_rng.permutation(rows), count, hands)
    clients = tuple(
        ClientIndices(*split_own(_join(hand), split_rng(position)))
        for position, hand in enumerate(hands)
    )
    _require_few_shot_classes(plan, [labels[client.train] for client in clients])
    return clients


def pooled_partition(
    plan: PartitionPlan,
    train_labels: Indices,
    test_labels: Indices,
    superclasses: Sequence[int],
    *,
    class_rng: np.random.Generator,
    shot_rng: np.random.Generator,
) -> tuple[ClientIndices, ...]:
    """Deal out training and test images as one pool, of which each stays what it is.

    Args:
        plan: Who gets how many; of the kind `hierarchical_dirichlet`.
        train_labels: Class of each training image, (n,), below `plan.classes`.
        test_labels: Class of each test image, (m,).
        superclasses: Of each class.
        class_rng: Draws how many images of each class a client gets.
        shot_rng: Draws which ones.

    Raises:
        ConfigError: If a client would get too few.
    """
    labels, first = np.concatenate([train_labels, test_labels]), len(train_labels)
    sizes = np.bincount(labels, minlength=plan.classes)
    alpha = plan.shares.alpha
    counts = pachinko_counts(sizes, superclasses, plan.clients, alpha, rng=class_rng)
    hands: list[list[Indices]] = [[] for _ in range(plan.clients)]
    for rows, count in zip(_by_class(labels, sizes), counts, strict=True):
        _deal(shot_rng.permutation(rows), count, hands)
    clients = tuple(
        ClientIndices(rows[rows < first], rows[rows >= first] - first) for rows in map(_join, hands)
    )
    require_images(clients, may_lack_tests=plan.portion.may_lack_tests)
    _require_few_shot_classes(plan, [train_labels[client.train] for client in clients])
    return clients


def _counts(
    plan: PartitionPlan, train_sizes: Counts, test_sizes: Counts, rng: np.random.Generator
) -> tuple[Counts, Counts]:
    """Return training and test images of each client by class, (classes, clients) each."""
    if plan.kind == "dirichlet":
        shares = replace(plan.shares, fewest_classes=_fewest_classes(plan))
        train_sizes = _cap(plan, train_sizes)
        return dirichlet_counts(shares, train_sizes, test_sizes, plan.clients, rng=rng)
    if plan.kind == "domain_dirichlet":
        # Each domain by itself among as many clients, who are neighbours.
        shares = replace(plan.shares, fewest_classes=_fewest_classes(plan))
        train_sizes = _cap(plan, train_sizes)
        each, clients = plan.classes // len(plan.domains), plan.clients // len(plan.domains)
        train = np.zeros((plan.classes, plan.clients), np.int64)
        test = np.zeros_like(train)
        for position, name in enumerate(plan.domains):
            keys = slice(position * each, (position + 1) * each)
            place = (keys, slice(position * clients, (position + 1) * clients))
            whose, sizes = f"clients of domain {name!r}", (train_sizes[keys], test_sizes[keys])
            drawn = dirichlet_counts(shares, *sizes, clients, rng=rng, whose=whose)
            train[place], test[place] = drawn
        return train, test
    owns = np.zeros((plan.classes, plan.clients), np.int64)
    for client, classes in enumerate(class_map(plan, rng)):
        owns[list(classes), client] = 1
    owners = owns.sum(axis=1)
    whose = f" for each of {owners.max()} clients" if owners.max() > 1 else ""
    _require_shots(plan, train_sizes // owners, whose)
    train = _evenly(train_sizes, owns)
    if plan.shots is not None:
        train = np.minimum(train, plan.shots)
    return train, _evenly(test_sizes, owns)


def _cap(plan: PartitionPlan, sizes: Counts) -> Counts:
    """Return how many images of each class are dealt out in all."""
    _require_shots(plan, sizes, "")
    return sizes if plan.shots is None else np.minimum(sizes, plan.shots)


def _fewest_classes(plan: PartitionPlan) -> int:
    if plan.portion.fewest_classes is not None:
        return plan.portion.fewest_classes
    return 1 if plan.shots is None else _FEW_SHOT_CLASSES


def _evenly(sizes: Counts, owns: Counts) -> Counts:
    """Split each class's images among its owners, (classes, clients).

    The remainder goes round: the next class begins where the last one ended. Always beginning with
    the first client would make it the richest, and leave the last ones without a test image where a
    class has fewer than there are clients.
    """
    counts, start = np.zeros_like(owns), 0
    for label, size in enumerate(sizes):
        owners = np.flatnonzero(owns[label])
        each, left = divmod(int(size), len(owners))
        counts[label, owners] = each
        counts[label, np.roll(owners, -start)[:left]] += 1
        start += left
    return counts


def _by_class(labels: Indices, sizes: Counts) -> list[Indices]:
    """Return row numbers of each class, ascending.

    One sort, as there may be thousands of classes.
    """
    order = np.argsort(labels, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


def _deal(rows: Indices, counts: Counts, hands: list[list[Indices]]) -> None:
    ends = np.cumsum(counts)
    for hand, start, end in zip(hands, ends - counts, ends, strict=True):
        if end > start:
            hand.append(rows[start:end])


def _join(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _require_shots(plan: PartitionPlan, most: Counts, whose: str) -> None:
    """Refuse shots that no class has; fewer images than shots are taken as they are."""
    largest = int(most.max())
    if plan.shots is None or plan.shots <= largest:
        return
    valid = f"1 to {largest}" if largest else "null, or fewer clients"
    raise ConfigError(
        f"task.shots: {plan.shots}{whose} is more than any class has images for; valid: {valid}"
    )


def require_images(clients: Sequence[ClientIndices], *, may_lack_tests: bool) -> None:
    """Refuse a client without a training image, or without a test image where it may not lack one.

    Raises:
        ConfigError: If there is one.
    """
    for client, indices in enumerate(clients):
        for rows, what in ((indices.train, "training"), (indices.test, "test")):
            if not len(rows) and not (what == "test" and may_lack_tests):
                raise ConfigError(
                    f"task.clients: client {client} of {len(clients)} would have no {what} image; "
                    "use fewer clients"
                )


def _require_few_shot_classes(plan: PartitionPlan, held: Sequence[Indices]) -> None:
    asked = plan.portion.fewest_classes
    if asked is not None:
        require_asked_classes(asked, held)
        return
    few, name = plan.shots, "task.shots"
    use = "fewer clients, or null for all images"
    if plan.portion.images is not None:
        few, name, use = plan.portion.images, "task.partition.images_per_client", "more images"
    if plan.portion.classes is not None:
        name, few, use = "task.partition.classes_per_client", plan.portion.classes, "2 or more"
    if few is None:
        return
    for client, labels in enumerate(held):
        if len(np.unique(labels)) < _FEW_SHOT_CLASSES:
            raise ConfigError(
                f"{name}: {few} would leave client {client} of {len(held)} with training images of "
                f"one class only, which teach nothing about any other; use {use}"
            )


def require_asked_classes(asked: int, held: Sequence[Indices]) -> None:
    """Refuse a client with training images of fewer classes than the configuration asks for.

    Args:
        asked: The number of classes.
        held: Labels of each client's training images.

    Raises:
        ConfigError: If there is one.
    """
    for client, labels in enumerate(held):
        if (found := len(np.unique(labels))) < asked:
            raise ConfigError(
                f"task.partition.fewest_classes: {asked} is more than client {client} of "
                f"{len(held)} comes to have training images of; valid here: 1 to {found}"
            )


Draw = Literal["test", "validation", "shots"]
"""What is drawn: each of these draws is independent of the others under one key."""


def places(digests: Sequence[bytes], key: bytes, draw: Draw) -> NDArray[np.float64]:
    """Return where each record falls in [0, 1), as if drawn uniformly and independently.

    Args:
        digests: Of the records' content, SHA-256.
        key: A secret of the holder.
        draw: What is drawn.
    """
    of_draw = hmac.digest(key, draw.encode(), "sha256")
    drawn = [hmac.digest(of_draw, digest, "sha256")[:6] for digest in digests]
    # Six bytes are exact in a double, which eight are not.
    return np.array([int.from_bytes(value) for value in drawn], np.float64) / 2.0**48


def places_of(split: Split, rows: Indices, key: bytes, draw: Draw) -> NDArray[np.float64]:
    """Return where the records of these rows fall, as `places` does.

    Raises:
        DataError: If an image cannot be read.
    """
    return places(content_digests(split, rows), key, draw)


def carve(client: ClientIndices, split: Split, share: float, key: bytes) -> ClientIndices:
    """Move about a share of a client's training records to its validation records.

    Args:
        client: Whose records.
        split: What its training rows are rows of.
        share: Each record's chance to be moved, in [0, 1).
        key: A secret of the client.

    Raises:
        DataError: If an image cannot be read.
    """
    moved = places_of(split, client.train, key, "validation") < share
    validation = np.union1d(client.validation, client.train[moved])
    return replace(client, train=client.train[~moved], validation=validation)

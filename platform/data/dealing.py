"""From a configuration to a partition: what is dealt out, among whom, and by which seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from platform.config.randomness import key_of, stream
from platform.config.run import RunConfig
from platform.data.balanced import Portion
from platform.data.dataset import Dataset, Split
from platform.data.dirichlet import DirichletShares
from platform.data.images import Indices
from platform.data.partition import (
    ClientIndices,
    PartitionPlan,
    merged_partition,
    partition,
    pooled_partition,
    require_asked_classes,
    require_images,
)
from platform.data.shared_ratio import SharedRatio
from platform.data.soundness import require_every_class
from platform.data.validation import places_of
from platform.errors import ConfigError

DEALS_BY_DOMAIN = ("domain", "domain_dirichlet")
"""Kinds whose clients hold images of one domain each."""


@dataclass(frozen=True)
class Dealt:
    """What is dealt out.

    Attributes:
        classes: The data set's first classes in label order.
        domains: Indices of domains, ascending.
    """

    classes: tuple[str, ...]
    domains: tuple[int, ...]


@dataclass(frozen=True)
class Hands:
    """Who holds what.

    Attributes:
        clients: Row numbers of those who take part.
        new_clients: Of those who never do.
    """

    clients: tuple[ClientIndices, ...]
    new_clients: tuple[ClientIndices, ...]


def number_of_hands(config: RunConfig) -> int:
    """Count the clients among whom images are dealt out, new ones included."""
    return config.task.clients + config.task.new_clients


def dealt_domains(config: RunConfig, dataset: Dataset) -> tuple[int, ...]:
    """Return indices of the domains that are dealt out, ascending.

    Raises:
        ConfigError: If the held-out domain is none of the data set's or its only one, or the
            clients do not divide among the domains where each has one.
    """
    held_out = config.task.held_out_domain
    if held_out is not None and held_out not in dataset.domains:
        raise ConfigError(
            f"task.held_out_domain: {held_out!r} is none of the run's domains; valid: "
            f"{', '.join(dataset.domains)}"
        )
    domains = tuple(i for i, name in enumerate(dataset.domains) if name != held_out)
    if not domains:
        raise ConfigError(
            f"task.held_out_domain: {held_out!r} is the run's only domain; at least one must be "
            "left for the clients"
        )
    _require_whole_domains(config, len(domains))
    return domains


def deal(config: RunConfig, dataset: Dataset, dealt: Dealt) -> Hands:
    """Deal out a data set.

    Args:
        config: The run.
        dataset: All images; under `shared_ratio` merged.
        dealt: Its classes and domains that are dealt out.

    Raises:
        ConfigError: If a class has no training image, or the partition cannot be met.
    """
    sides = (dataset.train, dataset.test)
    rows = [_dealt_rows(split, dealt) for split in sides]
    # What files hold back for validation is nobody's to train on.
    rows[0] = np.setdiff1d(rows[0], dataset.validation)
    if config.task.partition.kind == "domain":
        return _with_new(config, _own(config, dataset, dealt, rows), len(dealt.domains))
    if config.task.partition.kind == "shared_ratio":
        # One pool, which rows of both sides are of.
        rows[1] = rows[0]
    require_every_class(dataset, dataset.train.labels[rows[0]], dealt.classes)
    train, test = (_keys(config, *side, dealt) for side in zip(sides, rows, strict=True))
    plan = _plan(config, dataset, dealt)
    rngs = {
        "class_rng": stream(config.seed_of("class_map"), "class map"),
        "shot_rng": stream(config.seed_of("shots"), "shots"),
    }
    if plan.kind == "shared_ratio":
        split = config.seed_of("split")
        shares = merged_partition(
            plan, train, split_rng=lambda position: stream(split, "own split", position), **rngs
        )
    elif plan.kind == "hierarchical_dirichlet":
        superclasses = _superclasses(dataset)[: len(dealt.classes)]
        shares = pooled_partition(plan, train, test, superclasses, **rngs)
    else:
        shares = partition(plan, train, test, **rngs)
    clients = [ClientIndices(rows[0][c.train], rows[1][c.test]) for c in shares]
    if len(dataset.validation):
        clients = _with_shared_out(config, dataset, dealt, clients)
    return _with_new(config, clients, len(dealt.domains))


def _superclasses(dataset: Dataset) -> tuple[int, ...]:
    if not dataset.superclasses:
        raise ConfigError(
            f"task.partition.kind: hierarchical_dirichlet shares out superclasses, and "
            f"{dataset.name} has none; valid: dirichlet, or the data set cifar100"
        )
    return dataset.superclasses


def _require_whole_domains(config: RunConfig, domains: int) -> None:
    kind, task = config.task.partition.kind, config.task
    if kind == "domain" and number_of_hands(config) != domains:
        new = f" and task.new_clients: {task.new_clients}" if task.new_clients else ""
        what = "are" if new else "is"
        raise ConfigError(
            f"task.clients: {task.clients}{new} {what} not the number of domains that are dealt "
            f"out, one to each client; valid with task.partition.kind = domain: {domains}"
        )
    if kind != "domain_dirichlet":
        return
    for name in ("clients", "new_clients"):
        count = getattr(task, name)
        if count % domains:
            raise ConfigError(
                f"task.{name}: {count} is no multiple of the {domains} domains that are dealt out, "
                "each among as many clients; valid with task.partition.kind = domain_dirichlet: "
                f"{domains}, {2 * domains}, {3 * domains} and so on"
            )


def _plan(config: RunConfig, dataset: Dataset, dealt: Dealt) -> PartitionPlan:
    task, section = config.task, config.task.partition
    domains = tuple(dataset.domains[index] for index in dealt.domains)
    by_domain = section.kind in DEALS_BY_DOMAIN
    keys = len(dealt.classes) * (len(domains) if by_domain else 1)
    # Only `shared_ratio` has no fewest of its own, and it does not look at these.
    tests = section.minimum_test or 1
    shares = DirichletShares(section.concentration, section.fewest or 1, minimum_test=tests)
    ratio = SharedRatio(section.shared_ratio or 0.0, section.concentration, section.fewest)
    portion = Portion(
        shared_classes=section.shared_classes or 0.0,
        classes=section.classes_per_client,
        images=section.images_per_client,
        fewest_classes=section.fewest_classes,
        slices=section.slices or "even",
    )
    return PartitionPlan(
        kind=section.kind,
        clients=number_of_hands(config),
        classes=keys,
        shots=task.shots,
        shares=shares,
        domains=domains,
        portion=portion,
        shared_ratio=ratio,
    )


def _dealt_rows(split: Split, dealt: Dealt) -> Indices:
    chosen = (split.labels < len(dealt.classes)) & np.isin(split.domains, dealt.domains)
    return np.flatnonzero(chosen).astype(np.int64)


def _keys(config: RunConfig, split: Split, rows: Indices, dealt: Dealt) -> Indices:
    """Return what the partition counts as a class.

    The label, or domain and label where domains count.
    """
    labels = split.labels[rows]
    if config.task.partition.kind not in DEALS_BY_DOMAIN:
        return labels
    positions = np.searchsorted(dealt.domains, split.domains[rows]).astype(np.int64)
    return positions * len(dealt.classes) + labels


def _own(
    config: RunConfig, dataset: Dataset, dealt: Dealt, rows: Sequence[Indices]
) -> list[ClientIndices]:
    """Give each client its own domain; what another domain holds enters nowhere.

    A client may lack classes, test images and validation images. Of each class it trains on the
    shots whose keyed hashes are lowest, so that one image more in its folder displaces one other.
    """
    train, test = dataset.train, dataset.test
    held_back = np.intersect1d(dataset.validation, _dealt_rows(train, dealt))
    clients, shots = list[ClientIndices](), config.task.shots
    for domain in dealt.domains:
        own = rows[0][train.domains[rows[0]] == domain]
        if shots is not None:
            key = key_of(config.seed_of("shots"), "shots", dataset.domains[domain])
            own = _few_shots(train, own, shots, key)
        clients.append(
            ClientIndices(
                own,
                rows[1][test.domains[rows[1]] == domain],
                held_back[train.domains[held_back] == domain],
            )
        )
    require_images(clients, may_lack_tests=True)
    if (asked := config.task.partition.fewest_classes) is not None:
        require_asked_classes(asked, [train.labels[client.train] for client in clients])
    return clients


def _few_shots(train: Split, own: Indices, shots: int, key: bytes) -> Indices:
    """Return so many of a client's rows of each class, those whose keyed hashes are lowest."""
    for label, count in enumerate(np.bincount(train.labels[own])):
        if count > shots:
            of_class = own[train.labels[own] == label]
            order = np.argsort(places_of(train, of_class, key, "shots"), kind="stable")
            own = np.setdiff1d(own, of_class[order[shots:]])
    return own


def _with_shared_out(
    config: RunConfig, dataset: Dataset, dealt: Dealt, clients: Sequence[ClientIndices]
) -> list[ClientIndices]:
    """Share out what files hold back: of each class in turn among those who train on it."""
    rows = np.intersect1d(dataset.validation, _dealt_rows(dataset.train, dealt))
    keys = _keys(config, dataset.train, rows, dealt)
    owned = [set(_keys(config, dataset.train, c.train, dealt).tolist()) for c in clients]
    given: list[list[int]] = [[] for _ in clients]
    for key in np.unique(keys).tolist():
        owners = [position for position, of in enumerate(owned) if key in of]
        for turn, row in enumerate(rows[keys == key].tolist()):
            if owners:
                given[owners[turn % len(owners)]].append(row)
    return [
        replace(client, validation=np.sort(np.array(own, np.int64)))
        for client, own in zip(clients, given, strict=True)
    ]


def _with_new(config: RunConfig, clients: Sequence[ClientIndices], domains: int) -> Hands:
    """Return last ones are new; of each domain the last ones where a domain has several clients."""
    groups = domains if config.task.partition.kind == "domain_dirichlet" else 1
    each, old = len(clients) // groups, config.task.clients // groups
    is_new = [position % each >= old for position in range(len(clients))]
    return Hands(
        tuple(c for c, new in zip(clients, is_new, strict=True) if not new),
        tuple(c for c, new in zip(clients, is_new, strict=True) if new),
    )

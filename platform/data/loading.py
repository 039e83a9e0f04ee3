"""A task's data: classes, domains and every client's examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from platform.config.schema import RunConfig
from platform.data.catalogue import DataRequest, dataset_info, load_dataset
from platform.data.dataset import Dataset, Split
from platform.data.dirichlet import DirichletShares
from platform.data.partition import ClientIndices, Indices, PartitionPlan, partition
from platform.data.validation import carve
from platform.errors import ConfigError
from platform.randomness import stream


@dataclass(frozen=True)
class CommonRows:
    """Test images that every client is measured on, beside its own.

    Attributes:
        rows: Row numbers in the test split.
        classes: The classes that are told apart on them.
        first_label: Label of the first of these classes in the data set.
    """

    rows: Indices
    classes: tuple[str, ...]
    first_label: int = 0


@dataclass(frozen=True)
class TaskData:
    """A data set and who holds what of it.

    Attributes:
        dataset: All images.
        clients: Each client's row numbers.
        classes: The classes that are dealt out, the data set's first ones in label order.
        domains: Indices of the domains that are dealt out, ascending.
        common: What the evaluation protocol measures every client on, by the protocol's names.
        new_clients: Row numbers of clients that never take part in a round.
    """

    dataset: Dataset
    clients: tuple[ClientIndices, ...]
    classes: tuple[str, ...]
    domains: tuple[int, ...]
    common: Mapping[str, CommonRows]
    new_clients: tuple[ClientIndices, ...] = ()

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the domains that are dealt out."""
        return tuple(self.dataset.domains[index] for index in self.domains)


def load_task_data(config: RunConfig) -> TaskData:
    """Loads the data set and partitions it.

    Raises:
        ConfigError: If the data set or a domain is unknown, its files are not as they should be, or
            the partition cannot be met.
    """
    dataset = load_dataset(config.task.dataset, _request(config))
    classes, domains = _dealt_classes(config, dataset), _dealt_domains(config, dataset)
    sides = [_dealt_rows(split, len(classes), domains) for split in (dataset.train, dataset.test)]
    dealt = partition(
        _plan(config, len(classes), len(domains)),
        *(
            _keys(config, split, rows, (len(classes), domains))
            for split, rows in zip((dataset.train, dataset.test), sides, strict=True)
        ),
        class_rng=stream(config.seed_of("class_map"), "class map"),
        shot_rng=stream(config.seed_of("shots"), "shots"),
    )
    clients = [ClientIndices(sides[0][c.train], sides[1][c.test]) for c in dealt]
    if config.task.validation_share:
        clients = _with_validation(config, clients, dataset.train.labels)
    old = config.task.clients
    return TaskData(
        dataset,
        tuple(clients[:old]),
        classes,
        domains,
        _common(config, dataset, len(classes)),
        tuple(clients[old:]),
    )


def _request(config: RunConfig) -> DataRequest:
    task = config.task
    known = dataset_info(task.dataset).domains
    # Shots are counted once a client, once a domain, or once in all.
    owners = {"iid": _hands(config), "domain": len(task.domains or known)}
    train = (task.shots or 0) * owners.get(task.partition.kind, 1)
    return DataRequest(
        root=Path(task.root),
        seed=config.seed,
        split_seed=config.seed_of("split"),
        train_per_class=train,
        test_per_class=task.test_per_class,
        domains=task.domains,
        held_out_domain=task.held_out_domain,
    )


def _hands(config: RunConfig) -> int:
    """Among how many clients images are dealt out."""
    return config.task.clients + config.task.new_clients


def _with_validation(
    config: RunConfig, clients: Sequence[ClientIndices], labels: Indices
) -> list[ClientIndices]:
    seed, share = config.seed_of("validation"), config.task.validation_share
    return [
        carve(client, labels, share, stream(seed, "validation", position))
        for position, client in enumerate(clients)
    ]


def _dealt_classes(config: RunConfig, dataset: Dataset) -> tuple[str, ...]:
    """FedPGP, section 4.1, as coded: the first half in label order is base, and larger if odd."""
    if config.evaluation.protocol != "base_to_novel":
        return dataset.classes
    return dataset.classes[: math.ceil(len(dataset.classes) / 2)]


def _dealt_domains(config: RunConfig, dataset: Dataset) -> tuple[int, ...]:
    held_out, kind = config.task.held_out_domain, config.task.partition.kind
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
    if kind == "domain" and config.task.clients != len(domains):
        raise ConfigError(
            f"task.clients: {config.task.clients} is not the number of domains that are dealt "
            f"out, one to each client; valid with task.partition.kind = domain: {len(domains)}"
        )
    return domains


def _dealt_rows(split: Split, classes: int, domains: Sequence[int]) -> Indices:
    dealt = (split.labels < classes) & np.isin(split.domains, domains)
    return np.flatnonzero(dealt).astype(np.int64)


def _plan(config: RunConfig, classes: int, domains: int) -> PartitionPlan:
    task, section = config.task, config.task.partition
    shares = DirichletShares(section.concentration, section.fewest)
    keys = classes * domains if section.kind == "domain" else classes
    return PartitionPlan(section.kind, _hands(config), keys, task.shots, shares)


def _keys(
    config: RunConfig, split: Split, rows: Indices, sizes: tuple[int, Sequence[int]]
) -> Indices:
    """What the partition counts as a class: the label, or domain and label where domains count."""
    classes, domains = sizes
    labels = split.labels[rows]
    if config.task.partition.kind != "domain":
        return labels
    return np.searchsorted(domains, split.domains[rows]).astype(np.int64) * classes + labels


def _common(config: RunConfig, dataset: Dataset, dealt: int) -> dict[str, CommonRows]:
    protocol, test = config.evaluation.protocol, dataset.test
    if protocol == "base_to_novel":
        base, novel = dataset.classes[:dealt], dataset.classes[dealt:]
        seen = test.labels < dealt
        return {
            "base": CommonRows(np.flatnonzero(seen), base),
            "novel": CommonRows(np.flatnonzero(~seen), novel, dealt),
        }
    if protocol == "leave_one_domain_out":
        held_out = dataset.domains.index(str(config.task.held_out_domain))
        return {"target": CommonRows(np.flatnonzero(test.domains == held_out), dataset.classes)}
    return {}

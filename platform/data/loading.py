"""The data sets by name, and a task's data: classes, domains and every client's examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from platform.config.schema import RunConfig
from platform.data.dataset import Dataset
from platform.data.partition import ClientIndices, PartitionPlan, partition
from platform.errors import ConfigError
from platform.randomness import stream


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set without loading it."""

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class DatasetSize:
    """How many images of each class a run asks for; real data sets may hold fewer."""

    seed: int
    train_per_class: int
    test_per_class: int
    domains: tuple[str, ...] | None


@dataclass(frozen=True)
class TaskData:
    """A data set and who holds what of it."""

    dataset: Dataset
    clients: tuple[ClientIndices, ...]


def dataset_infos() -> tuple[DatasetInfo, ...]:
    """All data sets, by name."""
    return tuple(_info(name) for name in sorted(_LOADERS))


def load_task_data(config: RunConfig) -> TaskData:
    """Loads the data set and partitions it.

    Raises:
        ConfigError: If the data set or a domain is unknown, or the partition cannot be met.
    """
    task = config.task
    dataset = _load(task.dataset, _size(config))
    plan = PartitionPlan(task.partition.kind, task.clients, len(dataset.classes), task.shots)
    clients = partition(
        plan,
        dataset.train.labels,
        dataset.test.labels,
        class_rng=stream(config.seed_of("class_map"), "class map"),
        shot_rng=stream(config.seed_of("shots"), "shots"),
    )
    return TaskData(dataset, clients)


def _size(config: RunConfig) -> DatasetSize:
    task = config.task
    owners = task.clients if task.partition.kind == "iid" else 1
    return DatasetSize(config.seed, task.shots * owners, task.test_per_class, task.domains)


def _load(name: str, size: DatasetSize) -> Dataset:
    if name not in _LOADERS:
        raise ConfigError(
            f"task.dataset: {name!r} is unknown; valid: {', '.join(sorted(_LOADERS))}"
        )
    known = _info(name).domains
    for domain in size.domains or ():
        if domain not in known:
            raise ConfigError(
                f"task.domains: {domain!r} is unknown in {name}; valid: {', '.join(known)}"
            )
    return _LOADERS[name](size)


def _shapes(size: DatasetSize) -> Dataset:
    from platform.data.shapes import DOMAINS, shapes_dataset

    domains = size.domains or DOMAINS
    return shapes_dataset(
        size.seed,
        math.ceil(size.train_per_class / len(domains)),
        math.ceil(size.test_per_class / len(domains)),
        domains=domains,
    )


def _digits(size: DatasetSize) -> Dataset:
    from platform.data.digits import digits_dataset

    return digits_dataset(size.seed)


def _info(name: str) -> DatasetInfo:
    if name == "shapes":
        from platform.data.shapes import CLASSES, DOMAINS

        title = "Twenty shapes in six drawing styles, rendered from the seed"
        return DatasetInfo(name, title, CLASSES, DOMAINS, "rendered")
    from platform.data.digits import CLASSES as DIGITS
    from platform.data.digits import DOMAINS as SCANS

    title = "1,797 scanned handwritten digits (UCI, as bundled with scikit-learn)"
    return DatasetInfo(name, title, DIGITS, SCANS, "scikit-learn")


_LOADERS: dict[str, Callable[[DatasetSize], Dataset]] = {"shapes": _shapes, "digits": _digits}

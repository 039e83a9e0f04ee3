"""Who has what: every client's images counted by class and by domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from platform.config.run import RunConfig
from platform.data.dirichlet import Counts
from platform.data.images import Indices
from platform.data.loading import TaskData
from platform.data.partition import ClientIndices

SEEDS = ("class_map", "shots", "split", "validation")
"""What decides who has what, by the names of `seeds`."""
PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One client's images in numbers.

    Attributes:
        client: Its name.
        is_new: Whether it never takes part in a round.
        train: Training images by class, (classes,).
        validation: Validation images by class.
        test: Test images by class.
        domains: Images of all three by domain, (domains that are dealt out,).
        sense: What names mean to it, where each client has a sense of its own.
    """

    client: str
    is_new: bool
    train: Counts
    validation: Counts
    test: Counts
    domains: Counts
    sense: str | None = None

    @property
    def classes(self) -> int:
        """Number of classes that it has training images of."""
        return int((self.train > 0).sum())


def holdings(data: TaskData) -> tuple[Holding, ...]:
    """Count what each client holds, those who take part first."""
    held = tuple(
        _holding(data, client, f"{kind}-{position:05d}", is_new=kind == "new")
        for kind, clients in (("client", data.clients), ("new", data.new_clients))
        for position, client in enumerate(clients)
    )
    if not data.senses:
        return held
    return tuple(replace(one, sense=sense) for one, sense in zip(held, data.senses, strict=True))


def holdings_document(config: RunConfig, data: TaskData) -> dict[str, Any]:
    """Return all counts as plain data, with the seeds that they follow from."""
    section = config.task.partition
    return {
        "dataset": data.dataset.name,
        "partition": section.model_dump(mode="json", exclude_none=True),
        "shots": config.task.shots,
        "validation_share": config.task.validation_share,
        "protocol": config.evaluation.protocol,
        "held_out_domain": config.task.held_out_domain,
        "senses": config.task.senses,
        "seeds": seeds_used(config),
        "classes": list(data.classes),
        "domains": list(data.domain_names),
        "clients": [_document(data, holding) for holding in holdings(data)],
        "common": {name: len(common.rows) for name, common in data.common.items()},
    }


def seeds_used(config: RunConfig) -> dict[str, int]:
    """Return the seeds that decide who has what."""
    return {name: config.seed_of(name) for name in SEEDS}


def _holding(data: TaskData, client: ClientIndices, name: str, *, is_new: bool) -> Holding:
    train, test = data.dataset.train, data.dataset.test

    def by_class(labels: Indices) -> Counts:
        return np.bincount(labels, minlength=len(data.classes)).astype(np.int64)

    rows = np.concatenate([client.train, client.validation])
    domains = np.concatenate([train.domains[rows], test.domains[client.test]])
    return Holding(
        client=name,
        is_new=is_new,
        train=by_class(train.labels[client.train]),
        validation=by_class(train.labels[client.validation]),
        test=by_class(test.labels[client.test]),
        domains=np.array([int((domains == index).sum()) for index in data.domains]),
    )


def _document(data: TaskData, holding: Holding) -> Mapping[str, Any]:
    counts = {part: getattr(holding, part) for part in PARTS}
    return {
        "client": holding.client,
        **({} if holding.sense is None else {"sense": holding.sense}),
        "new": holding.is_new,
        "classes": holding.classes,
        **{part: int(by_class.sum()) for part, by_class in counts.items()},
        **{f"{part}_by_class": by_class.tolist() for part, by_class in counts.items()},
        "by_domain": dict(zip(data.domain_names, holding.domains.tolist(), strict=True)),
    }

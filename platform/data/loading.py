"""A task's data: classes, domains and every client's examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from platform.config.randomness import key_of
from platform.config.run import RunConfig
from platform.config.sections import TaskConfig
from platform.data.catalogue import (
    DataRequest,
    Draws,
    Hints,
    dataset_info,
    load_dataset,
    user_path,
)
from platform.data.dataset import Dataset
from platform.data.dealing import DEALS_BY_DOMAIN, Dealt, deal, dealt_domains, number_of_hands
from platform.data.homonyms import BY_CLIENT
from platform.data.partition import ClientIndices, Indices
from platform.data.senses import (
    in_senses_of_holders,
    senses_of_clients,
    with_tests_in_each_sense,
)
from platform.data.shapes import Stream
from platform.data.soundness import require_sound
from platform.data.validation import carve
from platform.errors import DataError


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


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A data set and who holds what of it.

    Attributes:
        dataset: All images.
        clients: Each client's row numbers.
        classes: The classes that are dealt out, the data set's first ones in label order.
        domains: Indices of the domains that are dealt out, ascending.
        common: What the evaluation protocol measures every client on, by the protocol's names.
        new_clients: Row numbers of clients that never take part in a round.
        senses: What names mean to each client, new ones last, where each has a sense of its own.
        all_tests: Where the test images of all clients are, under `all_classes`: by sense where
            clients have senses, else under an empty name.
    """

    dataset: Dataset
    clients: tuple[ClientIndices, ...]
    classes: tuple[str, ...]
    domains: tuple[int, ...]
    common: Mapping[str, CommonRows]
    new_clients: tuple[ClientIndices, ...] = ()
    senses: tuple[str, ...] = ()
    all_tests: Mapping[str, Indices] = field(default_factory=dict)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the domains that are dealt out."""
        return tuple(self.dataset.domains[index] for index in self.domains)


def load_task_data(config: RunConfig, images: Stream = Stream.FEDERATION) -> TaskData:
    """Load the data set and partition it.

    Args:
        config: The run's.
        images: Who rendered images are for.

    Raises:
        ConfigError: If the data set or a domain is unknown, its files are not as they should be, or
            the partition cannot be met.
    """
    request = _request(config, images)
    made = load_dataset(config.task.dataset, request)
    require_sound(made)
    merged = config.task.partition.kind == "shared_ratio"
    dataset = made.merged() if merged else made
    classes = dataset.classes[: _number_dealt(config, len(dataset.classes))]
    dealt = Dealt(classes, dealt_domains(config, dataset))
    hands = deal(config, dataset, dealt)
    everybody: Sequence[ClientIndices] = (*hands.clients, *hands.new_clients)
    if config.task.validation_share:
        everybody = _with_validation(config, everybody, dataset, dealt)
    senses = senses_of_clients(len(everybody)) if config.task.senses == BY_CLIENT else ()
    if senses:
        dataset = in_senses_of_holders(made, request, everybody, senses, merged=merged)
    all_tests: Mapping[str, Indices] = {}
    if config.evaluation.protocol == "all_classes":
        all_tests = {"": np.unique(np.concatenate([client.test for client in everybody]))}
    if all_tests and senses:
        (rows,), of_all = all_tests.values(), tuple(dict.fromkeys(senses))
        dataset, all_tests = with_tests_in_each_sense(dataset, request, rows, of_all, merged=merged)
    old = config.task.clients
    return TaskData(
        dataset=dataset,
        clients=tuple(everybody[:old]),
        classes=dealt.classes,
        domains=dealt.domains,
        common=_common(config, dataset, len(dealt.classes)),
        new_clients=tuple(everybody[old:]),
        senses=senses,
        all_tests=all_tests,
    )


def _request(config: RunConfig, images: Stream) -> DataRequest:
    task = config.task
    return DataRequest(
        root=user_path(task.root),
        draws=Draws(config.seed, images, _train_per_class(config), task.test_per_class),
        split_seed=config.seed_of("split"),
        domains=task.domains,
        held_out_domain=task.held_out_domain,
        senses=task.senses,
        hints=hints_of(task),
    )


def hints_of(task: TaskConfig, *, dealt: bool = True) -> Hints:
    """Return what a task says of a folder of its user's own images.

    Args:
        task: The task.
        dealt: Whether its images are dealt out to clients.

    Raises:
        ConfigError: If the file of class names has no path.
    """
    names = task.class_names
    return Hints(
        layout=task.layout,
        class_names=None if names is None else user_path(names, "task.class_names"),
        partition=task.partition.kind if dealt else None,
    )


def _train_per_class(config: RunConfig) -> int:
    """Return how many training images of a class are needed at most, where they are made."""
    task, section = config.task, config.task.partition
    info = dataset_info(task.dataset)
    # Of a data set in files neither is known before, nor are any made.
    dealt = max(1, _number_dealt(config, len(info.classes)))
    if section.images_per_client is not None:
        return math.ceil(section.images_per_client * number_of_hands(config) / dealt)
    return (task.shots or 0) * _owners(config, dealt, len(info.domains))


def _owners(config: RunConfig, classes: int, domains: int) -> int:
    """Return how often the shots of a class are counted: by client, by domain, or once in all."""
    task, section = config.task, config.task.partition
    if section.kind in DEALS_BY_DOMAIN:
        return len(task.domains or ()) or domains
    if section.classes_per_client is not None:
        return math.ceil(section.classes_per_client * number_of_hands(config) / classes)
    owned_by_all = section.kind == "iid" or section.shared_classes
    return number_of_hands(config) if owned_by_all else 1


def _with_validation(
    config: RunConfig, clients: Sequence[ClientIndices], dataset: Dataset, dealt: Dealt
) -> list[ClientIndices]:
    seed, share = config.seed_of("validation"), config.task.validation_share
    owners: list[tuple[str | int, bool]]
    if config.task.partition.kind == "domain":
        owners = [(dataset.domains[d], d in dataset.holds_back) for d in dealt.domains]
    else:
        # A client of a pool is who it is dealt to be.
        owners = [(position, bool(dataset.holds_back)) for position in range(len(clients))]
    return [
        # What its own files hold back is its choice.
        client
        if holds_back
        else carve(client, dataset.train, share, key_of(seed, "validation", owner))
        for client, (owner, holds_back) in zip(clients, owners, strict=True)
    ]


def _number_dealt(config: RunConfig, classes: int) -> int:
    """Return FedPGP, section 4.1, as coded.

    The first half in label order is base, and larger if odd.
    """
    return math.ceil(classes / 2) if config.evaluation.protocol == "base_to_novel" else classes


def _common(config: RunConfig, dataset: Dataset, dealt: int) -> dict[str, CommonRows]:
    common = _protocol_rows(config, dataset, dealt)
    for name, rows in common.items():
        if not len(rows.rows):
            raise DataError(
                f"task.root: {dataset.name} has no {name} test example for evaluation.protocol = "
                f"{config.evaluation.protocol}; valid: at least one"
            )
    return common


def _protocol_rows(config: RunConfig, dataset: Dataset, dealt: int) -> dict[str, CommonRows]:
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

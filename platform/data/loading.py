"""A task's data: from a configuration to classes, domains and every client's examples.

The configuration says what is dealt out, among whom, and by which seeds. In a federation the two
sides know different parts of the task: the coordinator knows no image, a client knows its own.
`holdings` counts every client's images by class and by domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from platform.config.randomness import key_of, stream
from platform.config.rules import HELD
from platform.config.run import RunConfig
from platform.config.sections import TaskConfig
from platform.data.catalogue import DataRequest, Draws, Hints, dataset_info, load_dataset, user_path
from platform.data.checking import require_every_class, require_sound
from platform.data.dataset import Dataset, Indices, Split
from platform.data.holder_images import DOMAIN
from platform.data.homonyms import (
    BY_CLIENT,
    in_senses_of_holders,
    senses_of_clients,
    with_tests_in_each_sense,
)
from platform.data.partition import (
    ClientIndices,
    PartitionPlan,
    carve,
    merged_partition,
    partition,
    places_of,
    pooled_partition,
    require_asked_classes,
    require_images,
)
from platform.data.shapes import Stream
from platform.data.shares import Counts, DirichletShares, Portion, SharedRatio
from platform.errors import ConfigError, DataError

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


def deal(config: RunConfig, dataset: Dataset, dealt: Dealt) -> tuple[ClientIndices, ...]:
    """Deal out a data set.

    Args:
        config: The run.
        dataset: All images; under `shared_ratio` merged.
        dealt: Its classes and domains that are dealt out.

    Returns:
        Row numbers of each client, of those who take part before those who never do.

    Raises:
        ConfigError: If a class has no training image, or the partition cannot be met.
    """
    sides = (dataset.train, dataset.test)
    rows = [_dealt_rows(split, dealt) for split in sides]
    # Nobody trains on images that files hold back for validation.
    rows[0] = np.setdiff1d(rows[0], dataset.validation)
    if config.task.partition.kind == "domain":
        return tuple(_own(config, dataset, dealt, rows))
    if config.task.partition.kind == "shared_ratio":
        # Rows of both sides are rows of one pool.
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
        if not dataset.superclasses:
            raise ConfigError(
                f"task.partition.kind: hierarchical_dirichlet shares out superclasses, and "
                f"{dataset.name} has none; valid: dirichlet, or the data set cifar100"
            )
        superclasses = dataset.superclasses[: len(dealt.classes)]
        shares = pooled_partition(plan, train, test, superclasses, **rngs)
    else:
        shares = partition(plan, train, test, **rngs)
    clients = [ClientIndices(rows[0][c.train], rows[1][c.test]) for c in shares]
    if len(dataset.validation):
        clients = _with_shared_out(config, dataset, dealt, clients)
    # The last clients are new; of each domain the last ones where a domain has several clients.
    groups = len(dealt.domains) if plan.kind == "domain_dirichlet" else 1
    each, old = len(clients) // groups, config.task.clients // groups
    order = sorted(range(len(clients)), key=lambda position: position % each >= old)
    return tuple(clients[position] for position in order)


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
    """Return the label of each row, or domain and label in one number where domains count."""
    labels = split.labels[rows]
    if config.task.partition.kind not in DEALS_BY_DOMAIN:
        return labels
    positions = np.searchsorted(dealt.domains, split.domains[rows]).astype(np.int64)
    return positions * len(dealt.classes) + labels


def _own(
    config: RunConfig, dataset: Dataset, dealt: Dealt, rows: Sequence[Indices]
) -> list[ClientIndices]:
    """Give each client its own domain; images of other domains play no part.

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
    """Share out what files hold back: of each class in turn among the clients who train on it."""
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
    task = config.task
    request = DataRequest(
        root=user_path(task.root),
        draws=Draws(config.seed, images, _train_per_class(config), task.test_per_class),
        split_seed=config.seed_of("split"),
        domains=task.domains,
        held_out_domain=task.held_out_domain,
        senses=task.senses,
        hints=hints_of(task),
    )
    made = load_dataset(config.task.dataset, request)
    require_sound(made)
    merged = config.task.partition.kind == "shared_ratio"
    dataset = made.merged() if merged else made
    classes = dataset.classes[: _number_dealt(config, len(dataset.classes))]
    dealt = Dealt(classes, dealt_domains(config, dataset))
    everybody: Sequence[ClientIndices] = deal(config, dataset, dealt)
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
    # A data set in files makes no images, and its classes are not known yet.
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
        # Without domains of their own, clients are told apart by position.
        owners = [(position, bool(dataset.holds_back)) for position in range(len(clients))]
    return [
        # A client's own files may hold back what it chose.
        client
        if holds_back
        else carve(client, dataset.train, share, key_of(seed, "validation", owner))
        for client, (owner, holds_back) in zip(clients, owners, strict=True)
    ]


def _number_dealt(config: RunConfig, classes: int) -> int:
    """Count the classes that are dealt out: under `base_to_novel` the first half in label order.

    As FedPGP's code does it (section 4.1), the base half is the larger one of an odd number.
    """
    return math.ceil(classes / 2) if config.evaluation.protocol == "base_to_novel" else classes


def _common(config: RunConfig, dataset: Dataset, dealt: int) -> dict[str, CommonRows]:
    """Return what the evaluation protocol measures every client on.

    Raises:
        DataError: If there is no test example for it.
    """
    protocol, test = config.evaluation.protocol, dataset.test
    common: dict[str, CommonRows] = {}
    if protocol == "base_to_novel":
        base, novel = dataset.classes[:dealt], dataset.classes[dealt:]
        seen = test.labels < dealt
        common["base"] = CommonRows(np.flatnonzero(seen), base)
        common["novel"] = CommonRows(np.flatnonzero(~seen), novel, dealt)
    elif protocol == "leave_one_domain_out":
        held_out = dataset.domains.index(str(config.task.held_out_domain))
        rows = np.flatnonzero(test.domains == held_out)
        common["target"] = CommonRows(rows, dataset.classes)
    for name, found in common.items():
        if not len(found.rows):
            raise DataError(
                f"task.root: {dataset.name} has no {name} test example for evaluation.protocol = "
                f"{config.evaluation.protocol}; valid: at least one"
            )
    return common


def task_without_images(classes: Sequence[str]) -> TaskData:
    """Return the task as the coordinator knows it: the public list of classes."""
    none = np.zeros(0, np.int64)
    nothing = Split(np.zeros((0, 1, 1, 3), np.uint8), none, none)
    dataset = Dataset(
        name=HELD, classes=tuple(classes), domains=(DOMAIN,), train=nothing, test=nothing
    )
    return TaskData(dataset=dataset, clients=(), classes=dataset.classes, domains=(0,), common={})


def task_of_one(dataset: Dataset, rows: ClientIndices) -> TaskData:
    """Return the task as a client knows it, with its own images."""
    return TaskData(
        dataset=dataset, clients=(rows,), classes=dataset.classes, domains=(0,), common={}
    )


SEEDS = ("class_map", "shots", "split", "validation")
"""The `seeds` that decide who has what."""
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
    """Count the images of each client, those who take part first."""
    train, test = data.dataset.train, data.dataset.test

    def by_class(labels: Indices) -> Counts:
        return np.bincount(labels, minlength=len(data.classes)).astype(np.int64)

    held = []
    for kind, clients in (("client", data.clients), ("new", data.new_clients)):
        for position, client in enumerate(clients):
            rows = np.concatenate([client.train, client.validation])
            domains = np.concatenate([train.domains[rows], test.domains[client.test]])
            held.append(
                Holding(
                    client=f"{kind}-{position:05d}",
                    is_new=kind == "new",
                    train=by_class(train.labels[client.train]),
                    validation=by_class(train.labels[client.validation]),
                    test=by_class(test.labels[client.test]),
                    domains=np.array([int((domains == index).sum()) for index in data.domains]),
                )
            )
    if not data.senses:
        return tuple(held)
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

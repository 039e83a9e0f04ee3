"""A task's data: from a configuration to classes, domains and every client's examples.

The configuration names the data set, the clients, the partition and the seeds. In a federation the
two sides know different parts of the task: the coordinator knows no image, a client knows its own.
`holdings` counts every client's images by class and by domain. `public_rows` reads images that are
declared public: of the task's classes, and apart from the clients' images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from platform.config import PublicDataConfig
from platform.config.randomness import key_of, stream
from platform.config.rules import HANDWRITING, HELD
from platform.config.run import RunConfig
from platform.config.sections import TaskConfig
from platform.data.catalogue import (
    BY_CLIENT,
    DOMAIN,
    DataRequest,
    Draws,
    Hints,
    dataset_info,
    load_dataset,
    user_path,
)
from platform.data.checking import require_every_class, require_sound
from platform.data.dataset import (
    Dataset,
    ImageFiles,
    Indices,
    Split,
    content_digests,
    image_digests,
    joined,
)
from platform.data.partition import (
    ClientIndices,
    Counts,
    DirichletShares,
    PartitionPlan,
    carve,
    partition,
    places,
    require_asked_classes,
    require_images,
)
from platform.data.shapes import Stream
from platform.errors import ConfigError, DataError

DEALS_BY_DOMAIN = ("domain", "domain_dirichlet")
"""Kinds whose clients hold images of one domain each."""


class Dealt(NamedTuple):
    """The classes and domains that are dealt out.

    Attributes:
        classes: The data set's first classes in label order.
        domains: Indices of domains, ascending.
    """

    classes: tuple[str, ...]
    domains: tuple[int, ...]


def dealt_domains(config: RunConfig, dataset: Dataset) -> tuple[int, ...]:
    """Return indices of the domains that are dealt out, ascending; their number must fit."""
    held_out = config.task.held_out_domain
    if held_out is not None and held_out not in dataset.domains:
        raise ConfigError(
            f"task.held_out_domain: {held_out!r} is not one of the run's domains; valid: "
            f"{', '.join(dataset.domains)}"
        )
    domains = tuple(i for i, name in enumerate(dataset.domains) if name != held_out)
    if not domains:
        raise ConfigError(
            f"task.held_out_domain: {held_out!r} is the run's only domain; at least one must be "
            "left for the clients"
        )
    kind, task = config.task.partition.kind, config.task
    hands = (task.clients, task.new_clients)
    if kind == "domain" and sum(hands) != len(domains) and hands != (1, 0):
        new = f" and task.new_clients: {task.new_clients} are" if task.new_clients else " is"
        raise ConfigError(
            f"task.clients: {task.clients}{new} not the number of domains that are dealt out, one "
            f"to each client; valid with task.partition.kind = domain: {len(domains)}, or 1 for all"
        )
    for name in ("clients", "new_clients") if kind == "domain_dirichlet" else ():
        count, each = getattr(task, name), len(domains)
        if count % each:
            raise ConfigError(
                f"task.{name}: {count} is not a multiple of the {each} domains that are dealt "
                "out, each to equally many clients; valid under the kind domain_dirichlet: "
                f"{each}, {2 * each}, {3 * each} and so on"
            )
    return domains


def deal(config: RunConfig, dataset: Dataset, dealt: Dealt) -> tuple[ClientIndices, ...]:
    """Return the rows of each client, new clients last; refuse a class without training images."""
    sides = (dataset.train, dataset.test)
    rows = [_dealt_rows(split, dealt) for split in sides]
    # No client trains on images that files hold back for validation.
    rows[0] = np.setdiff1d(rows[0], dataset.validation)
    if config.task.partition.kind == "domain":
        return tuple(_own(config, dataset, dealt, rows))
    if config.task.partition.kind == "shared_ratio":
        # Rows of both sides are rows of one pool.
        rows[1] = rows[0]
    require_every_class(dataset, dataset.train.labels[rows[0]], dealt.classes)
    train, test = (_keys(config, *side, dealt) for side in zip(sides, rows, strict=True))
    section, domains = config.task.partition, tuple(dataset.domains[i] for i in dealt.domains)
    if section.kind == "hierarchical_dirichlet" and not dataset.superclasses:
        raise ConfigError(
            f"task.partition.kind: hierarchical_dirichlet shares out superclasses, and "
            f"{dataset.name} has none; valid: dirichlet, or the data set cifar100"
        )
    by_domain, split = section.kind in DEALS_BY_DOMAIN, config.seed_of("split")
    plan = PartitionPlan(
        kind=section.kind,
        clients=config.task.clients + config.task.new_clients,
        classes=len(dealt.classes) * (len(domains) if by_domain else 1),
        shots=config.task.shots,
        # `fewest` is None only under `shared_ratio`, where the size of the data decides.
        shares=DirichletShares(
            section.concentration, section.fewest or 0, minimum_test=section.minimum_test or 1
        ),
        domains=domains,
        superclasses=dataset.superclasses[: len(dealt.classes)],
        shared_ratio=section.shared_ratio or 0.0,
        shared_classes=section.shared_classes or 0.0,
        classes_each=section.classes_per_client,
        images_each=section.images_per_client,
        fewest_classes=section.fewest_classes,
        slices=section.slices or "even",
    )
    shares = partition(
        plan,
        train,
        test,
        class_rng=stream(config.seed_of("class_map"), "class map"),
        shot_rng=stream(config.seed_of("shots"), "shots"),
        split_rng=lambda position: stream(split, "own split", position),
    )
    clients = [ClientIndices(rows[0][c.train], rows[1][c.test]) for c in shares]
    if len(dataset.validation):
        clients = _with_shared_out(config, dataset, dealt, clients)
    # The last clients are new; of each domain the last ones where a domain has several clients.
    groups = len(dealt.domains) if plan.kind == "domain_dirichlet" else 1
    each, old = len(clients) // groups, config.task.clients // groups
    order = sorted(range(len(clients)), key=lambda position: position % each >= old)
    return tuple(clients[position] for position in order)


def _dealt_rows(split: Split, dealt: Dealt) -> Indices:
    chosen = (split.labels < len(dealt.classes)) & np.isin(split.domains, dealt.domains)
    return np.flatnonzero(chosen).astype(np.int64)


def _keys(config: RunConfig, split: Split, rows: Indices, dealt: Dealt) -> Indices:
    """Return the label of each row; if domains count, domain and label in one number."""
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
        tests = rows[1][test.domains[rows[1]] == domain]
        clients.append(ClientIndices(own, tests, held_back[train.domains[held_back] == domain]))
    require_images(clients, may_lack_tests=True)
    if (asked := config.task.partition.fewest_classes) is not None:
        require_asked_classes(asked, [train.labels[client.train] for client in clients])
    return clients


def _few_shots(train: Split, own: Indices, shots: int, key: bytes) -> Indices:
    """Return a client's rows of each class with the lowest keyed hashes, at most `shots`."""
    for label, count in enumerate(np.bincount(train.labels[own])):
        if count > shots:
            of_class = own[train.labels[own] == label]
            falls = places(content_digests(train, of_class), key, "shots")
            order = np.argsort(falls, kind="stable")
            own = np.setdiff1d(own, of_class[order[shots:]])
    return own


def _with_shared_out(
    config: RunConfig, dataset: Dataset, dealt: Dealt, clients: Sequence[ClientIndices]
) -> list[ClientIndices]:
    """Deal held-back images of each class in turn to the clients that train on the class."""
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


class CommonRows(NamedTuple):
    """Test images on which every client is measured beside its own.

    Attributes:
        rows: Row numbers in the test split.
        classes: The classes among which the model chooses.
        first_label: Label of the first of these classes in the data set.
    """

    rows: Indices
    classes: tuple[str, ...]
    first_label: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A data set and the rows that each client holds.

    Attributes:
        clients: Each client's row numbers.
        classes: The classes that are dealt out, the data set's first ones in label order.
        domains: Indices of the domains that are dealt out, ascending.
        common: The common test images of the evaluation protocol, by the protocol's names.
        new_clients: Row numbers of clients that never take part in a round.
        senses: The sense of names for each client, new clients last, where senses differ.
        all_tests: Rows of the test images of all clients, under `all_classes`: by sense where
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
    """Load the data set and partition it; `images` is the purpose of rendered images."""
    task = config.task
    request = DataRequest(
        root=user_path(task.root),
        draws=Draws(config.seed, images, _train_per_class(config), task.test_per_class),
        split_seed=config.seed_of("split"),
        domains=task.domains,
        held_out_domain=task.held_out_domain,
        senses=task.senses,
        hints=hints_of(task),
        plugins=config.plugins,
    )
    made = load_dataset(task.dataset, request, with_faults=True)
    dealt_out = made.classes[: _number_dealt(config, len(made.classes))]
    # A client's own images may lack a class, and a pool of both sides has test images to train on.
    require_sound(made, () if task.partition.kind in ("domain", "shared_ratio") else dealt_out)
    merged = task.partition.kind == "shared_ratio"
    dataset = made.merged() if merged else made
    dealt = Dealt(dealt_out, dealt_domains(config, dataset))
    everybody: Sequence[ClientIndices] = deal(config, dataset, dealt)
    if task.validation_share:
        # Without domains of their own, clients are told apart by position.
        owners: list[tuple[str | int, bool]] = [
            (position, bool(dataset.holds_back)) for position in range(len(everybody))
        ]
        if task.partition.kind == "domain":
            owners = [(dataset.domains[d], d in dataset.holds_back) for d in dealt.domains]
        seed, share = config.seed_of("validation"), task.validation_share
        everybody = [
            # Some files hold back the images that the client itself chose.
            client
            if holds_back
            else carve(client, dataset.train, share, key_of(seed, "validation", owner))
            for client, (owner, holds_back) in zip(everybody, owners, strict=True)
        ]
    if len(everybody) > task.clients + task.new_clients:
        parts = zip(*((one.train, one.test, one.validation) for one in everybody), strict=True)
        everybody = [ClientIndices(*map(np.concatenate, parts))]
    senses: tuple[str, ...] = ()
    if task.senses == BY_CLIENT:
        known = dataset_info(task.dataset).senses
        turns = np.arange(len(everybody)) % len(known)
        senses = tuple(known[turn] for turn in turns)
        dataset = _in_senses_of_holders(made, request, everybody, turns, merged=merged)
    all_tests: Mapping[str, Indices] = {}
    if config.evaluation.protocol == "all_classes":
        all_tests = {"": np.unique(np.concatenate([client.test for client in everybody]))}
    if all_tests and senses:
        (rows,), of_all = all_tests.values(), tuple(dict.fromkeys(senses))
        dataset, all_tests = _with_tests_in_senses(dataset, request, rows, of_all, merged=merged)
    return TaskData(
        dataset=dataset,
        clients=tuple(everybody[: task.clients]),
        classes=dealt.classes,
        domains=dealt.domains,
        common=_common(config, dataset, len(dealt.classes)),
        new_clients=tuple(everybody[task.clients :]),
        senses=senses,
        all_tests=all_tests,
    )


def _in_senses_of_holders(
    made: Dataset,
    request: DataRequest,
    clients: Sequence[ClientIndices],
    of_clients: Indices,
    *,
    merged: bool,
) -> Dataset:
    """Draw the images of a data set (training and test apart) anew, in the senses of holders.

    Labels, domains and the order of rows stay, so every holder keeps its rows. Rows without a
    holder are drawn in the first sense. `merged` says that the partition deals out one pool.
    """
    ends = made.train.num_examples
    senses = np.zeros(ends + made.test.num_examples, np.int64)
    first_test = 0 if merged else ends
    for client, sense in zip(clients, of_clients, strict=True):
        rows = (client.train, client.validation, client.test + first_test)
        senses[np.concatenate(rows)] = sense
    train, test = np.split(senses, [ends])
    drawn = load_dataset(made.name, replace(request, senses=(train, test)))
    return drawn.merged() if merged else drawn


def _with_tests_in_senses(
    dataset: Dataset, request: DataRequest, rows: Indices, senses: Sequence[str], *, merged: bool
) -> tuple[Dataset, dict[str, Indices]]:
    """Add these test rows in each sense, after all others, and return their places by sense."""
    # Training images are needed only where the pool makes test images of them.
    asked = request if merged else replace(request, draws=replace(request.draws, train_per_class=0))
    parts, places = [dataset.test], {}
    for sense in senses:
        drawn = load_dataset(dataset.name, replace(asked, senses=sense))
        places[sense] = np.arange(len(rows)) + sum(part.num_examples for part in parts)
        parts.append((drawn.merged() if merged else drawn).test.only(rows))
    return replace(dataset, test=joined(parts)), places


def hints_of(task: TaskConfig, *, dealt: bool = True) -> Hints:
    """Return what a task says of a folder of own images; `dealt` where these are dealt out."""
    names = task.class_names
    return Hints(
        layout=task.layout,
        class_names=None if names is None else user_path(names, "task.class_names"),
        partition=task.partition.kind if dealt else None,
    )


def _train_per_class(config: RunConfig) -> int:
    """Return the most training images of a class that a rendered data set needs."""
    task, section = config.task, config.task.partition
    info, hands = dataset_info(task.dataset, config.plugins), task.clients + task.new_clients
    shots = task.shots or 0
    # A data set in files renders no images, and its classes are not known yet.
    dealt = max(1, _number_dealt(config, len(info.classes)))
    if section.images_per_client is not None:
        return math.ceil(section.images_per_client * hands / dealt)
    # The shots of a class count by domain, by owner, or once in all.
    if section.kind in DEALS_BY_DOMAIN:
        return shots * (len(task.domains or ()) or len(info.domains))
    if section.classes_per_client is not None:
        return shots * math.ceil(section.classes_per_client * hands / dealt)
    return shots * (hands if section.kind == "iid" or section.shared_classes else 1)


def _number_dealt(config: RunConfig, classes: int) -> int:
    # As in FedPGP's code (section 4.1), the base half is the larger half of an odd number.
    return math.ceil(classes / 2) if config.evaluation.protocol == "base_to_novel" else classes


def _common(config: RunConfig, dataset: Dataset, dealt: int) -> dict[str, CommonRows]:
    """Return the test images on which the evaluation protocol measures every client."""
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
            what = f"has no {name} test example for evaluation.protocol = {protocol}"
            raise DataError.at(dataset.name, what, "at least one")
    return common


def task_without_images(classes: Sequence[str]) -> TaskData:
    """Return the task as a federation's coordinator knows it: the public list of classes."""
    none = np.zeros(0, np.int64)
    nothing = Split(np.zeros((0, 1, 1, 3), np.uint8), none, none)
    dataset = Dataset(
        name=HELD, classes=tuple(classes), domains=(DOMAIN,), train=nothing, test=nothing
    )
    return task_of_one(dataset)


def task_of_one(dataset: Dataset, *rows: ClientIndices) -> TaskData:
    """Return the task as a client of a federation knows it: its own images."""
    return TaskData(dataset=dataset, clients=rows, classes=dataset.classes, domains=(0,), common={})


SEEDS = ("class_map", "shots", "split", "validation")
"""The `seeds` that decide which client holds which images."""
PARTS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One client's images in numbers.

    Attributes:
        is_new: Whether it is a new client, who takes part in no round.
        train: Training images by class, (classes,).
        domains: Images of all three by domain, (domains that are dealt out,).
        sense: The sense of names for this client, where senses differ.
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
        """Number of classes among its training images."""
        return int((self.train > 0).sum())


def holdings(data: TaskData) -> tuple[Holding, ...]:
    """Count the images of each client, new clients last."""
    train, test = data.dataset.train, data.dataset.test

    def by_class(labels: Indices) -> Counts:
        return np.bincount(labels, minlength=len(data.classes)).astype(np.int64)

    held: list[Holding] = []
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
                    sense=data.senses[len(held)] if data.senses else None,
                )
            )
    return tuple(held)


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
        "clients": [
            {
                "client": holding.client,
                **({} if holding.sense is None else {"sense": holding.sense}),
                "new": holding.is_new,
                "classes": holding.classes,
                **{part: int(getattr(holding, part).sum()) for part in PARTS},
                **{f"{part}_by_class": getattr(holding, part).tolist() for part in PARTS},
                "by_domain": dict(zip(data.domain_names, holding.domains.tolist(), strict=True)),
            }
            for holding in holdings(data)
        ],
        "common": {name: len(common.rows) for name, common in data.common.items()},
    }


def seeds_used(config: RunConfig) -> dict[str, int]:
    """Return the seeds that decide which client holds which images."""
    return {name: config.seed_of(name) for name in SEEDS}


RENDERED: Final = ("homonyms", "shapes")
"""Data sets whose public images are rendered, in a stream of their own."""


class PublicRows(NamedTuple):
    """The images declared public that a run uses: a split, and rows of it in ascending order."""

    split: Split
    rows: Indices


def public_rows(config: RunConfig, data: TaskData) -> PublicRows:
    """Return images of `public_data`: a split, and up to `per_class` rows of each class, ascending.

    Images of a held-out domain are left out, and fewer images than `privacy.rank` are refused.
    """
    section, task = config.public_data or PublicDataConfig(), config.task
    name = section.dataset or task.dataset
    if name == task.dataset and section.root is None and name not in RENDERED:
        raise ConfigError(
            f"public_data.root: null is the folder of the federation's own {name}, which "
            "is not public; valid: another folder, or public_data.dataset"
        )
    request = DataRequest(
        root=user_path(section.root or task.root, "public_data.root"),
        draws=Draws(section.seed, Stream.PUBLIC, section.per_class, 1),
        split_seed=section.seed,
        domains=task.domains if name == task.dataset else None,
        held_out_domain=task.held_out_domain,
        senses=task.senses if name == task.dataset else None,
        hints=hints_of(task, dealt=False) if name == task.dataset else Hints(),
        plugins=config.plugins,
    )
    public = load_public(name, request, data.dataset)
    if task.senses == BY_CLIENT and name in RENDERED:
        # In turn within each class of a domain, and each domain begins one further.
        each, turns = len(public.domains) * len(public.classes), len(dataset_info(name).senses)
        train, test = (
            (np.arange(len(part.labels)) % (len(part.labels) // each) + part.domains) % turns
            for part in (public.train, public.test)
        )
        public = load_dataset(name, replace(request, senses=(train, test)))
    split, rng = public.train, stream(section.seed, "public images")
    seen = np.ones(split.num_examples, np.bool_)
    if task.held_out_domain in public.domains:
        seen = split.domains != public.domains.index(str(task.held_out_domain))
    taken = []
    for label, of_class in enumerate(data.classes):
        rows = np.flatnonzero(seen & (split.labels == label))
        if not len(rows):
            raise ConfigError(
                f"public_data.root: {name} there has no image of {of_class!r}; valid: at least one "
                "of each class"
            )
        taken.append(rng.permutation(rows)[: section.per_class])
    found, rank = np.sort(np.concatenate(taken)), config.privacy.rank or 0
    if len(found) < rank:
        raise ConfigError(
            f"privacy.rank: {rank} is more than the {len(found)} images declared public, whose "
            f"gradients have no more directions; valid: 1 to {len(found)}"
        )
    return PublicRows(split, found)


def load_public(name: str, request: DataRequest, own: Dataset) -> Dataset:
    """Read public data; refuse other classes than `own`, and the federation's own data."""
    try:
        public = load_dataset(name, request)
        require_sound(public)
    except ConfigError as error:
        if not str(error).startswith(("task.root:", "task.dataset:")):
            raise
        faults = (fault.replace("task", "public_data", 1) for fault in error.faults)
        raise type(error)(*faults) from error
    if public.classes != own.classes:
        difference = f"{len(public.classes)} and not {len(own.classes)}"
        for label, (one, other) in enumerate(zip(public.classes, own.classes, strict=False)):
            if one != other:
                difference = f"label {label} is {one!r} and not {other!r}"
                break
        raise ConfigError(
            f"public_data.dataset: {public.name} has other classes than the task's {own.name} "
            f"({difference}); valid: one with exactly its "
            f"{len(own.classes)} classes in the same order"
        )
    pairs = ((one, other) for one in (public.train, public.test) for other in (own.train, own.test))
    is_own = public.name not in RENDERED and any(_share(*pair) for pair in pairs)
    # In another hand, the same image has other pixels.
    if is_own or {public.name, own.name} <= set(HANDWRITING):
        raise ConfigError(
            f"public_data.root: {public.name} there is the federation's own data, which is not "
            "public; valid: another folder, without any client's images"
        )
    return public


def _share(one: Split, other: Split) -> bool:
    """Return whether two splits share a file, or an example in memory."""
    if one.texts is not None or other.texts is not None:
        return not set(one.texts or ()).isdisjoint(other.texts or ())
    mine, theirs = one.images, other.images
    if isinstance(mine, ImageFiles) and isinstance(theirs, ImageFiles):
        # A link to a file is the same file; a missing file is refused where it is read.
        found = ({files.place_of(row) for row in range(len(files))} for files in (mine, theirs))
        return bool(set.intersection(*found) - {None})
    if isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        # By content, as a split by another seed has the same images elsewhere.
        digests = (set(image_digests(part, np.arange(len(part)))) for part in (mine, theirs))
        return not set.isdisjoint(*digests)
    return False

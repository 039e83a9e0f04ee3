"""Who holds which images, and keyed draws of records by their content.

A partition is two steps with a seed each: the class map says how many images of each class a client
gets, and the shots say which ones. A client's test images follow the same distribution as its
training images: all test images of its classes, split evenly where several clients own a class, or
in the shares of the training images, each rounded down. Under `iid` it gets test images of all
classes, whatever training images were drawn. A class with fewer images than the shots gives all its
images, as in published loaders.

*Keyed draws* say which of a client's records are for testing and which validate. A draw that
shuffles all records of a client changes many of them when a record comes or goes. Here each record
falls on a side by its own content and a key alone: one record more or less changes the side of no
other, and records of the same content are on the same side. The key must be a secret of the holder,
because anybody who knows the key could compute which records train. In a federation it follows from
the secret in the holder's own store, in a simulation from a seed and the client's name. So a share
is met on average only, and a side may stay empty.

*Dirichlet shares*: for each class the clients' shares are drawn from a symmetric Dirichlet
distribution; clients that already hold their even part get nothing more; training and test images
are split in the same shares (the partition that FedPGP, appendix A.2, and pFedMoAP use on CIFAR,
after Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks", section
4). All is drawn again until every client has enough. Published loops of this kind never end where
that is impossible; this one stops with an error.

*Many clients with little each*: images of any class, or a few of the classes, in balance. With
disjoint classes twenty classes serve ten few-shot clients; with shots of every class a client holds
at least one image of each. Neither gives a thousand clients a handful of images each. Here clients
share classes, but no images.

*Shared ratio*, the S ratio of PM-MoE: as its code deals out data (a partition of PFLlib with a
shared part), training and test images are one pool. Of each class a share S is spread evenly over
all clients, and the last client gets the remainder; the rest goes out in Dirichlet shares, among
clients who hold less than their even part. Then each client splits its images by a shuffle, three
quarters for training; as published it splits neither by class nor by domain. Without a shared part
this is PFLlib's Dirichlet partition. A client's test images therefore have the distribution of its
training images, and not of the data set's own test part.

*Pachinko allocation* (Li and McCallum 2006), as federated learning deals out CIFAR-100 with it
(Reddi et al. 2021, "Adaptive Federated Optimization", appendix on data sets): a client draws shares
of the superclasses from Dir(alpha) and, within each, shares of its classes from Dir(10). Then it
draws its even part of all images one by one: a superclass, a class in it, an image of that class,
without replacement. A class or superclass without images left drops out, and the other shares are
scaled up. The published code of FedOTP and of what builds on it does so by default for CIFAR-100
(`noniid-labeldir100`, with one seed for all runs): training and test images are one pool, and a
client tests with those of its images that the data set calls test images. Where clients do not
divide the pool, no client gets the remainder.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Indices, Split, content_digests
from platform.errors import ConfigError

Counts = NDArray[np.int64]
"""Images of each class and client, (classes, clients); or sizes of classes, (classes,)."""
DRAWS: Final = 100
"""A partition gives up after this many draws that leave a client short."""
# Keeps rounding from cutting an image off a cumulative share that should be whole.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class DirichletShares:
    """How Dirichlet shares are drawn.

    Attributes:
        alpha: Concentration; the smaller, the more unequal. Large values make all clients alike.
        minimum: Fewest training images of a client; under `shared_ratio` training and test images
            together, 0 for `least_images`.
        fewest_classes: Fewest classes among a client's training images. A few shots of one class
            teach nothing about any other.
        minimum_test: Fewest test images of a client; published loops ask for `minimum` here too.
    """

    alpha: float = 0.5
    minimum: int = 2
    fewest_classes: int = 1
    minimum_test: int = 1


def dirichlet_counts(
    shares: DirichletShares,
    train_sizes: Counts,
    test_sizes: Counts,
    clients: int,
    *,
    rng: np.random.Generator,
    whose: str = "clients",
) -> tuple[Counts, Counts]:
    """Draw the training and test images of each client by class, (classes, clients) each.

    All images of the given sizes, (classes,) each, are dealt out; `whose` is the word for the
    clients in errors. Refuses if no draw out of `DRAWS` gives every client its least.
    """
    for train, test in _draws(shares.alpha, (train_sizes, test_sizes), clients, rng):
        if _has_enough(shares, train) and test.sum(axis=0).min() >= shares.minimum_test:
            return train, test
    tests = "a test image" if shares.minimum_test == 1 else f"{shares.minimum_test} test images"
    raise _never_enough(shares, "training images", f" and {tests}", f"{clients} {whose}")


def _draws(
    alpha: float,
    sizes: Sequence[Counts],
    clients: int,
    rng: np.random.Generator,
    *,
    ratio: float = 0.0,
) -> Iterator[list[Counts]]:
    """Yield draws, for each of the sizes (classes,) counts (classes, clients).

    The share `ratio` of each class of the first sizes is spread evenly; who gets more of the rest
    depends on what clients hold of these. Draws whose shares underflow are left out.
    """
    even = sizes[0].sum() / clients
    for _ in range(DRAWS):
        counts = [np.zeros((len(each), clients), np.int64) for each in sizes]
        for label, size in enumerate(sizes[0]):
            shared = int(ratio * size + _ROUNDING)
            counts[0][label] = shared // clients
            counts[0][label, -1] += shared % clients
            held = counts[0].sum(axis=0)
            is_open = held < even
            # Where the remaining classes have no training images, all clients have their part.
            drawn = rng.dirichlet(np.full(len(held), alpha)) * (is_open if is_open.any() else 1)
            share = drawn / drawn.sum() if drawn.sum() > 0 else None
            if share is None:
                break
            for of, each, taken in zip(counts, sizes, (shared, 0), strict=False):
                of[label] += _cut(share, int(each[label]) - taken)
        else:
            yield counts


def _has_enough(shares: DirichletShares, counts: Counts) -> bool:
    images, classes = counts.sum(axis=0), (counts > 0).sum(axis=0)
    return bool(images.min() >= shares.minimum and classes.min() >= shares.fewest_classes)


def _never_enough(shares: DirichletShares, noun: str, more: str, whose: str) -> ConfigError:
    """Return the refusal after the last draw."""
    of = f" of {shares.fewest_classes} classes" if shares.fewest_classes > 1 else ""
    return ConfigError(
        f"task.partition.minimum: none of {DRAWS} draws with task.partition.alpha = "
        f"{shares.alpha:g} gave {shares.minimum} {noun}{of}{more} to each of {whose}; use fewer "
        "clients, more images or a larger alpha"
    )


def _cut(share: NDArray[np.float64], size: int) -> Counts:
    """Divide `size` images into these shares; cumulative shares are rounded down."""
    ends = np.floor(np.cumsum(share) * size + _ROUNDING).astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)


def random_counts(
    labels: Indices, classes: int, each: int, clients: int, *, rng: np.random.Generator
) -> Counts:
    """Draw `each` images for every client, whatever their class: counts, (classes, clients)."""
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
    """Draw classes for each client, so that the classes' numbers of owners differ by one at most.

    Clients choose one after the other, in random order, each at random among the classes that have
    the fewest owners so far. A class without an owner is refused.
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


_MOST_ASKED: Final = 40
"""PFLlib's least number of images of a client: a batch of ten for testing, 10 / (1 - 0.75)."""
_SPLITTABLE: Final = 2
_WITHIN_CLIENT: Final = 0.25
"""Share of a client's own images that it tests with under `shared_ratio`."""


def least_images(images: int, clients: int) -> int:
    """Return PFLlib's least number of images of a client: 40, or half its even part if less."""
    return int(min(_MOST_ASKED, images / clients / 2))


def shared_ratio_counts(
    shares: DirichletShares, sizes: Counts, clients: int, *, ratio: float, rng: np.random.Generator
) -> Counts:
    """Draw how many images of each class a client gets under `shared_ratio`, (classes, clients).

    The sizes are training and test images together, (classes,), and all are dealt out. The share
    `ratio` (S in [0, 1]) of each class is spread evenly, and the rest drawn.
    """
    asked = shares.minimum or least_images(int(sizes.sum()), clients)
    # One image cannot be for training and for testing.
    shares = replace(shares, minimum=max(asked, _SPLITTABLE))
    for (counts,) in _draws(shares.alpha, (sizes,), clients, rng, ratio=ratio):
        if _has_enough(shares, counts):
            return counts
    raise _never_enough(shares, "images", "", f"{clients} clients")


def split_own(rows: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split a client's rows into training rows and test rows, a quarter, rounded up."""
    shuffled = rng.permutation(rows)
    tests = int(np.ceil(_WITHIN_CLIENT * len(rows)))
    return np.sort(shuffled[tests:]), np.sort(shuffled[:tests])


WITHIN: Final = 10.0
"""Concentration of the shares within a superclass, as published: nearly even."""


def pachinko_counts(
    sizes: Counts,
    superclasses: Sequence[int],
    clients: int,
    alpha: float,
    *,
    rng: np.random.Generator,
) -> Counts:
    """Draw how many images of each class a client gets by Pachinko allocation, (classes, clients).

    The sizes are training and test images together, (classes,); `alpha` is the concentration of the
    shares of superclasses. All columns have the same sum.
    """
    left, groups = sizes.astype(np.int64), np.asarray(superclasses)
    counts = np.zeros((len(sizes), clients), np.int64)
    for client in range(clients):
        found = np.unique(groups[left > 0])
        members = [np.flatnonzero((groups == group) & (left > 0)) for group in found]
        outer = _Shares(rng.dirichlet(np.full(len(found), alpha)))
        inner = [_Shares(rng.dirichlet(np.full(len(own), WITHIN))) for own in members]
        for first, second in rng.random((int(sizes.sum()) // clients, 2)):
            group = outer.at(first)
            place = inner[group].at(second)
            label = members[group][place]
            counts[label, client] += 1
            left[label] -= 1
            if not left[label]:
                inner[group].without(place)
                if not left[members[group]].any():
                    outer.without(group)
    return counts


class _Shares:
    """Shares of sum one; dropped shares are zero."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values = values
        self._is_open = np.ones(len(values), bool)
        self._scale()

    def at(self, place: float) -> int:
        """Return the share into which a number in [0, 1) falls."""
        return int(np.searchsorted(self._ends, place, side="right"))

    def without(self, index: int) -> None:
        """Drop one share and scale the others up."""
        self._is_open[index] = False
        self._scale()

    def _scale(self) -> None:
        weights = np.where(self._is_open, self._values, 0.0)
        if not weights.sum() > 0.0:
            # The remaining shares underflowed; the published code gives no number here.
            weights = self._is_open.astype(np.float64)
        if self._is_open.any():
            self._ends = np.cumsum(weights / weights.sum())
            # Rounding of the sum must leave no place beyond the last open share.
            self._ends[np.flatnonzero(self._is_open)[-1] :] = 1.0


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
    """The rules of one partition.

    Attributes:
        classes: Number of classes; under `domain_dirichlet`, of pairs of domain and class, by
            domain.
        shots: Training images per owned class and client, fewer where a class has fewer; per class
            in all where clients get random shares, under `shared_ratio` training and test images
            together. None takes all images, or `images_each`.
        domains: Names of the domains that `domain_dirichlet` deals out; their number divides
            `clients`.
        superclasses: Of each class, under `hierarchical_dirichlet`.
        shared_ratio: The share of each class that `shared_ratio` spreads evenly.
        shared_classes: The share of classes that all clients own under `pathological`.
        classes_each: Classes of a client there, which others own as well; None for disjoint ones.
        images_each: Training images of a client under `iid`, of any class; None for shots.
        fewest_classes: Fewest classes among a client's training images, under any kind; None for
            two under few shots, else one.
        slices: How `pathological` cuts disjoint classes where clients do not divide them.
    """

    kind: str
    clients: int
    classes: int
    shots: int | None
    shares: DirichletShares = DirichletShares()
    domains: tuple[str, ...] = ()
    superclasses: tuple[int, ...] = ()
    shared_ratio: float = 0.0
    shared_classes: float = 0.0
    classes_each: int | None = None
    images_each: int | None = None
    fewest_classes: int | None = None
    slices: Literal["even", "rounded"] = "even"

    @property
    def may_lack_tests(self) -> bool:
        """Whether a client may have no test image, because there are many clients."""
        return self.classes_each is not None or self.images_each is not None

    @property
    def least_classes(self) -> int:
        """Fewest classes among a client's training images."""
        few = 1 if self.shots is None else _FEW_SHOT_CLASSES
        return few if self.fewest_classes is None else self.fewest_classes


_FEW_SHOT_CLASSES = 2
"""A client with a few images of one class only learns to say that class."""


def class_map(plan: PartitionPlan, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each client, ascending, under `iid` and `pathological`.

    Pathological: a shuffle of all classes, the first ones for all clients if some are shared, the
    rest cut into even, disjoint slices (pFedMoAP, section 5.1; FedPGP's code for shared classes),
    or rounded slices with the rest for the last client (both papers' code); or a given number of
    classes for each client, in balance.
    """
    if plan.kind == "iid":
        return tuple(tuple(range(plan.classes)) for _ in range(plan.clients))
    if plan.classes_each is not None:
        return balanced_classes(plan.classes, plan.classes_each, plan.clients, rng=rng)
    shared = round(plan.shared_classes * plan.classes)
    if plan.shared_classes and not shared:
        raise ConfigError(
            f"task.partition.shared_classes: {plan.shared_classes:g} of {plan.classes} "
            f"classes is less than half a class; valid: null, or from {1 / plan.classes:.2g}"
        )
    left, fewest = plan.classes - shared, plan.least_classes
    # If clients do not share all classes, each needs one of its own, or two if it would otherwise
    # have few shots of a single class.
    own = 0 if not left else max(1, fewest - shared)
    most = plan.clients if not own else left // own
    if plan.clients > most or shared + own < fewest:
        why = "" if fewest == 1 else ", two a client, since a few shots of one class teach nothing"
        if plan.fewest_classes is not None:
            why = f" with task.partition.fewest_classes = {fewest}"
        valid = f"1 to {most}" if most else "a data set with more classes"
        of = f"{left} of {plan.classes} classes" if shared else f"{plan.classes} classes"
        raise ConfigError(
            f"task.clients: {plan.clients} is more than a {plan.kind} partition can deal {of} out "
            f"to{why}; valid: {valid}"
        )
    order = rng.permutation(plan.classes)
    common, rest = order[:shared].tolist(), order[shared:]
    if plan.slices == "even":
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
    split_rng: Callable[[int], np.random.Generator],
) -> tuple[ClientIndices, ...]:
    """Deal out the images; no image goes to two clients, and a client with too few is refused.

    Labels are of each image, under `shared_ratio` those of the one pool. The generators draw how
    many images of each class a client gets, which, and under `shared_ratio` the client's own split.
    """
    sizes = [np.bincount(labels, minlength=plan.classes) for labels in (train_labels, test_labels)]
    if plan.kind == "shared_ratio":
        shares = replace(plan.shares, fewest_classes=plan.least_classes)
        counts = shared_ratio_counts(
            shares, _cap(plan, sizes[0]), plan.clients, ratio=plan.shared_ratio, rng=class_rng
        )
        clients = tuple(
            ClientIndices(*split_own(rows, split_rng(position)))
            for position, rows in enumerate(_dealt(shot_rng, (train_labels, sizes[0], counts))[0])
        )
    elif plan.kind == "hierarchical_dirichlet":
        # One pool, in which a test image stays a test image.
        labels, first = np.concatenate([train_labels, test_labels]), len(train_labels)
        pool = sizes[0] + sizes[1]
        counts = pachinko_counts(
            pool, plan.superclasses, plan.clients, plan.shares.alpha, rng=class_rng
        )
        clients = tuple(
            ClientIndices(rows[rows < first], rows[rows >= first] - first)
            for rows in _dealt(shot_rng, (labels, pool, counts))[0]
        )
    else:
        if plan.images_each is not None:
            train_counts = random_counts(
                train_labels, plan.classes, plan.images_each, plan.clients, rng=class_rng
            )
            test_counts = _evenly(sizes[1], np.ones((plan.classes, plan.clients), np.int64))
        else:
            train_counts, test_counts = _counts(plan, sizes[0], sizes[1], class_rng)
        sides = ((train_labels, sizes[0], train_counts), (test_labels, sizes[1], test_counts))
        train, test = _dealt(shot_rng, *sides)
        clients = tuple(map(ClientIndices, train, test))
    require_images(clients, may_lack_tests=plan.may_lack_tests)
    _require_few_shot_classes(plan, [train_labels[client.train] for client in clients])
    return clients


def _counts(
    plan: PartitionPlan, train_sizes: Counts, test_sizes: Counts, rng: np.random.Generator
) -> tuple[Counts, Counts]:
    """Return training and test images of each client by class, (classes, clients) each."""
    shares = replace(plan.shares, fewest_classes=plan.least_classes)
    if plan.kind == "dirichlet":
        train_sizes = _cap(plan, train_sizes)
        return dirichlet_counts(shares, train_sizes, test_sizes, plan.clients, rng=rng)
    if plan.kind == "domain_dirichlet":
        # Each domain by itself among as many clients, who are neighbours.
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
    """Return the images of each class that are dealt out."""
    _require_shots(plan, sizes, "")
    return sizes if plan.shots is None else np.minimum(sizes, plan.shots)


def _evenly(sizes: Counts, owns: Counts) -> Counts:
    """Split each class's images among its owners, (classes, clients).

    The remainder goes round: the next class begins where the last one ended. If all classes began
    with the first client, it would get most, and the last ones would get no test image of classes
    with fewer images than clients.
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
    # One sort, as there may be thousands of classes.
    order = np.argsort(labels, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


def _dealt(rng: np.random.Generator, *pools: tuple[Indices, Counts, Counts]) -> list[list[Indices]]:
    """Deal out pools (labels, class sizes, counts by client); return clients' rows of each."""
    rows = [_by_class(labels, sizes) for labels, sizes, _ in pools]
    hands = [[[np.zeros(0, np.int64)] for _ in counts.T] for _, _, counts in pools]
    for label in range(len(rows[0])):
        for of_pool, own, (_, _, counts) in zip(rows, hands, pools, strict=True):
            shuffled, ends = rng.permutation(of_pool[label]), np.cumsum(counts[label])
            for hand, start, end in zip(own, ends - counts[label], ends, strict=True):
                hand.append(shuffled[start:end])
    return [[np.sort(np.concatenate(hand)) for hand in own] for own in hands]


def _require_shots(plan: PartitionPlan, most: Counts, whose: str) -> None:
    """Refuse more shots than any class has; a class with fewer images gives all of them."""
    largest = int(most.max())
    if plan.shots is None or plan.shots <= largest:
        return
    valid = f"1 to {largest}" if largest else "null, or fewer clients"
    raise ConfigError(
        f"task.shots: {plan.shots}{whose} is more than any class has images for; valid: {valid}"
    )


def require_images(clients: Sequence[ClientIndices], *, may_lack_tests: bool) -> None:
    """Refuse a client without a training image, or without a test image unless it may lack one."""
    for client, indices in enumerate(clients):
        for rows, what in ((indices.train, "training"), (indices.test, "test")):
            if not len(rows) and not (what == "test" and may_lack_tests):
                raise ConfigError(
                    f"task.clients: client {client} of {len(clients)} would have no {what} image; "
                    "use fewer clients"
                )


def _require_few_shot_classes(plan: PartitionPlan, held: Sequence[Indices]) -> None:
    if plan.fewest_classes is not None:
        require_asked_classes(plan.fewest_classes, held)
        return
    few, name = plan.shots, "task.shots"
    use = "fewer clients, or null for all images"
    if plan.images_each is not None:
        few, name, use = plan.images_each, "task.partition.images_per_client", "more images"
    if plan.classes_each is not None:
        name, few, use = "task.partition.classes_per_client", plan.classes_each, "2 or more"
    if few is None:
        return
    for client, labels in enumerate(held):
        if len(np.unique(labels)) < _FEW_SHOT_CLASSES:
            raise ConfigError(
                f"{name}: {few} would leave client {client} of {len(held)} with training images of "
                f"one class only, which teach nothing about any other; use {use}"
            )


def require_asked_classes(asked: int, held: Sequence[Indices]) -> None:
    """Refuse a client with fewer classes than asked for among its training labels, `held`."""
    for client, labels in enumerate(held):
        if (found := len(np.unique(labels))) < asked:
            raise ConfigError(
                f"task.partition.fewest_classes: {asked} is more than client {client} of "
                f"{len(held)} can meet with its training images; valid here: 1 to {found}"
            )


TEST_SHARE: Final = 0.2
"""Share of test images in each class if files tell no split (80/20 in TRIP)."""
Draw = Literal["test", "validation", "shots"]
"""The purpose of a keyed draw; draws for two purposes are independent under one key."""


def places(digests: Sequence[bytes], key: bytes, draw: Draw) -> NDArray[np.float64]:
    """Return where records of these digests fall in [0, 1), by a secret key of their holder."""
    of_draw = hmac.digest(key, draw.encode(), "sha256")
    drawn = [hmac.digest(of_draw, digest, "sha256")[:6] for digest in digests]
    # Six bytes are exact in a double, which eight are not.
    return np.array([int.from_bytes(value) for value in drawn], np.float64) / 2.0**48


def draw_below(
    share: float, paths: Sequence[str], digests: Sequence[bytes], key: bytes
) -> frozenset[str]:
    """Return the paths of the records that fall below a share in the draw of test records."""
    falls = places(digests, key, "test")
    return frozenset(path for path, place in zip(paths, falls, strict=True) if place < share)


def draw_tests(pieces: Sequence[Sequence[str]], rng: np.random.Generator) -> list[str]:
    """Return `TEST_SHARE` of the paths of a class; those of one piece, such as copies, together."""
    # Two images go to one side each; a single image is for training.
    wanted, drawn = max(round(TEST_SHARE * sum(map(len, pieces))), 1), list[str]()
    for position in rng.permutation(len(pieces))[: len(pieces) - 1]:
        if len(drawn) < wanted:
            drawn += pieces[position]
    return drawn


def carve(client: ClientIndices, split: Split, share: float, key: bytes) -> ClientIndices:
    """Move about a share of a client's training rows to its validation rows, by a secret key."""
    moved = places(content_digests(split, client.train), key, "validation") < share
    validation = np.union1d(client.validation, client.train[moved])
    return replace(client, train=client.train[~moved], validation=validation)

"""How many images of each class a client gets, in the ways that federated learning papers take.

Dirichlet shares: for each class the clients' shares are drawn from a symmetric Dirichlet
distribution; clients that already hold their even part get nothing more; training and test images
are split in the same shares (the partition that FedPGP, appendix A.2, and pFedMoAP use on CIFAR,
after Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks", section
4). All is drawn again until every client has enough. A published loop of this kind never ends where
that cannot be; this one gives up and says so.

Many clients with little each: images whatever their class, or a few of the classes, in balance.
With disjoint classes twenty of them serve ten few-shot clients, and with shots of every class a
client holds at least as many images as there are classes. Neither gives a thousand clients a
handful of images each. Here clients share classes, and no images.

Shared ratio, the S ratio of PM-MoE: as its code deals out data (a partition of PFLlib with a shared
part), training and test images are one pool. Of each class a share S is spread evenly over all
clients, and the last client gets the remainder; the rest goes out in Dirichlet shares, among
clients who hold less than their even part. Then each client splits its images by a shuffle, three
quarters for training; as published it splits neither by class nor by domain. Without a shared part
this is PFLlib's Dirichlet partition. The test images of a client therefore have the distribution of
its training images, and not of the data set's own test part.

Pachinko allocation (Li and McCallum 2006), as federated learning deals out CIFAR-100 with it (Reddi
et al. 2021, "Adaptive Federated Optimization", appendix on data sets): a client draws shares of the
superclasses from Dir(alpha) and, within each, shares of its classes from Dir(10). Then it draws its
even part of all images one by one: a superclass, a class in it, an image of that class, without
replacement. A class or superclass without images left drops out, and the other shares are scaled
up. The published code of FedOTP and of what builds on it does so by default for CIFAR-100
(`noniid-labeldir100`, with one seed for all runs): training and test images are one pool, and a
client tests with those of its images that the data set calls test images. Where clients do not
divide the pool, the remainder goes to no client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Indices
from platform.errors import ConfigError

Counts = NDArray[np.int64]

DRAWS: Final = 100
# Keeps a cumulative share that should be whole from being cut off below.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class DirichletShares:
    """How shares are drawn.

    Attributes:
        alpha: Concentration; the smaller, the more unequal. Large values make all clients alike.
        minimum: Fewest training images of a client.
        fewest_classes: Of how many classes a client has training images at least. A few shots of
            one class teach nothing about any other.
        minimum_test: Fewest test images of a client; published loops ask for `minimum` of them too.
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
    """Draw how many images of each class a client gets.

    Args:
        shares: How they are drawn.
        train_sizes: Training images of each class that are dealt out, (classes,).
        test_sizes: Test images of each class, (classes,); all are dealt out.
        clients: Number of clients.
        rng: Draws the shares.
        whose: How errors call the clients.

    Returns:
        Counts of training and of test images, (classes, clients) each.

    Raises:
        ConfigError: If no draw out of `DRAWS` gave every client its least.
    """
    even = train_sizes.sum() / clients
    for _ in range(DRAWS):
        train = np.zeros((len(train_sizes), clients), np.int64)
        test = np.zeros((len(test_sizes), clients), np.int64)
        for label in range(len(train_sizes)):
            share = share_out(shares.alpha, train.sum(axis=0), even, rng=rng)
            if share is None:
                break
            train[label] = cut(share, train_sizes[label])
            test[label] = cut(share, test_sizes[label])
        else:
            if has_enough(shares, train) and test.sum(axis=0).min() >= shares.minimum_test:
                return train, test
    tests = "a test image" if shares.minimum_test == 1 else f"{shares.minimum_test} test images"
    classes = f" of {shares.fewest_classes} classes" if shares.fewest_classes > 1 else ""
    what = f"{shares.minimum} training images{classes} and {tests}"
    raise never_enough(shares, what, f"{clients} {whose}")


def has_enough(shares: DirichletShares, counts: Counts) -> bool:
    """Return whether every client has its least of these images, (classes, clients)."""
    images, classes = counts.sum(axis=0), (counts > 0).sum(axis=0)
    return bool(images.min() >= shares.minimum and classes.min() >= shares.fewest_classes)


def never_enough(shares: DirichletShares, what: str, whose: str) -> ConfigError:
    """Return the refusal after the last draw.

    Args:
        shares: How they were drawn.
        what: What each client must have.
        whose: How many clients of what.
    """
    return ConfigError(
        f"task.partition.minimum: {what} for each of {whose} came out of none of {DRAWS} draws "
        f"with task.partition.alpha = {shares.alpha:g}; use fewer clients, more images or a larger "
        "alpha"
    )


def share_out(
    alpha: float, held: Counts, even: float, *, rng: np.random.Generator
) -> NDArray[np.float64] | None:
    """Return random shares of a class among the clients that hold less than their even part.

    Args:
        alpha: Concentration.
        held: Images that each client holds already, (clients,).
        even: A client's even part of all images.
        rng: Draws the shares.

    Returns:
        Shares (clients,) that sum to one; None where all of them underflow to zero.
    """
    is_open = held < even
    # Where the remaining classes have no training images, all clients have their part already.
    drawn = rng.dirichlet(np.full(len(held), alpha)) * (is_open if is_open.any() else 1)
    return drawn / drawn.sum() if drawn.sum() > 0 else None


def cut(share: NDArray[np.float64], size: int) -> Counts:
    """Divide so many images into these shares, (clients,) each.

    Cumulative shares are rounded down.
    """
    ends = np.floor(np.cumsum(share) * size + _ROUNDING).astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)


@dataclass(frozen=True, kw_only=True)
class Portion:
    """What a client gets under `iid` and `pathological` beside its shots.

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


TEST_SHARE: Final = 0.25
MOST_ASKED: Final = 40
"""PFLlib's least number of images of a client: a batch of ten for testing, 10 / (1 - 0.75)."""
_SPLITTABLE: Final = 2


@dataclass(frozen=True)
class SharedRatio:
    """How a class is dealt out.

    Attributes:
        ratio: The share S of each class that is spread evenly, in [0, 1].
        alpha: Concentration of the rest's shares; PM-MoE takes 0.1.
        minimum: Fewest images of a client, training and test together; None for PFLlib's, see
            `least_images`.
        fewest_classes: Of how many classes a client has images at least.
    """

    ratio: float = 0.0
    alpha: float = 0.1
    minimum: int | None = None
    fewest_classes: int = 1


def least_images(images: int, clients: int) -> int:
    """Return PFLlib's least number of images of a client.

    40, or half its even part if that is less.
    """
    return int(min(MOST_ASKED, images / clients / 2))


def shared_ratio_counts(
    rule: SharedRatio, sizes: Counts, clients: int, *, rng: np.random.Generator
) -> Counts:
    """Draw how many images of each class a client gets.

    Args:
        rule: How classes are dealt out.
        sizes: Images of each class, training and test together, (classes,); all are dealt out.
        clients: Number of clients.
        rng: Draws the shares.

    Returns:
        Counts, (classes, clients).

    Raises:
        ConfigError: If no draw out of `DRAWS` gave every client its least.
    """
    asked = least_images(int(sizes.sum()), clients) if rule.minimum is None else rule.minimum
    # One image can be no training and no test image at once.
    shares = DirichletShares(rule.alpha, max(asked, _SPLITTABLE), rule.fewest_classes)
    for _ in range(DRAWS):
        counts = _draw_ratio(rule, sizes, clients, rng)
        if counts is not None and has_enough(shares, counts):
            return counts
    of = f" of {rule.fewest_classes} classes" if rule.fewest_classes > 1 else ""
    raise never_enough(shares, f"{shares.minimum} images{of}", f"{clients} clients")


def split_own(rows: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split a client's rows into training and test rows, ascending.

    Args:
        rows: At least two; a quarter, rounded up, are test rows.
        rng: Shuffles them.
    """
    shuffled = rng.permutation(rows)
    tests = int(np.ceil(TEST_SHARE * len(rows)))
    return np.sort(shuffled[tests:]), np.sort(shuffled[:tests])


def _draw_ratio(
    rule: SharedRatio, sizes: Counts, clients: int, rng: np.random.Generator
) -> Counts | None:
    counts = np.zeros((len(sizes), clients), np.int64)
    even = sizes.sum() / clients
    for label, size in enumerate(sizes):
        shared = int(rule.ratio * size + 1e-9)
        counts[label] = shared // clients
        counts[label, -1] += shared % clients
        share = share_out(rule.alpha, counts.sum(axis=0), even, rng=rng)
        if share is None:
            return None
        counts[label] += cut(share, int(size) - shared)
    return counts


Floats = NDArray[np.float64]

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
    """Draw how many images of each class a client gets.

    Args:
        sizes: Images of each class, training and test together, (classes,).
        superclasses: Of each class, (classes,).
        clients: Number of clients.
        alpha: Concentration of the shares of superclasses.
        rng: Draws shares, classes and images.

    Returns:
        Counts, (classes, clients), of which each column has the same sum.
    """
    left, groups = sizes.astype(np.int64), np.asarray(superclasses)
    counts = np.zeros((len(sizes), clients), np.int64)
    for client in range(clients):
        counts[:, client] = _one_client(left, groups, int(sizes.sum()) // clients, alpha, rng=rng)
    return counts


def _one_client(
    left: Counts, groups: NDArray[np.int64], images: int, alpha: float, *, rng: np.random.Generator
) -> Counts:
    """Draw one client's images of each class and take them from `left`."""
    found = np.unique(groups[left > 0])
    members = [np.flatnonzero((groups == group) & (left > 0)) for group in found]
    outer = _Shares(rng.dirichlet(np.full(len(found), alpha)))
    inner = [_Shares(rng.dirichlet(np.full(len(own), WITHIN))) for own in members]
    counts = np.zeros_like(left)
    for first, second in rng.random((images, 2)):
        group = outer.at(first)
        place = inner[group].at(second)
        label = members[group][place]
        counts[label] += 1
        left[label] -= 1
        if not left[label]:
            inner[group].without(place)
            if not left[members[group]].any():
                outer.without(group)
    return counts


@dataclass
class _Shares:
    """Shares that sum to one; dropped ones are zero.

    Attributes:
        values: The shares.
        ends: Where each ends between nought and one.
    """

    values: Floats
    is_open: NDArray[np.bool_] = field(init=False)
    ends: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.is_open = np.ones(len(self.values), bool)
        self._scale()

    def at(self, place: float) -> int:
        """Return which share a number in [0, 1) falls into."""
        return int(np.searchsorted(self.ends, place, side="right"))

    def without(self, index: int) -> None:
        """Drop one share and scale the others up."""
        self.is_open[index] = False
        self._scale()

    def _scale(self) -> None:
        weights = np.where(self.is_open, self.values, 0.0)
        if not weights.sum() > 0.0:
            # The remaining shares underflowed; the published code gives no number here.
            weights = self.is_open.astype(np.float64)
        total = weights.sum()
        if total:
            self.ends = np.cumsum(weights / total)
            # Rounding of the sum must leave no place beyond the last open share.
            self.ends[np.flatnonzero(self.is_open)[-1] :] = 1.0

"""Routers: how images are shared out to experts, by clusters of their tokens or by a learned layer.

TRIP's own router learns nothing (Gong et al. 2025, sections IV-A and IV-B): it clusters the tokens
of an image within capacities and matches the M clusters one to one with M static keys at the
smallest cost 1 - cos(centroid, key) (Eqs. 5-7, Hungarian algorithm). Expert e weighs by the share
of kept tokens in its cluster. All of it depends on the image alone, so it is computed once.

The learned routers are the ablations of its section V-F: one linear layer and a softmax, over each
token or over the image's feature. Our reading decides the layer's input and how tokens' shares
combine (the mean of their softmaxes). The paper refers to Switch Transformer (Fedus et al. 2022);
its balancing loss (its Eq. 4) is taken within each image, as a loss is one example's here.

The random router is its ablation without clusters (Table V).

Clusters with capacities are those of section IV-A. The cost of token j in cluster m is the term of
the Lagrangian (Eq. 4), ||x_j - mu_m||^2 + theta_m. A token goes to its cheapest cluster; a full
cluster keeps its cheapest tokens and discards the rest. theta_m rises while more tokens ask for the
cluster than it holds, and falls, never below zero, while fewer do. A centroid is a mean of tokens,
so all distances follow from the tokens' products G = X X^T: with rows A of the means, x_j . mu_m =
(A G)_mj. G is computed once, and one round of all images is a few array operations. Each image
takes the same operations on its own numbers. So its clusters do not depend on other images, not
even by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from methods.errors import MethodError
from methods.interface import method as m
from methods.networks.layers import Parameters, linear_layers, linear_start, specs

DISCARDED = -1
"""Label of a token that no cluster keeps."""
MOST_ROUNDS = 100
"""Most rounds for an image; after these its clusters stay as they are (published code)."""

INDEX_BITS = 16
"""Bits for a token's position: images have at most 65,536 tokens."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rules:
    """Rules of clustering.

    Attributes:
        capacity_factor: alpha; a cluster keeps at most alpha T / M of T tokens.
        multiplier_step: Step eta of the multipliers theta, in units of the cost.
        variant: `published` uses plain distances as costs, moves theta by what clusters kept (so
            only downwards, and below zero), gives the first T mod M clusters one token more, and
            seats all empty clusters together at one token, the farthest.
    """

    capacity_factor: float
    multiplier_step: float
    variant: Literal["paper", "published"] = "paper"

    def capacities(self, tokens: int, clusters: int) -> Ints:
        """Return the most tokens that each cluster keeps, at least one, (clusters,)."""
        if self.variant == "paper":
            # |C_m| <= alpha T / M, in whole tokens; the slack is for products such as 0.1 x 30.
            largest = int(self.capacity_factor * tokens / clusters + 1e-9)
            return np.full(clusters, max(largest, 1), np.int64)
        base = int(tokens // clusters * self.capacity_factor)
        spare = np.arange(clusters) < tokens % clusters
        return np.asarray(np.maximum(base + spare, 1), np.int64)


@dataclass(frozen=True)
class Clusters:
    """The clusters of n images.

    Attributes:
        labels: Cluster of each token, `DISCARDED` for none, (n, T).
        weights: Rows of means: `weights @ tokens` are the centroids, (n, M, T). The row of an empty
            cluster is the token where it was seated last.
        sizes: Number of tokens that each cluster keeps, (n, M).
        rounds: Rounds that each image took, (n,).
    """

    labels: Ints
    weights: Floats
    sizes: Ints
    rounds: Ints


@dataclass
class _Active:
    """The images that still change: arrays with one row for each image."""

    rows: Ints
    products: Floats
    weights: Floats
    multipliers: Floats
    labels: Ints

    def only(self, keep: NDArray[np.bool_]) -> _Active:
        return _Active(**{name: array[keep] for name, array in vars(self).items()})


def cluster(products: Floats, seats: Ints, rules: Rules) -> Clusters:
    """Return the clusters of the tokens of each image.

    An image is done when its centroids rest: all are means of the same tokens as before.

    Args:
        products: G = X X^T of each image, (n, T, T).
        seats: Tokens that are the first centroids, all different, (M,) or (n, M).
        rules: The rules of clustering.
    """
    count, tokens = products.shape[:2]
    seats = np.broadcast_to(seats, (count, seats.shape[-1]))
    clusters = seats.shape[1]
    capacities = rules.capacities(tokens, clusters)
    active = _Active(
        np.arange(count),
        products,
        np.asarray(seats[:, :, None] == np.arange(tokens), np.float32),
        np.zeros((count, clusters), np.float32),
        np.full((count, tokens), DISCARDED),
    )
    result = Clusters(
        np.empty((count, tokens), np.int64),
        np.empty((count, clusters, tokens), np.float32),
        np.empty((count, clusters), np.int64),
        np.empty(count, np.int64),
    )
    for number in range(1, MOST_ROUNDS + 1):
        before = active.weights
        _round(active, capacities, rules)
        rests = (active.weights == before).all(axis=(1, 2))
        # Rows are dropped, not masked, and written when dropped: no array operation sees them.
        gone = rests if number < MOST_ROUNDS else np.ones_like(rests)
        if gone.any():
            ended = active.only(gone)
            result.labels[ended.rows], result.weights[ended.rows] = ended.labels, ended.weights
            kept = ended.labels[:, None, :] == np.arange(clusters)[:, None]
            result.sizes[ended.rows], result.rounds[ended.rows] = kept.sum(axis=-1), number
            active = active.only(~gone)
        if not len(active.rows):
            break
    return result


def farthest_first(products: Floats, clusters: int) -> Ints:
    """Return seats (n, M), token indices far from one another, from G of each image (n, T, T).

    The first seat is the longest token, each further seat the token farthest from all before.
    """
    squares = np.diagonal(products, axis1=1, axis2=2)
    seats = [squares.argmax(axis=1)]
    rows = np.arange(len(products))
    nearest = np.full(squares.shape, np.inf)
    for _ in range(clusters - 1):
        last = seats[-1]
        distances = squares + squares[rows, last][:, None] - 2 * products[rows, last]
        nearest = np.minimum(nearest, distances)
        nearest[rows, last] = -np.inf
        seats.append(nearest.argmax(axis=1))
    return np.stack(seats, axis=1)


def blocks(count: int, tokens: int) -> Iterator[slice]:
    """Return slices of images whose products fit into a processor's cache; changes speed only."""
    size = max(1, 2**20 // tokens**2)
    return (slice(start, start + size) for start in range(0, count, size))


def _round(active: _Active, capacities: Ints, rules: Rules) -> None:
    """Assign tokens, then move centroids and multipliers."""
    # Squared distances of centroids to tokens, (n, M, T).
    cross = active.weights @ active.products
    squares = np.diagonal(active.products, axis1=1, axis2=2)[:, None, :]
    lengths = (cross * active.weights).sum(axis=-1, keepdims=True)
    distances = np.asarray(np.maximum(squares - 2 * cross + lengths, 0), np.float32)
    costs = distances if rules.variant == "paper" else np.sqrt(distances)
    cheapest, least = _cheapest(costs + active.multipliers[:, :, None])
    clusters = len(capacities)
    # How many tokens ask for each cluster, (n, M).
    shifted = cheapest + clusters * np.arange(len(cheapest))[:, None]
    flat = np.bincount(shifted.ravel(), minlength=clusters * len(cheapest))
    demand = flat.reshape(-1, clusters)
    active.labels = _within_capacity(cheapest, least, demand, capacities)
    sizes = np.minimum(demand, capacities)
    step = np.float32(rules.multiplier_step)
    if rules.variant == "paper":
        active.multipliers = np.maximum(active.multipliers + step * (demand - capacities), 0)
    else:
        active.multipliers = active.multipliers + step * (sizes - capacities)
    active.multipliers = active.multipliers.astype(np.float32)
    members = active.labels[:, None, :] == np.arange(clusters)[:, None]
    active.weights = members * (1 / np.maximum(sizes, 1)).astype(np.float32)[:, :, None]
    if (sizes == 0).any():
        _seat_empty(active, distances, sizes, apart=rules.variant == "paper")


def _cheapest(costs: Floats) -> tuple[Ints, Floats]:
    """Return cheapest cluster of each token, the first of equal ones, and its cost, (n, T) each."""
    least = costs[:, 0].copy()
    labels = np.zeros(least.shape, np.int64)
    for number in range(1, costs.shape[1]):
        np.copyto(labels, number, where=costs[:, number] < least)
        np.minimum(least, costs[:, number], out=least)
    return labels, least


def _within_capacity(cheapest: Ints, costs: Floats, demand: Ints, capacities: Ints) -> Ints:
    """Return labels after full clusters have kept their cheapest tokens, first of equal ones."""
    over = np.flatnonzero((demand > capacities).any(axis=1))
    labels = cheapest.copy()
    if len(over):
        bits = np.ascontiguousarray(costs[over]).view(np.int32)
        # A float's bits sort as integers do once those of negative numbers are reversed.
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) + 2**31
        # One integer for each token, which sorts by cluster, then cost, then position.
        places = np.arange(costs.shape[1])
        keys = (cheapest[over] << (32 + INDEX_BITS)) | (ordered << INDEX_BITS) | places
        keys.sort(axis=1)
        order, wanted = keys & (2**INDEX_BITS - 1), keys >> (32 + INDEX_BITS)
        starts = demand[over].cumsum(axis=1) - demand[over]
        ranks = np.arange(order.shape[1]) - np.take_along_axis(starts, wanted, axis=1)
        kept = np.where(ranks < capacities[wanted], wanted, DISCARDED)
        labels[over[:, None], order] = kept
    return labels


def _seat_empty(active: _Active, distances: Floats, sizes: Ints, *, apart: bool) -> None:
    """Seat each empty cluster at a token far from all centroids, the farthest first.

    Where they are not to be `apart`, seat all empty clusters of an image at the farthest token.
    """
    rows = np.flatnonzero((sizes == 0).any(axis=1))
    order = np.argsort(-distances[rows].min(axis=1), axis=1, kind="stable")
    rank = (sizes[rows] == 0).cumsum(axis=1) - 1
    image, cluster_index = np.nonzero(sizes[rows] == 0)
    token = order[image, rank[image, cluster_index] if apart else 0]
    active.weights[rows[image], cluster_index, token] = 1.0
    active.multipliers[rows[image], cluster_index] = 0.0


KEY_INITS = Literal["orthogonal", "uniform", "normal", "binary"]
ROUTING, ROUTING_INFERENCE = "routing", "routing_inference"
WEIGHT, BIAS = "router.weight", "router.bias"
TURNS = 1000.0
"""Times around the circle that one standard deviation of a random route's axis makes."""


class _WithoutLayer:
    """A router that learns nothing.

    All routers have: `needs` for the data layer; `prepare`, what is kept of an example; `spec` and
    `init`, the parameters and their start; `shares` of the experts (B, M), rows of sum one; and
    `balance`, a loss (B,) for loading experts unevenly.
    """

    needs: ClassVar[frozenset[m.Need]] = frozenset({"features", "tokens"})

    def spec(self) -> Mapping[str, m.TensorSpec]:
        """Return no parameters."""
        return {}

    def init(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        """Return no parameters."""
        return {}

    def balance(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return zeros (B,): experts are balanced or equally likely."""
        return torch.zeros_like(batch["features"][:, 0])


@dataclass(frozen=True)
class StaticRouter(_WithoutLayer):
    """Capacity-aware clusters of tokens, matched with static keys.

    Attributes:
        keys: One row for each expert, (M, token width).
        training: Rules of clustering for training.
        seating: Where clusters begin: at M random tokens, or far from one another.
        seed: Draws the random tokens. Their positions are alike in all images: then an image's
            shares depend neither on other images nor on its tokens' last bits, as a draw from the
            tokens' digest would.
    """

    keys: NDArray[np.float32]
    training: Rules
    inference: Rules
    seating: Literal["random", "farthest"]
    seed: int

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Keep features, and both kinds of shares in place of tokens; refuse fewer than experts."""
        tokens = arrays["tokens"]
        if len(self.keys) > tokens.shape[1]:
            raise MethodError(
                f"method.experts: {len(self.keys)} is more than the {tokens.shape[1]} tokens of an "
                f"image; valid: 1 to {tokens.shape[1]}"
            )
        kept = np.empty((2, len(tokens), len(self.keys)), np.float32)
        drawn = np.random.default_rng([self.seed, 1]).permutation(tokens.shape[1])
        seats = drawn[: len(self.keys)]
        for rows in blocks(*tokens.shape[:2]):
            block = tokens[rows].astype(np.float32, copy=False)
            products = block @ block.transpose(0, 2, 1)
            if self.seating == "farthest":
                seats = farthest_first(products, len(self.keys))
            for place, rules in enumerate((self.training, self.inference)):
                clusters = cluster(products, seats, rules)
                kept[place, rows] = assigned_shares(clusters, block, self.keys)
        return {"features": arrays["features"], ROUTING: kept[0], ROUTING_INFERENCE: kept[1]}

    def shares(self, parameters: Parameters, batch: Parameters, *, training: bool) -> Tensor:
        """Return what `prepare` found."""
        return batch[ROUTING if training else ROUTING_INFERENCE]


@dataclass(frozen=True)
class LearnedRouter:
    """A linear layer and a softmax over experts.

    Attributes:
        source: `tokens`: each token has shares, and the image their mean; `features`: the image has
            shares.
        balance_weight: Weight of the balancing loss, for tokens.
    """

    experts: int
    width: int
    source: Literal["tokens", "features"]
    balance_weight: float

    @property
    def needs(self) -> frozenset[m.Need]:
        """Image features, and tokens where they are routed."""
        return frozenset({"features", self.source})

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Keep everything."""
        return arrays

    def spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the layer's specs, averaged over clients."""
        return specs(linear_layers("router", self.width, self.experts))

    def init(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        """Return uniform in +-1/sqrt(width), as torch's linear layers start."""
        return {n: linear_start(rng, spec.shape, self.width) for n, spec in self.spec().items()}

    def shares(self, parameters: Parameters, batch: Parameters, *, training: bool) -> Tensor:
        """Return the softmax of the layer, for tokens its mean."""
        chosen = self._choices(parameters, batch)
        return chosen.mean(dim=1) if self.source == "tokens" else chosen

    def balance(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return Switch Transformer's Eq. 4 over an image's tokens: M sum_e f_e P_e.

        f_e is the fraction of tokens with expert e as first choice, P_e their mean share. Whole
        images have no such loss: the fractions of a batch would join its examples.
        """
        if self.source == "features" or self.balance_weight == 0:
            return torch.zeros_like(batch["features"][:, 0])
        chosen = self._choices(parameters, batch)
        first = (chosen == chosen.amax(dim=-1, keepdim=True)).to(chosen.dtype).mean(dim=1)
        uneven = self.experts * (first.detach() * chosen.mean(dim=1)).sum(dim=-1)
        return self.balance_weight * uneven

    def _choices(self, parameters: Parameters, batch: Parameters) -> Tensor:
        layer = batch[self.source] @ parameters[WEIGHT].T + parameters[BIAS]
        return layer.softmax(dim=-1)


@dataclass(frozen=True)
class RandomRouter(_WithoutLayer):
    """Each token goes to any expert with the same probability, independent of the others.

    The paper says no more than that; here an image's routes are the same in training and
    prediction. They follow from the tokens: a fresh draw would change with the other images, and a
    draw from the image's digest with its last bits. A token's direction is projected on a random
    axis, the result wound around a circle many times, turned by a random angle for each position,
    and the circle is cut into M arcs.

    Attributes:
        seed: Draws axis and angles; the same for all parties.
    """

    experts: int
    seed: int

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Keep features, and shares in place of tokens."""
        tokens = arrays["tokens"]
        rng = np.random.default_rng([self.seed, 2])
        count, width = tokens.shape[1:]
        axis, angles = rng.normal(size=(width,)), rng.uniform(size=(count,))
        shares = np.empty((len(tokens), self.experts), np.float32)
        for rows in blocks(*tokens.shape[:2]):
            block = tokens[rows].astype(np.float64)
            # Sums along the last axis, not a matrix product: the same for any number of images.
            lengths = np.sqrt((block * block).sum(axis=-1))
            along = (block * axis).sum(axis=-1) / np.maximum(lengths, np.finfo(np.float32).tiny)
            place = (TURNS * along + angles) % 1.0
            # A remainder of something just below zero can round up to one.
            routes = np.minimum((place * self.experts).astype(np.int64), self.experts - 1)
            shares[rows] = (routes[:, :, None] == np.arange(self.experts)).mean(axis=1)
        return {"features": arrays["features"], ROUTING: shares}

    def shares(self, parameters: Parameters, batch: Parameters, *, training: bool) -> Tensor:
        """Return what `prepare` found."""
        return batch[ROUTING]


Router = StaticRouter | LearnedRouter | RandomRouter


def draw_keys(kind: KEY_INITS, shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    """Return static keys of the experts (section V-G), of the shape (M, token width).

    All parties draw the same keys from the seed. `orthogonal` has orthonormal rows, at most as many
    as directions; the others draw each coordinate from U(0, 1), N(0, 1), or evenly from 0 and 1.
    """
    rng = np.random.default_rng([seed, 0])
    if kind == "uniform":
        return rng.uniform(size=shape).astype(np.float32)
    if kind == "normal":
        return rng.normal(size=shape).astype(np.float32)
    if kind == "binary":
        return rng.integers(0, 2, shape).astype(np.float32)
    if shape[0] > shape[1]:
        raise MethodError(
            f"method.experts: {shape[0]} keys of width {shape[1]} cannot be orthogonal; valid: 1 "
            f"to {shape[1]}"
        )
    columns, _ = np.linalg.qr(rng.normal(size=shape[::-1]))
    return np.ascontiguousarray(columns.T).astype(np.float32)


def assigned_shares(
    clusters: Clusters, tokens: NDArray[np.float32], keys: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return each expert's share (n, M) of the kept tokens (n, T, w), matched with keys (M, w)."""
    centroids, tiny = clusters.weights @ tokens, np.finfo(np.float32).tiny
    lengths = np.linalg.norm(centroids, axis=-1, keepdims=True) * np.linalg.norm(keys, axis=-1)
    costs = 1 - np.asarray((centroids @ keys.T) / np.maximum(lengths, tiny), np.float32)
    shares = np.empty(clusters.sizes.shape, np.float32)
    for image, cost in enumerate(costs):
        found, key = linear_sum_assignment(cost)
        shares[image, key] = clusters.sizes[image, found]
    kept = clusters.sizes.sum(axis=1, keepdims=True)
    return np.asarray(shares / kept, np.float32)

"""k-means whose clusters have a capacity, for the tokens of many images at once.

Gong et al. 2025 (TRIP), section IV-A: the assignment cost of token j to cluster m is the term of
the Lagrangian (Eq. 4), ||x_j - mu_m||^2 + theta_m. A token goes to its cheapest cluster; a full
cluster keeps its cheapest tokens and the rest is discarded. theta_m rises while more tokens ask for
the cluster than it holds, and falls, never below zero, while fewer do.

A centroid is a mean of tokens, so all distances follow from the tokens' products G = X X^T: with
rows A of the means, x_j . mu_m = (A G)_mj. G is computed once, and one round of all images is a few
array operations. Every image goes through the same operations on its own numbers, whatever images
are beside it, so its clusters do not depend on its company, not even by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DISCARDED = -1
"""Label of a token that no cluster keeps."""
MOST_ROUNDS = 100
"""Rounds after which an image whose clusters still change is left as it is (published code)."""

INDEX_BITS = 16
"""Bits for a token's position: images have at most 65,536 tokens."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rules:
    """What is clustered how.

    Attributes:
        capacity_factor: alpha; no cluster keeps more than alpha T / M of T tokens.
        multiplier_step: Step eta of the multipliers theta, in units of the cost.
        variant: `published` costs plain distances, moves theta by what clusters kept (so only
            downwards, and below zero), gives the first T mod M clusters one token more, and seats
            all clusters that ran empty together at one token, the farthest.
    """

    capacity_factor: float
    multiplier_step: float
    variant: Literal["paper", "published"] = "paper"

    def capacities(self, tokens: int, clusters: int) -> Ints:
        """Return most tokens that each cluster keeps, at least one, (clusters,)."""
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
        weights: Rows of means: `weights @ tokens` are the centroids, (n, M, T). An empty cluster's
            row is the token where it was seated last.
        sizes: Number of tokens that each cluster keeps, (n, M).
        rounds: Rounds that each image took, (n,).
    """

    labels: Ints
    weights: Floats
    sizes: Ints
    rounds: Ints


@dataclass
class _Active:
    """The images that still change: arrays of one row for each."""

    rows: Ints
    products: Floats
    weights: Floats
    multipliers: Floats
    labels: Ints

    def only(self, keep: NDArray[np.bool_]) -> _Active:
        return _Active(
            self.rows[keep],
            self.products[keep],
            self.weights[keep],
            self.multipliers[keep],
            self.labels[keep],
        )


def cluster(products: Floats, seats: Ints, rules: Rules) -> Clusters:
    """Return clusters the tokens of each image.

    Ends for an image when its centroids rest: when all are the means of the same tokens again.

    Args:
        products: G = X X^T of each image, (n, T, T).
        seats: Tokens that are the first centroids, different ones, (M,) or (n, M).
        rules: What is clustered how.

    Returns:
        The clusters.
    """
    count, tokens = products.shape[:2]
    seats = np.broadcast_to(seats, (count, seats.shape[-1]))
    clusters = seats.shape[1]
    capacities = rules.capacities(tokens, clusters)
    active = _Active(
        np.arange(count),
        products,
        _one_hot(seats, tokens),
        np.zeros((count, clusters), np.float32),
        np.full((count, tokens), DISCARDED),
    )
    result = _empty(count, tokens, clusters)
    for number in range(1, MOST_ROUNDS + 1):
        before = active.weights
        _round(active, capacities, rules)
        rests = (active.weights == before).all(axis=(1, 2))
        # Rows are dropped, not masked, and written when dropped: nothing is computed for them.
        gone = rests if number < MOST_ROUNDS else np.ones_like(rests)
        if gone.any():
            _store(result, active.only(gone), number)
            active = active.only(~gone)
        if not len(active.rows):
            break
    return result


def farthest_first(products: Floats, clusters: int) -> Ints:
    """Return seats far from one another.

    The longest token, then whatever is farthest from all before.

    Args:
        products: G of each image, (n, T, T).
        clusters: Number M of seats.

    Returns:
        Token indices, (n, M).
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
    distances = _distances(active.products, active.weights)
    costs = distances if rules.variant == "paper" else np.sqrt(distances)
    cheapest, least = _cheapest(costs + active.multipliers[:, :, None])
    clusters = len(capacities)
    demand = _counts(cheapest, clusters)
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


def _distances(products: Floats, weights: Floats) -> Floats:
    """Return squared distances of centroids to tokens, (n, M, T)."""
    cross = weights @ products
    squares = np.diagonal(products, axis1=1, axis2=2)[:, None, :]
    lengths = (cross * weights).sum(axis=-1, keepdims=True)
    return np.asarray(np.maximum(squares - 2 * cross + lengths, 0), np.float32)


def _cheapest(costs: Floats) -> tuple[Ints, Floats]:
    """Return cheapest cluster of each token, the first of equal ones, and its cost, (n, T) each."""
    least = costs[:, 0].copy()
    labels = np.zeros(least.shape, np.int64)
    for number in range(1, costs.shape[1]):
        np.copyto(labels, number, where=costs[:, number] < least)
        np.minimum(least, costs[:, number], out=least)
    return labels, least


def _within_capacity(cheapest: Ints, costs: Floats, demand: Ints, capacities: Ints) -> Ints:
    """Return labels after full clusters have kept their cheapest tokens.

    Of equal ones the first.
    """
    over = np.flatnonzero((demand > capacities).any(axis=1))
    labels = cheapest.copy()
    if len(over):
        keys = np.sort(_keys(cheapest[over], costs[over]), axis=1)
        order, wanted = keys & (2**INDEX_BITS - 1), keys >> (32 + INDEX_BITS)
        starts = demand[over].cumsum(axis=1) - demand[over]
        ranks = np.arange(order.shape[1]) - np.take_along_axis(starts, wanted, axis=1)
        kept = np.where(ranks < capacities[wanted], wanted, DISCARDED)
        labels[over[:, None], order] = kept
    return labels


def _keys(cheapest: Ints, costs: Floats) -> Ints:
    """Return one integer for each token that sorts by cluster, then cost, then position."""
    bits = np.ascontiguousarray(costs).view(np.int32)
    # A float's bits sort as integers do once those of negative numbers are turned around.
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) + 2**31
    return (cheapest << (32 + INDEX_BITS)) | (ordered << INDEX_BITS) | np.arange(costs.shape[1])


def _seat_empty(active: _Active, distances: Floats, sizes: Ints, *, apart: bool) -> None:
    """Seat each empty cluster at a token that is far from all centroids, the farthest first.

    Not apart, all empty clusters of an image at the farthest.
    """
    rows = np.flatnonzero((sizes == 0).any(axis=1))
    order = np.argsort(-distances[rows].min(axis=1), axis=1, kind="stable")
    rank = (sizes[rows] == 0).cumsum(axis=1) - 1
    image, cluster_index = np.nonzero(sizes[rows] == 0)
    token = order[image, rank[image, cluster_index] if apart else 0]
    active.weights[rows[image], cluster_index, token] = 1.0
    active.multipliers[rows[image], cluster_index] = 0.0


def _counts(labels: Ints, clusters: int) -> Ints:
    shifted = labels + clusters * np.arange(len(labels))[:, None]
    flat = np.bincount(shifted.ravel(), minlength=clusters * len(labels))
    return flat.reshape(-1, clusters)


def _one_hot(seats: Ints, tokens: int) -> Floats:
    return np.asarray(seats[:, :, None] == np.arange(tokens), np.float32)


def _empty(count: int, tokens: int, clusters: int) -> Clusters:
    return Clusters(
        np.empty((count, tokens), np.int64),
        np.empty((count, clusters, tokens), np.float32),
        np.empty((count, clusters), np.int64),
        np.empty(count, np.int64),
    )


def _store(result: Clusters, ended: _Active, number: int) -> None:
    result.labels[ended.rows] = ended.labels
    result.weights[ended.rows] = ended.weights
    kept = ended.labels[:, None, :] == np.arange(result.sizes.shape[1])[:, None]
    result.sizes[ended.rows] = kept.sum(axis=-1)
    result.rounds[ended.rows] = number

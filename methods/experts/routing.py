"""How images are shared out to experts: by where their tokens fall, or by a learned layer.

TRIP's own router learns nothing (Gong et al. 2025, sections IV-A and IV-B): the tokens of an image
are clustered within capacities, the M clusters are matched one to one with M static keys at least
cost 1 - cos(centroid, key) (Eqs. 5-7, Hungarian algorithm), and expert e weighs by the share of
kept tokens that lie in its cluster. All of it depends on the image alone, so it is computed once.

The learned routers are the ablations of its section V-F: one linear layer and a softmax, over each
token or over the image's feature. What is fed to them and how tokens' shares are put together (the
mean of their softmaxes) is our reading; the paper refers to Switch Transformer (Fedus et al. 2022),
whose balancing loss (its Eq. 4) is taken within each image, as a loss is one example's here.

The random router is its ablation without clusters (Table V).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from methods.errors import MethodError
from methods.experts.capacity_kmeans import Clusters, Rules, blocks, cluster, farthest_first
from methods.interface.method import Arrays, Need, TensorSpec
from methods.networks.starts import linear_start

KEY_INITS = Literal["orthogonal", "uniform", "normal", "binary"]
ROUTING, ROUTING_INFERENCE = "routing", "routing_inference"
WEIGHT, BIAS = "router.weight", "router.bias"
TURNS = 1000.0
"""Times around the circle on which random routes are read off, for one standard deviation."""


class Router(Protocol):
    """Gives each image a share of each expert."""

    @property
    def needs(self) -> frozenset[Need]:
        """What the data layer must provide."""
        ...

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return what is kept of each example."""
        ...

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return the router's parameters."""
        ...

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return the parameters' starting values."""
        ...

    def shares(
        self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor], *, training: bool
    ) -> Tensor:
        """Return shares of the experts (B, M), each row adding up to one."""
        ...

    def balance(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Return a loss of each example for loading experts unevenly, (B,)."""
        ...


@dataclass(frozen=True)
class StaticRouter:
    """Capacity-aware clusters of tokens, matched with static keys.

    Attributes:
        keys: One row for each expert, (M, token width).
        training: Rules of clustering for training.
        inference: The same for prediction.
        seating: Where clusters begin: at M random tokens, or far from one another.
        seed: Draws the random tokens. Their positions are alike in all images: then an image's
            shares depend neither on its company nor on its tokens' last bits, as a draw from the
            tokens' digest would.
    """

    keys: NDArray[np.float32]
    training: Rules
    inference: Rules
    seating: Literal["random", "farthest"]
    seed: int

    @property
    def needs(self) -> frozenset[Need]:
        """Image features and tokens."""
        return frozenset({"features", "tokens"})

    def prepare(self, arrays: Arrays) -> Arrays:
        """Keep features, and both kinds of shares in place of tokens.

        Raises:
            MethodError: If images have fewer tokens than there are experts.
        """
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

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return no parameters: keys follow from the configuration."""
        return {}

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Nothing."""
        return {}

    def shares(
        self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor], *, training: bool
    ) -> Tensor:
        """Return what `prepare` found."""
        return batch[ROUTING if training else ROUTING_INFERENCE]

    def balance(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Zero: capacities balance the experts."""
        return torch.zeros_like(batch["features"][:, 0])


@dataclass(frozen=True)
class LearnedRouter:
    """A linear layer and a softmax over experts.

    Attributes:
        experts: Number M of experts.
        width: Width of what the layer is fed.
        source: `tokens`: each token has shares, the image their mean; `features`: the image has.
        balance_weight: Weight of the balancing loss, for tokens.
    """

    experts: int
    width: int
    source: Literal["tokens", "features"]
    balance_weight: float

    @property
    def needs(self) -> frozenset[Need]:
        """Image features, and tokens where they are routed."""
        return frozenset({"features", self.source})

    def prepare(self, arrays: Arrays) -> Arrays:
        """Keep everything."""
        return arrays

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return the layer, averaged over clients."""
        shapes = {WEIGHT: (self.experts, self.width), BIAS: (self.experts,)}
        return {name: TensorSpec(shape) for name, shape in shapes.items()}

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return uniform in +-1/sqrt(width), as torch's linear layers start."""
        return {n: linear_start(rng, spec.shape, self.width) for n, spec in self.spec().items()}

    def shares(
        self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor], *, training: bool
    ) -> Tensor:
        """Return softmax of the layer, its mean over tokens."""
        chosen = self._choices(parameters, batch)
        return chosen.mean(dim=1) if self.source == "tokens" else chosen

    def balance(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Return switch Transformer's Eq. 4 over an image's tokens: M sum_e f_e P_e.

        f_e is the fraction of tokens that expert e is first choice of, P_e their mean share. There
        is none for whole images: the fractions of a batch would tie its examples together.
        """
        if self.source == "features" or self.balance_weight == 0:
            return torch.zeros_like(batch["features"][:, 0])
        chosen = self._choices(parameters, batch)
        first = (chosen == chosen.amax(dim=-1, keepdim=True)).to(chosen.dtype).mean(dim=1)
        uneven = self.experts * (first.detach() * chosen.mean(dim=1)).sum(dim=-1)
        return self.balance_weight * uneven

    def _choices(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        layer = batch[self.source] @ parameters[WEIGHT].T + parameters[BIAS]
        return layer.softmax(dim=-1)


@dataclass(frozen=True)
class RandomRouter:
    """Each token goes to any expert with the same probability, whatever the others do.

    The paper says no more than that; here an image's routes are the same in training and
    prediction. They are read off the tokens, as a draw of their own would be another one for the
    same image in other company, and one from the image's digest would hang on its last bits: a
    token's direction is projected on a random axis, the result wound around a circle many times,
    turned by a random angle for each position, and the circle is cut into M arcs.

    Attributes:
        experts: Number M of experts.
        seed: Draws axis and angles; the same for everybody.
    """

    experts: int
    seed: int

    @property
    def needs(self) -> frozenset[Need]:
        """Image features and tokens."""
        return frozenset({"features", "tokens"})

    def prepare(self, arrays: Arrays) -> Arrays:
        """Keep features, and shares in place of tokens."""
        tokens = arrays["tokens"]
        rng = np.random.default_rng([self.seed, 2])
        count, width = tokens.shape[1:]
        axis, angles = rng.normal(size=(width,)), rng.uniform(size=(count,))
        shares = np.empty((len(tokens), self.experts), np.float32)
        for rows in blocks(*tokens.shape[:2]):
            routes = self._routes(tokens[rows].astype(np.float64), axis, angles)
            chosen = routes[:, :, None] == np.arange(self.experts)
            shares[rows] = chosen.mean(axis=1)
        return {"features": arrays["features"], ROUTING: shares}

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return no parameters."""
        return {}

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Nothing."""
        return {}

    def shares(
        self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor], *, training: bool
    ) -> Tensor:
        """Return what `prepare` found."""
        return batch[ROUTING]

    def balance(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Zero: experts are as likely as one another."""
        return torch.zeros_like(batch["features"][:, 0])

    def _routes(
        self, tokens: NDArray[np.float64], axis: NDArray[np.float64], angles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return expert of each token, (n, T)."""
        # Sums along the last axis, not a matrix product: the same for any number of images.
        lengths = np.sqrt((tokens * tokens).sum(axis=-1))
        along = (tokens * axis).sum(axis=-1) / np.maximum(lengths, np.finfo(np.float32).tiny)
        place = (TURNS * along + angles) % 1.0
        # A remainder of something just below zero can round up to one.
        routes = np.minimum((place * self.experts).astype(np.int64), self.experts - 1)
        return np.asarray(routes, np.int64)


def draw_keys(kind: KEY_INITS, shape: tuple[int, int], seed: int) -> NDArray[np.float32]:
    """Return static keys of the experts (section V-G).

    Args:
        kind: `orthogonal` has orthonormal rows; the others draw each coordinate from U(0, 1),
            N(0, 1), or evenly from 0 and 1.
        shape: (M, token width).
        seed: Draws them: all parties draw the same.

    Returns:
        The keys, of that shape.

    Raises:
        MethodError: If there are more experts than orthogonal directions.
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
    """Return shares of the experts after clusters are matched with keys.

    Args:
        clusters: Of n images.
        tokens: (n, T, w).
        keys: (M, w).

    Returns:
        Share of kept tokens that each expert's cluster has, (n, M).
    """
    costs = 1 - _cosines(clusters.weights @ tokens, keys)
    shares = np.empty(clusters.sizes.shape, np.float32)
    for image, cost in enumerate(costs):
        found, key = linear_sum_assignment(cost)
        shares[image, key] = clusters.sizes[image, found]
    kept = clusters.sizes.sum(axis=1, keepdims=True)
    return np.asarray(shares / kept, np.float32)


def _cosines(centroids: NDArray[np.float32], keys: NDArray[np.float32]) -> NDArray[np.float32]:
    tiny = np.finfo(np.float32).tiny
    lengths = np.linalg.norm(centroids, axis=-1, keepdims=True) * np.linalg.norm(keys, axis=-1)
    return np.asarray((centroids @ keys.T) / np.maximum(lengths, tiny), np.float32)

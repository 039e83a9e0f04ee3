"""FedGH: personal extractors under one head, which the server trains on class means of features.

Yi et al. 2023, "FedGH: Heterogeneous Federated Learning with Generalized Global Header" (ACM MM,
arXiv 2303.13137), Algorithm 1. A client puts the global head in the place of its own, trains the
whole network, and uploads for each of its classes the mean of its features (a *prototype*). The
server takes gradient steps on the head with the pairs of prototype and class; the clients' own
heads are dropped. In the paper each pair is a step (`server_batch: 1`); the default is published
code's (PFLlib): one pass a round over shuffled batches of ten.
Its personal module, for PM-MoE, is the extractor, as LG-FedAvg's is.

`prototypes: individual` is the method as published: every client's means are needed by themselves,
so secure sums and noise on sums are refused. With `prototypes: mean` an aggregate suffices: the
head is trained on one mean for each class, over the clients that have it. For that a client sends
per class a flag (1 where it has examples, else 0) and its prototype times the flag, and the server
divides one sum by the other. Neither a sum of features nor a count is sent: under one clipping norm
they would leave a client with many examples nothing but its length. One client's quotient is not
changed by clipping, which scales flag and prototype alike. Prototypes travel divided by sqrt(D),
which makes them about as long as their flags are: as they are, noise of one size would drown the
flags first, by which all is divided. What is sent is absolute, not a difference to the broadcast,
which holds the head alone.

Where flags are scaled or noised, a class counts as had by a client if its flag is at least
`presence_floor` times what one client's can be: the largest flag over the number of clients.

Prototypes are statistics of records that no noised step returned: `dp_sgd` is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.defaults import CLIENT_ONLY
from methods.interface.method import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    Source,
    Task,
    TensorSpec,
    Trainer,
    Unit,
    Visibility,
    Weighting,
)
from methods.lg_fedavg import LgFedAvg
from methods.networks.class_tables import PRESENCE, PROTOTYPES, class_means, known_rows
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters, linear
from methods.networks.method import HEAD, ServerLoss, descend, features_of

Pairs = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Prototypes (m, D) and their classes (m,)."""


VARIANTS = ({"network": "features", "prototypes": "mean", "server_batch": None},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        prototypes: What the head is trained on: each client's, or means over clients.
        server_rate: Step size at the server.
        server_epochs: Passes over the pairs in a round.
        server_batch: Pairs of one step; None for all of them.
        presence_floor: A class is left out below this many clients' flags; at most 1 where each
            client stands for itself.
    """

    prototypes: Literal["individual", "mean"] = "individual"
    server_rate: Annotated[float, Gt(0.0), Le(1e3)] = 1.0
    server_epochs: Annotated[int, Ge(1), Le(10000)] = 1
    server_batch: Annotated[int, Ge(1), Le(65536)] | None = 10
    presence_floor: Annotated[float, Gt(0.0), Le(1e6)] = 0.5


@dataclass(frozen=True)
class FedGH(LgFedAvg):
    """A generalised global head: cut as LG-FedAvg is, with another way to the head."""

    config: Config
    visibility: Visibility = field(default=Visibility.PER_CLIENT, kw_only=True)
    units: frozenset[Unit] = field(default=CLIENT_ONLY, kw_only=True)

    @property
    def averaged(self) -> frozenset[str]:
        """Nothing: the server trains the head."""
        return frozenset()

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return prototypes (C, D) over sqrt(D), zero where there are none, and flags (C,)."""
        spec = partial(TensorSpec, weighting=Weighting.UNIFORM, source=Source.STATISTIC)
        classes = len(self.classes)
        return {PROTOTYPES: spec((classes, self.extractor.width)), PRESENCE: spec((classes,))}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the network under the global head, and sum up what its extractor then makes."""
        trained = self.train(
            view, data, trainer, rng, names=(*self.shared_layers, *self.personal_layers)
        )
        own = {name: trained[name] for name in self.personal_layers}
        features = features_of(self, own, data)
        means, flags = class_means(features, data.arrays["labels"], len(self.classes))
        scaled = means / np.float32(math.sqrt(self.extractor.width))
        return LocalResult({PROTOTYPES: scaled, PRESENCE: flags}, None, own)

    def server_update(
        self, state: Arrays, aggregate: Aggregate, pool: Sequence[Arrays], rng: np.random.Generator
    ) -> Arrays:
        """Train the head.

        Raises:
            MethodError: If each client's own prototypes are needed and were not handed over.
        """
        rows, labels = self.pairs(aggregate)
        head = self.tensors({name: state[name] for name in self.head_layers})
        losses = self.losses(torch.from_numpy(rows), torch.from_numpy(labels), rng)
        rate = self.config.server_rate
        return {**state, **descend(head, losses, partial(torch.optim.SGD, lr=rate))}

    def pairs(self, aggregate: Aggregate) -> Pairs:
        """Return what the head is trained on, in the order of the clients' keys.

        Raises:
            MethodError: If each client's own prototypes are needed and were not handed over.
        """
        floor = self.config.presence_floor
        if self.config.prototypes == "mean":
            return known_prototypes(aggregate.values, floor / aggregate.cohort_size)
        found = [known_prototypes(sent, floor) for sent in aggregate.each().values()]
        return np.concatenate([r for r, _ in found]), np.concatenate([c for _, c in found])

    def losses(
        self, rows: Tensor, labels: Tensor, rng: np.random.Generator
    ) -> Iterator[ServerLoss]:
        """Yield mean cross-entropy of the head on each batch, shuffled anew for each pass."""
        rows, labels = rows.to(self.device), labels.to(self.device)
        size = self.config.server_batch or max(len(rows), 1)
        for _ in range(self.config.server_epochs):
            order = torch.from_numpy(rng.permutation(len(rows))).to(self.device)
            for some in torch.split(order, size) if len(rows) else ():
                yield _head_loss(rows[some], labels[some])


def known_prototypes(sent: Arrays, floor: float) -> Pairs:
    """Return prototypes as they were before a common factor, of the classes that there are.

    Args:
        sent: `prototypes` (C, D) over sqrt(D) and `presence` (C,), of one client or of many.
        floor: Share of the largest flag below which a class is left out.

    Returns:
        Prototypes (m, D) and their classes (m,), none where no flag is above zero.
    """
    scale = math.sqrt(sent[PROTOTYPES].shape[1])
    return known_rows(sent[PROTOTYPES], sent[PRESENCE], floor, scale)


def _head_loss(rows: Tensor, labels: Tensor) -> ServerLoss:
    def loss(head: Parameters) -> Tensor:
        return functional.cross_entropy(linear(head, HEAD, rows), labels)

    return loss


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If a floor above one client's flag would leave out every class.
        BackboneError: If the network needs a CLIP model and the task has none.
    """
    method = FedGH.built(config, task)
    if config.prototypes == "mean":
        return replace(method, visibility=Visibility.AGGREGATE_ONLY, units=CLIENT_ONLY)
    if config.presence_floor > 1.0:
        raise MethodError(
            f"method.presence_floor: {config.presence_floor} leaves out every class where each "
            "client stands for itself; valid with method.prototypes = individual: above 0 to 1"
        )
    return method

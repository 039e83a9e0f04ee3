"""FedGH: personal extractors under one head, which the server trains on class means of features.

Yi et al. 2023, "FedGH: Heterogeneous Federated Learning with Generalized Global Header" (ACM MM,
arXiv 2303.13137), Algorithm 1. A client replaces its head by the global head, trains the whole
network, and uploads for each of its classes the mean of its features (a *prototype*). The server
takes gradient steps on the head with the pairs of prototype and class, and drops the clients' own
heads. In the paper each pair is a step (`server_batch: 1`); the default is published code's
(PFLlib): one pass a round over shuffled batches of ten. Its personal module, for PM-MoE, is the
extractor, as LG-FedAvg's is.

`prototypes: individual` is the method as published: the server needs each single client's means, so
secure sums and noise on sums are refused. With `prototypes: mean` an aggregate suffices: the head
is trained on one mean for each class, over the clients that have it. For that a client sends the
message of `methods.networks.class_tables`: flags, and prototypes divided by sqrt(D), which makes
them about as long as flags. Without this division, noise of one size would drown the flags first,
by which the server divides the sums. The message is absolute, not a difference to the broadcast,
which holds the head alone.

Where flags are scaled or noised, a client counts as having a class if its flag is at least
`presence_floor` times one client's largest possible flag: the largest flag over the number of
clients.

`dp_sgd` is refused: prototypes are statistics of records that do not come from a noised step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.defaults import CLIENT_ONLY
from methods.lg_fedavg import LgFedAvg
from methods.networks.class_tables import PRESENCE, PROTOTYPES, class_means, known_rows, table_spec
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Parameters, linear
from methods.networks.method import HEAD, ServerLoss, descend, rows_of

Pairs = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Prototypes (m, D) and their classes (m,)."""

VARIANTS = ({"network": "features", "prototypes": "mean", "server_batch": None},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        prototypes: Training data of the head: each client's, or means over clients.
        server_rate: Step size at the server.
        server_epochs: Passes over the pairs in a round.
        server_batch: Pairs of one step; None for all of them.
        presence_floor: A class with fewer flags than this many clients' is left out; at most 1
            where each client stands for itself.
    """

    prototypes: Literal["individual", "mean"] = "individual"
    server_rate: Annotated[float, Gt(0.0), Le(1e3)] = 1.0
    server_epochs: Annotated[int, Ge(1), Le(10000)] = 1
    server_batch: Annotated[int, Ge(1), Le(65536)] | None = 10
    presence_floor: Annotated[float, Gt(0.0), Le(1e6)] = 0.5


class FedGH(LgFedAvg):
    """A generalised global head on LG-FedAvg's cut, trained by the server."""

    config: Config
    units = CLIENT_ONLY
    averaged = frozenset[str]()
    """Nothing: the server trains the head."""

    @property
    def visibility(self) -> m.Visibility:
        """The aggregate, where the head is trained on means over clients."""
        is_summed = self.config.prototypes == "mean"
        return m.Visibility.AGGREGATE_ONLY if is_summed else m.Visibility.PER_CLIENT

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return prototypes (C, D) over sqrt(D), zero for absent classes, and flags (C,)."""
        return table_spec(PROTOTYPES, len(self.classes), self.extractor.width)

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the network under the global head, and send the class means of its features."""
        trained = self.train(view, data, trainer, rng)
        own = {name: trained[name] for name in self.personal_layers}
        features = rows_of(self, self.features, own, data)
        means, flags = class_means(features, data.arrays["labels"], len(self.classes))
        scaled = means / np.float32(math.sqrt(self.extractor.width))
        return m.LocalResult({PROTOTYPES: scaled, PRESENCE: flags}, None, own)

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Train the head."""
        rows, labels = self.pairs(aggregate)
        head = self.tensors({name: state[name] for name in self.head_layers})
        losses = self.head_losses(torch.from_numpy(rows), torch.from_numpy(labels), rng)
        rate = self.config.server_rate
        return {**state, **descend(head, losses, partial(torch.optim.SGD, lr=rate))}

    def pairs(self, aggregate: m.Aggregate) -> Pairs:
        """Return the head's training data, in the order of the clients' keys."""
        floor = self.config.presence_floor
        if self.config.prototypes == "mean":
            return known_prototypes(aggregate.values, floor / aggregate.cohort_size)
        found = [known_prototypes(sent, floor) for sent in aggregate.each().values()]
        return np.concatenate([r for r, _ in found]), np.concatenate([c for _, c in found])

    def head_losses(self, rows: Tensor, labels: Tensor, rng: m.Rng) -> Iterator[ServerLoss]:
        """Yield mean cross-entropy of the head on each batch, shuffled anew for each pass."""
        device = self.task.device
        rows, labels = rows.to(device), labels.to(device)
        size = self.config.server_batch or max(len(rows), 1)
        for _ in range(self.config.server_epochs):
            order = torch.from_numpy(rng.permutation(len(rows))).to(device)
            for some in torch.split(order, size) if len(rows) else ():
                yield partial(_head_loss, rows[some], labels[some])


def known_prototypes(sent: m.Arrays, floor: float) -> Pairs:
    """Return prototypes (m, D) without scale and flags, and classes (m,); see `known_rows`."""
    scale = math.sqrt(sent[PROTOTYPES].shape[1])
    return known_rows(sent[PROTOTYPES], sent[PRESENCE], floor, scale)


def _head_loss(rows: Tensor, labels: Tensor, head: Parameters) -> Tensor:
    return functional.cross_entropy(linear(head, HEAD, rows), labels)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a floor above one client's flag if clients stand for themselves."""
    method = FedGH.built(config, task)
    if config.prototypes == "individual" and config.presence_floor > 1.0:
        raise MethodError(
            f"method.presence_floor: {config.presence_floor} leaves out every class where each "
            "client stands for itself; valid with method.prototypes = individual: above 0 to 1"
        )
    return method

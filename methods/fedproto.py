"""FedProto: clients share class means of features, and pull their own features to the global means.

Tan et al. 2022, "FedProto: Federated Prototype Learning across Heterogeneous Clients" (AAAI, arXiv
2105.00243), by its published code (github.com/yuetan031/FedProto at 97e42e2), as the paper's text
was not available.

A client's whole network is its own. It minimises, for each example,

    CE(g(h), y) + lambda * mean over dimensions of (h - global prototype of y)^2,

h being its feature and g its head. Where a class has no prototype, and so in the whole first round,
the second term is absent. Afterwards the client sends the mean of its features for each of its
classes (a *prototype*), and the server averages each class over the clients that have it, all
alike. As we remember the paper, it weighs clients by their examples of the class; clients do not
send such counts (`methods.networks.class_tables` describes the message). With lambda = 0 it is
local training.

Prototypes are of the trained network. The code takes the features of the last epoch, while the
network still moved. A class that no client of a round has keeps its prototype; in the code all
clients are in each round.

An example gets the class of its nearest prototype. `inference` selects the prototypes: those of the
client's own classes (the authors' code) or all (PFLlib's); or the client's head predicts (the
authors' code too). Without prototypes, the head predicts.

`dp_sgd` is refused: prototypes are statistics of records that do not come from a noised step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface.method import Arrays, ClientView
from methods.networks.class_tables import (
    KNOWN,
    TABLE,
    TableConfig,
    TableMethod,
    negative_distances,
    table_of,
)
from methods.networks.layers import Parameters, linear
from methods.networks.method import HEAD

OWN = "own.known"
"""The classes that the client has examples of, (C,); it keeps them."""

VARIANTS = ({"network": "features", "inference": "head"},)


@dataclass(frozen=True)
class Config(TableConfig):
    """Options.

    Attributes:
        prototype_weight: lambda, factor of the distance to the global prototype.
        inference: Predictor: the nearest global prototype of the client's own classes, of all
            classes, or the head.
    """

    prototype_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    inference: Literal["own_prototypes", "all_prototypes", "head"] = "own_prototypes"


class FedProto(TableMethod):
    """Federated prototypes."""

    config: Config

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy and the distance to the global prototype, (B,)."""
        weight, labels = self.config.prototype_weight, batch["labels"]
        if not weight:
            return self.cross_entropies(parameters, batch)
        features = self.features(parameters, batch)
        logits = linear(parameters, HEAD, features)
        supervised = functional.cross_entropy(logits, labels, reduction="none")
        distances = (features - parameters[TABLE][labels]).square().mean(dim=1)
        return supervised + weight * parameters[KNOWN][labels] * distances

    def cross_entropies(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of the head, (B,), also where prototypes predict."""
        logits = linear(parameters, HEAD, self.features(parameters, batch))
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def kept(self, means: NDArray[np.float32], flags: NDArray[np.float32]) -> Arrays:
        """Return which classes the client has."""
        return {OWN: flags}

    def whole_model_of(self, view: ClientView) -> Arrays:
        """Return the network, the global prototypes, and the client's classes."""
        own = {name: value for name, value in view.personal.items() if name == OWN}
        return {**super().whole_model_of(view), **table_of(view.broadcast), **own}

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return minus the distance to each prototype, (B, C), or the head's logits."""
        features, candidates = self.features(parameters, batch), self.candidates(parameters)
        if not bool(candidates.any()):
            return linear(parameters, HEAD, features)
        return negative_distances(features, parameters[TABLE], candidates)

    def candidates(self, parameters: Parameters) -> Tensor:
        """Return which classes prototypes predict, (C,); all false where the head predicts."""
        known = parameters[KNOWN] > 0
        if self.config.inference == "head":
            return known & False
        if self.config.inference == "own_prototypes" and OWN in parameters:
            return known & (parameters[OWN] > 0)
        return known


build = FedProto.built

"""FedPCL: features move towards the prototype of their class and away from all other prototypes.

Tan et al. 2022, "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach"
(NeurIPS, arXiv 2209.10083), by published code, as the paper's text was not available: the authors'
(github.com/yuetan031/FedPCL at 0c3895b) and PFLlib's (github.com/TsingZ0/PFLlib at d832e76).

A client's whole network is its own; in the paper's setting it is a projection on frozen features
(`network: features`). With z the feature of an example at length 1 it minimises

    -log( exp(z . p_y / tau) / sum over classes c of exp(z . p_c / tau) ),

p_c being the global prototype of class c, over the classes that have a prototype. Examples of other
classes have no effect, so the first round trains nothing, as in both codes. Afterwards the client
sends the mean of its z for each of its classes (a *prototype*), and the server averages each class
over the clients that have it (`methods.networks.class_tables` describes the message). There is no
head: an example gets the class of the nearest prototype, among the client's own as in both codes,
or among the global ones (`inference`).

The loss is the first term of PFLlib's, as we remember the paper's. Its second term, the mean of the
same contrast with each other client's own prototypes, is left out: each client would need every
other's table by itself, and a sum would not do. In the authors' code prototypes are the anchors and
the denominators run over a batch of two views, so that no example has a loss of its own; that is
left out too. Prototypes keep the length of a mean of unit vectors, as in both codes; `similarity:
cosine` brings them to length 1, as we remember the paper.

`dp_sgd` is refused: prototypes are statistics of records that do not come from a noised step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt, Le
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
from methods.networks.layers import Layers, Parameters

OWN = "own."
"""Beginning of the names of a client's own table, which it keeps."""

VARIANTS = (
    {"network": "cnn", "similarity": "cosine"},
    {"network": "features", "inference": "global_prototypes"},
)


@dataclass(frozen=True)
class Config(TableConfig):
    """Options.

    Attributes:
        temperature: tau.
        similarity: Of a feature and a prototype: the product with the mean as it is, or the cosine.
        inference: The prototypes among which the method searches for an example's nearest.
    """

    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 0.07
    similarity: Literal["dot", "cosine"] = "dot"
    inference: Literal["own_prototypes", "global_prototypes"] = "own_prototypes"


class FedPCL(TableMethod):
    """Prototype-wise contrastive learning."""

    config: Config

    @property
    def head_layers(self) -> Layers:
        """There is no head."""
        return {}

    @property
    def scale(self) -> float:
        """Prototypes are at most as long as flags."""
        return 1.0

    def features(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return features (B, D) of length 1, or zero where the network gives zero."""
        return functional.normalize(super().features(parameters, batch), dim=1)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the contrast with the global prototypes, (B,)."""
        known, table, labels = parameters[KNOWN], parameters[TABLE], batch["labels"]
        if self.config.similarity == "cosine":
            table = functional.normalize(table, dim=1)
        scores = self.features(parameters, batch) @ table.T / self.config.temperature
        # Not minus infinity: where no class is known, zero times infinity would be NaN.
        least = torch.finfo(scores.dtype).min
        among_known = scores.masked_fill(known == 0, least).logsumexp(dim=1)
        own = scores.gather(1, labels[:, None]).squeeze(1)
        return known[labels] * (among_known - own)

    def kept(self, means: NDArray[np.float32], flags: NDArray[np.float32]) -> Arrays:
        """Return the client's own table."""
        return {OWN + TABLE: means, OWN + KNOWN: flags}

    def whole_model_of(self, view: ClientView) -> Arrays:
        """Return the network and the table by which it predicts; refuse a view without either."""
        table = table_of(view.broadcast)
        if self.config.inference == "own_prototypes":
            table = {name: view.personal.get(OWN + name, row) for name, row in table.items()}
        return {**super().whole_model_of(view), **table}

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return minus the distance to each prototype, (B, C); zeros where no class is known."""
        features, known = self.features(parameters, batch), parameters[KNOWN] > 0
        if not bool(known.any()):
            return features.new_zeros((len(features), len(self.classes)))
        return negative_distances(features, parameters[TABLE], known)


build = FedPCL.built

"""GPFL: features go two ways, guided by embeddings of all classes and by the client's own task.

Zhang et al. 2023, "GPFL: Simultaneously Learning Global and Personalized Feature Information for
Personalized Federated Learning" (ICCV, arXiv 2308.10279). Extractor f, one embedding e_c (D,) of
each class and a *conditional valve* are shared, the head is personal. From features h = f(x) and a
condition q (D,) the valve computes

    valve(h, q) = ReLU(h * (gamma(q) + 1) + beta(q)),

gamma and beta being a linear layer, ReLU and layer normalisation each, as in the authors' code.
With the embeddings e' as broadcast, the generic condition is their mean, and a client's own
condition is their mean weighted by the shares of its classes among its examples. With g the
features behind the valve under the generic condition and p those under the own one, an example's
loss is

    CE(head(p), y) + CE over classes c of cos(g, e_c) + lambda ||g - e'_y||,

and mu / 2 times the squares of embeddings and valve is added. Prediction is head(p).

The client counts shares and keeps them in its own state; before it has counted they are uniform. So
a prediction can make the own condition from any embeddings. `dp_sgd` and clipping of single
examples are refused: shares are a statistic of records that does not come from a noised step, and
through them one example changes the loss of the others. The decay sees no data.

Published code (the authors', and PFLlib) departs: its norm is that of a batch's differences as one
vector, so its lambda weighs more than here, where each example has its own norm, by a factor of
about the square root of the batch size. It makes the conditions from the embeddings that the client
itself trained last, zero in the first round, not from the broadcast ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import (
    Layer,
    Layers,
    Parameters,
    linear,
    linear_layers,
    norm,
    norm_layers,
)
from methods.networks.method import FED, GATED, HEAD, BatchObjective, ModularMethod, label_shares

EMBEDDING = "embedding"
"""e, (C, D)."""
GAMMA, BETA = "valve.gamma", "valve.beta"
SHARES = "class_shares"
"""The shares of classes among a client's examples, (C,)."""
FROZEN = "broadcast_embedding"
"""e', (C, D)."""
GENERIC, OWN = "generic_condition", "own_condition"


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        guidance_weight: lambda, factor of the distance to the embedding of the example's class.
        decay: mu, factor of half the squares of embeddings and valve.
    """

    guidance_weight: Annotated[float, Ge(0.0), Le(1e6)] = 0.01
    decay: Annotated[float, Ge(0.0), Le(1e6)] = 0.1


class GPFL(ModularMethod):
    """Global guidance and personal tasks."""

    config: Config
    couples_examples = True

    @property
    def decayed_layers(self) -> Layers:
        """Embeddings and valve."""
        width = self.extractor.width
        return {
            EMBEDDING: Layer((len(self.classes), width), None),
            **linear_layers(GAMMA, width, width),
            **norm_layers(f"{GAMMA}.norm", width),
            **linear_layers(BETA, width, width),
            **norm_layers(f"{BETA}.norm", width),
        }

    @property
    def shared_layers(self) -> Layers:
        """Extractor, embeddings and valve."""
        return {**self.extractor.layers, **self.decayed_layers}

    @property
    def personal_layers(self) -> Layers:
        """The head."""
        return self.head_layers

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return a fresh head, and equal shares of all classes."""
        shares = np.full(len(self.classes), 1.0 / len(self.classes), np.float32)
        return {**super().init_client(shared_rng, client_rng), SHARES: shares}

    def model_of(self, view: m.ClientView) -> dict[str, NDArray[Any]]:
        """Return the arrays of the client's network, and both conditions."""
        model = super().model_of(view)
        embedding = view.broadcast[EMBEDDING]
        model |= {FROZEN: embedding, GENERIC: embedding.mean(axis=0)}
        if SHARES in view.personal:
            model[OWN] = view.personal[SHARES] @ embedding
        return model

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return the features behind the valve under the own condition, (B, D)."""
        rows = valve(parameters, self.features(parameters, batch), parameters[OWN])
        return {FED: rows, GATED: rows}

    def objective(self, view: m.ClientView) -> m.Objective:
        """Return the own task and the guidance."""
        return BatchObjective(self.guided)

    def guided(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,)."""
        features, labels = self.features(parameters, batch), batch["labels"]
        own = valve(parameters, features, parameters[OWN])
        generic = valve(parameters, features, parameters[GENERIC])
        away = generic - parameters[FROZEN][labels]
        distances: Tensor = torch.linalg.vector_norm(away, dim=1)
        return (
            functional.cross_entropy(linear(parameters, HEAD, own), labels, reduction="none")
            + angle_losses(generic, parameters[EMBEDDING], labels)
            + self.config.guidance_weight * distances
        )

    def decay(self, parameters: Parameters, encoded: Parameters) -> Tensor:
        """Return half of mu times the squares of embeddings and valve, (); it sees no data."""
        squares = [parameters[name].square().sum() for name in self.decayed_layers]
        total: Tensor = torch.stack(squares).sum()
        return 0.5 * self.config.decay * total

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Count the classes, train everything together, keep head and shares."""
        shares = label_shares(data.arrays["labels"], len(self.classes))
        counted = m.ClientView(view.broadcast, view.experts, {**view.personal, SHARES: shares})
        decay = self.decay if self.config.decay else None
        trained = self.train(counted, data, trainer, rng, penalty=decay)
        result = self.result(view, trained)
        return m.LocalResult(result.update, None, {**result.personal, SHARES: shares})


def valve(parameters: Parameters, features: Tensor, condition: Tensor) -> Tensor:
    """Return features (B, D), none negative, behind the valve under a condition (D,)."""
    gamma, beta = (
        norm(parameters, f"{name}.norm", functional.relu(linear(parameters, name, condition)))
        for name in (GAMMA, BETA)
    )
    return functional.relu(features * (gamma + 1.0) + beta)


def angle_losses(rows: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
    """Return cross-entropy (B,) over cosines of rows (B, D) and embeddings (C, D)."""
    cosines: Tensor = functional.normalize(rows) @ functional.normalize(embedding).T
    return functional.cross_entropy(cosines, labels, reduction="none")


build = GPFL.built

"""FedPCL: features move towards the prototype of their class and away from all other prototypes.

Tan et al. 2022, "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach"
(NeurIPS, arXiv 2209.10083), by published code, as the paper's text was not available: the authors'
(github.com/yuetan031/FedPCL at 0c3895b) and PFLlib's (github.com/TsingZ0/PFLlib at d832e76).

A client's whole network is its own; in the paper's setting it is a projection on frozen features
(`network: features`). With z the feature of an example at length 1 and p a table of prototypes, let

    l(p) = -log( exp(z . p_y / tau) / sum over classes c of exp(z . p_c / tau) ).

The loss is l(global prototypes) plus the mean of l(p_i) over the newest tables p_i of all clients,
its own among them; `contrast: global` leaves out this second term. Where client i lacks a class, or
has sent no table yet, p_i has the global prototype. Examples of a class without one have no effect,
so the first round trains nothing, as in both codes. Afterwards the client sends the mean of its z
for each of its classes (a *prototype*), and the server averages each class over the clients that
have it (`methods.networks.class_tables`). There is no head: an example gets the class of the
nearest prototype, among the client's own as in both codes, or among the global ones (`inference`).

The loss is PFLlib's, as we remember the paper's. The authors' code has the second term alone, with
prototypes as anchors and denominators over a batch of two views, so that no example has a loss of
its own. Prototypes keep the length of a mean of unit vectors, as in both codes; `similarity:
cosine` brings them to length 1, as we remember the paper.

The second term shows each client's table to the server and to all clients: secure sums and noise on
sums are refused, uploads with noise of their own are not (`upload_noise`).
`dp_sgd` is refused: prototypes are statistics of records that do not come from a noised step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks import class_tables as tables
from methods.networks.class_tables import KNOWN, TABLE
from methods.networks.layers import Layers, Parameters

OWN, OF = "own.", "table/"
"""Beginnings of names: of the table that a client keeps, and of a client's (C, W) at the server."""

READING = "the paper was not at hand; the loss is that of PFLlib, and the authors' code has another"
VARIANTS = (
    {"network": "cnn", "similarity": "cosine"},
    {"network": "features", "contrast": "global", "inference": "global_prototypes"},
)


@dataclass(frozen=True)
class Config(tables.TableConfig):
    """Options.

    Attributes:
        contrast: The tables of the loss: the global one and each client's, or the global one alone.
        temperature: tau.
        similarity: Of a feature and a prototype: the product with the mean as it is, or the cosine.
        inference: The prototypes among which the method searches for an example's nearest.
    """

    contrast: Literal["global_and_clients", "global"] = "global_and_clients"
    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 0.07
    similarity: Literal["dot", "cosine"] = "dot"
    inference: Literal["own_prototypes", "global_prototypes"] = "own_prototypes"


class FedPCL(tables.TableMethod):
    """Prototype-wise contrastive learning."""

    config: Config

    @property
    def visibility(self) -> m.Visibility:
        """Each client's table, unless the global one is all that features are contrasted with."""
        return m.Visibility.PER_CLIENT if self._clients else m.Visibility.AGGREGATE_ONLY

    @property
    def _clients(self) -> int:
        return 0 if self.config.contrast == "global" else self.task.population

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

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Average the tables; keep each client's newest one, with zeros for classes it lacks."""
        each = aggregate.each() if self._clients else {}
        after = dict(super().server_update(state, aggregate, pool, rng))
        floor = min(self.config.presence_floor, 1.0)
        for client, sent in each.items():
            flags = sent[tables.PRESENCE]
            rows, classes = tables.known_rows(sent[self.sent], flags, floor, self.scale)
            after[OF + client] = own = np.zeros_like(after[TABLE])
            own[classes] = rows
        return after

    def broadcast(self, state: m.Arrays, client: str | None = None) -> m.Arrays:
        """Return the global table and one of each of M clients, (1 + M, C, W); M is 0 if summed."""
        known = sorted(name for name in state if name.startswith(OF))[: self._clients]
        found = [state[name] for name in (TABLE, *known)]
        found += [state[TABLE]] * (self._clients - len(known))
        filled = [np.where(one.any(1, keepdims=True), one, state[TABLE]) for one in found]
        return {TABLE: np.stack(filled), KNOWN: state[KNOWN]}

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return the contrast with the global table plus the mean of that with clients', (B,)."""
        known, every, labels = parameters[KNOWN], parameters[TABLE], batch["labels"]
        if self.config.similarity == "cosine":
            every = functional.normalize(every, dim=2)
        features = self.features(parameters, batch) / self.config.temperature
        scores = torch.einsum("bw,tcw->btc", features, every)
        # Not minus infinity: where no class is known, zero times infinity would be NaN.
        among_known = scores.masked_fill(known == 0, -1e30).logsumexp(dim=2)
        own = scores.gather(2, labels[:, None, None].expand(-1, len(every), 1)).squeeze(2)
        common, single = (among_known - own).tensor_split([1], dim=1)
        return known[labels] * (common.squeeze(1) + single.sum(1) / max(len(every) - 1, 1))

    def kept(self, means: NDArray[np.float32], flags: NDArray[np.float32]) -> m.Arrays:
        """Return the client's own table."""
        return {OWN + TABLE: means, OWN + KNOWN: flags}

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return the network and the table by which it predicts; refuse a view without either."""
        table = {TABLE: view.broadcast[TABLE][0], KNOWN: view.broadcast[KNOWN]}
        if self.config.inference == "own_prototypes":
            table = {name: view.personal.get(OWN + name, row) for name, row in table.items()}
        return {**super().whole_model_of(view), **table}

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return minus the distance to each prototype, (B, C); zeros where no class is known."""
        features, known = self.features(parameters, batch), parameters[KNOWN] > 0
        if not bool(known.any()):
            return features.new_zeros((len(features), len(self.classes)))
        return tables.negative_distances(features, parameters[TABLE], known)


build = FedPCL.built

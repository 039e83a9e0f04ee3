"""Fed-Syn-MoE: a gate over the shared and a local network, all trained at once; no second phase.

Feng et al. 2025 (PM-MoE, WWW, doi 10.1145/3696410.3714561), "Analysis of the combination of
personalized federated learning and MOE": the control for PM-MoE, after PFL-MoE (Guo et al. 2021)
and FedMoE (Yi et al. 2024). A client has the shared network, a whole network of its own, and a gate
of its own that weighs the logits of the two. The client trains all three together by the
cross-entropy of the mixture; the server averages changes of the shared network.

The paper says no more. Our decisions: the gate gets the shared extractor's features, as the gates
over heads do; gradients pass through them; all parts have one learning rate unless `gate_rate`
says otherwise. One fit trains all parts, so one bound holds for all of them.

`wiring: published` is that of the paper's published code (`serverfedmoe.py` and `clientfedmoe.py`
of PM-MOE at commit ed9d2f18): the gate weighs the features of two extractors, the shared and a
local one, before one personal head. The extractor alone is shared. The gate gets the flattened
pixels (of texts the mean embedding), and is drawn anew whenever a client begins to train.
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
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear, start, under
from methods.networks.method import HEAD, BatchObjective, SplitMethod
from methods.networks.mixture import Drop, Gate, GateConfig, mixed

LOCAL = "local."
"""Beginning of the names of the local network's arrays."""

VARIANTS = ({"network": "features", "activation": "prelu"}, {"wiring": "published"})


@dataclass(frozen=True)
class Config(NetworkConfig, GateConfig):
    """Options.

    Attributes:
        gate_rate: The gate's learning rate; None for `training.learning_rate`.
        wiring: Two whole networks under a gate that is kept, or two extractors before one personal
            head under a gate that is drawn anew, as published.
    """

    gate_rate: Annotated[float, Gt(0.0), Le(1e3)] | None = None
    wiring: Literal["paper", "published"] = "paper"


class FedSynMoE(SplitMethod):
    """A shared and a local network under a gate; as published, the gate joins only extractors."""

    config: Config
    has_personal_state = True

    @property
    def is_published(self) -> bool:
        """Whether the wiring is the published code's."""
        return self.config.wiring == "published"

    @property
    def gate(self) -> Gate:
        """The weights of the local network, then of the shared one."""
        fed = self.extractor.flat_width if self.is_published else self.extractor.width
        return Gate(fed, 2, self.config)

    @property
    def shared_layers(self) -> Layers:
        """One whole network, or as published its extractor."""
        layers = self.extractor.layers
        return dict(layers) if self.is_published else {**layers, **self.head_layers}

    @property
    def local_layers(self) -> Layers:
        """The other network, and as published the head of both."""
        local = {f"{LOCAL}{name}": layer for name, layer in self.shared_layers.items()}
        return {**local, **self.head_layers} if self.is_published else local

    @property
    def personal_layers(self) -> Layers:
        """The local network and the gate."""
        return {**self.local_layers, **self.gate.layers}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return a fresh local network and gate, alike for all clients."""
        return {**start(self.local_layers, shared_rng), **self.gate.start(shared_rng)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train both networks and the gate together."""
        model = self.model_of(view)
        if self.is_published:
            model |= self.gate.start(rng)
        drop = self.gate.drop(rng)

        def losses(parameters: Parameters, batch: Parameters) -> Tensor:
            logits = self.logits(parameters, batch, drop)
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        names, loss = (*self.shared_layers, *self.local_layers), BatchObjective(losses)
        gate = m.ParameterGroup(tuple(self.gate.layers), self.config.gate_rate)
        trained = self.train(
            view, data, trainer, rng, names=names, further=(gate,), objective=loss, start=model
        )
        return self.result(view, trained)

    def logits(self, parameters: Parameters, batch: Parameters, drop: Drop | None = None) -> Tensor:
        """Return logits (B, C) of the mixture."""
        own = under(LOCAL, parameters)
        features = self.features(parameters, batch)
        weights = self.weights(parameters, batch, features, drop)
        if self.is_published:
            both = torch.stack((self.features(own, batch), features), dim=-2)
            return linear(parameters, HEAD, mixed(weights, both))
        each = (super().logits(own, batch), linear(parameters, HEAD, features))
        return mixed(weights, torch.stack(each, dim=-2))

    def weights(
        self, parameters: Parameters, batch: Parameters, features: Tensor, drop: Drop | None = None
    ) -> Tensor:
        """Return weights (B, 2) of the local and the shared network, from the shared features.

        As published, from the example as one vector.
        """
        fed = features
        if self.is_published:
            fed = self.extractor.flat(parameters, self.extractor.inputs(batch))
        return self.gate.scores(parameters, fed, drop).softmax(-1)

    def expert_weights(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32] | None:
        """Return weights (n, 2): of the local network, then of the shared one."""
        parameters = self.tensors(self.whole_model_of(view))
        with torch.no_grad():
            examples = self.tensors(batch)
            weights = self.weights(parameters, examples, self.features(parameters, examples))
        return weights.cpu().numpy().astype(np.float32)


build = FedSynMoE.built

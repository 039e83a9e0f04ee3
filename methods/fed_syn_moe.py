"""Fed-Syn-MoE: a gate over the shared and a local network, all trained at once; no second phase.

Feng et al. 2025 (PM-MoE, WWW, doi 10.1145/3696410.3714561), "Analysis of the combination of
personalized federated learning and MOE": the control that PM-MoE is compared with, after PFL-MoE
(Guo et al. 2021) and FedMoE (Yi et al. 2024). A client has the shared network, a whole network of
its own, and a gate of its own that weighs the logits of the two; all three are trained together by
the cross-entropy of the mixture, and changes of the shared network are averaged.

The paper says no more than that. Decided here: the gate is fed the shared extractor's features, as
the gates over heads are; gradients pass through them; the learning rate is one for all unless
`gate_rate` says otherwise. One fit trains everything, so one bound holds for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    ParameterGroup,
    Task,
    Trainer,
)
from methods.networks.extractors import NetworkConfig
from methods.networks.gate import Gate, GateConfig
from methods.networks.layers import Layers, Parameters, linear, start
from methods.networks.method import HEAD, SplitMethod
from methods.networks.mixture import mixed

LOCAL = "local."
"""What the names of the local network's arrays begin with."""


VARIANTS = ({"network": "features", "activation": "prelu"},)


@dataclass(frozen=True)
class Config(NetworkConfig, GateConfig):
    """Options.

    Attributes:
        gate_rate: The gate's learning rate; None for `training.learning_rate`.
    """

    gate_rate: Annotated[float, Gt(0.0)] | None = None


@dataclass(frozen=True)
class FedSynMoE(SplitMethod):
    """A shared and a local network under a gate."""

    config: Config
    has_personal_state: bool = field(default=True, init=False)

    @property
    def gate(self) -> Gate:
        """Weighs the local network, then the shared one."""
        return Gate(self.extractor.width, 2, self.config)

    @property
    def shared_layers(self) -> Layers:
        """One whole network."""
        return {**self.extractor.layers, **self.head_layers}

    @property
    def local_layers(self) -> Layers:
        """The other."""
        return {f"{LOCAL}{name}": layer for name, layer in self.shared_layers.items()}

    @property
    def personal_layers(self) -> Layers:
        """The local network and the gate."""
        return {**self.local_layers, **self.gate.layers}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return a fresh local network and gate, alike for all clients."""
        return {**start(self.local_layers, shared_rng), **self.gate.start(shared_rng)}

    def client_update(
        self,
        view: ClientView,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> LocalResult:
        """Train both networks and the gate together."""
        gate = tuple(self.gate.layers)
        trained = trainer.fit(
            self.objective(view),
            self.model_of(view),
            data.arrays,
            groups=(
                ParameterGroup((*self.shared_layers, *self.local_layers)),
                ParameterGroup(gate, self.config.gate_rate),
            ),
            rng=rng,
        )
        return self.result(view, trained)

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C) of the mixture."""
        own = {n.removeprefix(LOCAL): v for n, v in parameters.items() if n.startswith(LOCAL)}
        features = self.features(parameters, batch)
        each = (super().logits(own, batch), linear(parameters, HEAD, features))
        return mixed(self.weights(parameters, features), torch.stack(each, dim=-2))

    def weights(self, parameters: Parameters, features: Tensor) -> Tensor:
        """Return weights (B, 2) of the local and the shared network.

        From the shared features (B, D).
        """
        return self.gate.scores(parameters, features).softmax(-1)

    def expert_weights(
        self,
        view: ClientView,
        batch: Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32] | None:
        """Return weights (n, 2): of the local network, then of the shared one."""
        parameters = self.tensors(self.whole_model_of(view))
        with torch.no_grad():
            features = self.features(parameters, self.tensors(batch))
            weights = self.weights(parameters, features)
        return weights.cpu().numpy().astype(np.float32)


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        BackboneError: If the network needs a CLIP model and the task has none.
    """
    return FedSynMoE.built(config, task)

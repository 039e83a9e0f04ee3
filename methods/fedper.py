"""FedPer: the extractor is shared, the head stays with the client.

Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv 1912.00818),
Algorithm 1: base layers are averaged, personalisation layers are not; both are trained together.
Its personal module, for PM-MoE, is the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.interface.method import Method, Task
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers
from methods.networks.method import ModularMethod


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options."""


@dataclass(frozen=True)
class FedPer(ModularMethod):
    """Personalisation layers."""

    @property
    def shared_layers(self) -> Layers:
        """The extractor."""
        return self.extractor.layers

    @property
    def personal_layers(self) -> Layers:
        """The head."""
        return self.head_layers


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return FedPer.built(config, task)

"""FedPer: the extractor is shared, the head stays with the client.

Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv 1912.00818),
Algorithm 1: base layers are averaged, personalisation layers are not; both are trained together.
Its personal module, for PM-MoE, is the head.
"""

from __future__ import annotations

from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers
from methods.networks.method import ModularMethod

Config = NetworkConfig


class FedPer(ModularMethod):
    """Personalisation layers."""

    @property
    def personal_layers(self) -> Layers:
        """The head; the extractor is shared."""
        return self.head_layers


build = FedPer.built

"""LG-FedAvg: the head is shared, the extractor stays with the client.

Liang et al. 2020, "Think Locally, Act Globally: Federated Learning with Local and Global
Representations" (arXiv 2001.01523), Algorithm 1: a local model makes a representation, the global
model works on it; both are trained together, and the global one is averaged. The paper's auxiliary
losses on representations (fairness, self-supervision) are left out, and a client predicts with its
own representation; the paper's ensemble of all clients' local models, for data of unknown origin,
would send these models.

Its personal module, for PM-MoE, is the extractor, so a gate sees the inputs themselves as one
vector: pixels, CLIP features, or a text's mean embedding under the client's *own* table.
"""

from __future__ import annotations

from torch import Tensor

from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear
from methods.networks.method import FED, GATED, HEAD, ModularMethod

VARIANTS = ({"network": "features"}, {"network": "fasttext"})

Config = NetworkConfig


class LgFedAvg(ModularMethod):
    """Local representations under a global head."""

    @property
    def personal_layers(self) -> Layers:
        """The extractor; the head is shared."""
        return self.extractor.layers

    @property
    def gated_width(self) -> int:
        """G, the width of the inputs as one vector."""
        return self.extractor.flat_width

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return the inputs, for the extractor and as one vector each."""
        inputs = self.extractor.inputs(batch)
        return {FED: inputs, GATED: self.extractor.flat(parameters, inputs)}

    def module_output(self, module: Parameters, fed: Tensor) -> Tensor:
        """Return features (B, D) of inputs."""
        return self.extractor.features(module, fed)

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C) of features."""
        return linear(parameters, HEAD, output)


build = LgFedAvg.built

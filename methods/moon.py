"""MOON: a client's features are drawn to the global network's and away from its own last ones.

Li et al. 2021, "Model-Contrastive Federated Learning" (CVPR), Eq. 3 and 4 and Algorithm 1. With z
the representation of an example under the network in training, z_glob under the broadcast and
z_prev under what the client trained last, a client minimises the mean of

    l_sup + mu l_con,   l_con = -log( exp(sim(z, z_glob) / tau)
                                      / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)) )

by z alone, sim being the cosine. With mu = 0 it is FedAvg. Before its first round a client has
trained nothing, and as in the paper z_prev is the start's: l_con is then log 2 without a gradient.

The paper puts a projection head of two layers, 256 wide, between encoder and output layer, and z is
its output; all of it is averaged. `projection: none` is published code's (PFLlib): z is the
encoder's feature, and the network is FedAvg's. The paper has tau 0.5 and tunes mu over
{0.1, 1, 5, 10}. PM-MoE's scripts pass neither, and with PFLlib's defaults, mu = 0 and tau = 1, MOON
is FedAvg.

The loss of an example does not depend on other examples. The trainer returned the last network, so
under `dp_sgd` that network is a release like the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear, linear_layers, under
from methods.networks.method import HEAD

COMMON, PREVIOUS = "common.", "previous."
PROJECTION = "projection"

VARIANTS = ({"network": "features", "projection": "mlp"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        mu: Factor of the contrastive term (Eq. 4).
        temperature: tau (Eq. 3).
        projection: What z is: the output of a projection head of two layers, or the features.
        projection_width: Width of z behind a projection head.
    """

    mu: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    temperature: Annotated[float, Gt(0.0), Le(1e6), CountsWith("mu")] = 0.5
    projection: Literal["mlp", "none"] = "mlp"
    projection_width: Annotated[int, Ge(1), Le(16384), CountsWith("projection", ("mlp",))] = 256


class Moon(FedAvg):
    """Model-contrastive learning."""

    config: Config

    @property
    def has_personal_state(self) -> bool:
        """With mu = 0 a client keeps nothing."""
        return self.config.mu > 0.0

    @property
    def projection_layers(self) -> Layers:
        """Two layers between features and head."""
        if self.config.projection == "none":
            return {}
        width = self.extractor.width
        return {
            **linear_layers(f"{PROJECTION}.fc1", width, width),
            **linear_layers(f"{PROJECTION}.fc2", width, self.config.projection_width),
        }

    @property
    def head_layers(self) -> Layers:
        """A linear head from z to classes."""
        if self.config.projection == "none":
            return super().head_layers
        return linear_layers(HEAD, self.config.projection_width, len(self.classes))

    @property
    def network_layers(self) -> Layers:
        """The whole network."""
        return {**super().network_layers, **self.projection_layers}

    def features(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return z (B, D), the input of the head."""
        features = super().features(parameters, batch)
        if self.config.projection == "none":
            return features
        hidden = functional.relu(linear(parameters, f"{PROJECTION}.fc1", features))
        return linear(parameters, f"{PROJECTION}.fc2", hidden)

    def losses(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return Eq. 4 of each example, (B,), of three networks; with mu = 0 cross-entropy."""
        if not self.config.mu:
            return self.cross_entropies(parameters, batch)
        z = self.features(parameters, batch)
        labels = batch["labels"]
        supervised = functional.cross_entropy(linear(parameters, HEAD, z), labels, reduction="none")
        common, previous = (
            self.features(under(prefix, parameters), batch) for prefix in (COMMON, PREVIOUS)
        )
        contrast = contrastive_losses(z, common, previous, self.config.temperature)
        return supervised + self.config.mu * contrast

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the whole network beside two held ones, and keep it for the next round.

        With mu = 0 the client neither holds nor keeps another network.
        """
        held = self.held(view) if self.config.mu else {}
        start = {**self.model_of(view), **held}
        trained = self.train(view, data, trainer, rng, start=start)
        kept = {PREVIOUS + name: trained[name] for name in self.shared_layers if self.config.mu}
        return m.LocalResult(self.result(view, trained).update, None, kept)

    def held(self, view: m.ClientView) -> m.Arrays:
        """Return the broadcast network and the client's last one, at first the same."""
        last = {PREVIOUS + name: value for name, value in self.model_of(view).items()}
        return {
            **{COMMON + name: value for name, value in self.model_of(view).items()},
            **{name: view.personal.get(name, value) for name, value in last.items()},
        }


def contrastive_losses(
    z: Tensor, z_common: Tensor, z_previous: Tensor, temperature: float
) -> Tensor:
    """Return l_con (B,) of Eq. 3, of the three networks' representations (B, D)."""
    near = functional.cosine_similarity(z, z_common, dim=-1)
    far = functional.cosine_similarity(z, z_previous, dim=-1)
    # -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)), without overflow for a small temperature.
    return functional.softplus((far - near) / temperature)


build = Moon.built

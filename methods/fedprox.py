"""FedProx: FedAvg whose local training is pulled back to the network of the round.

Li et al. 2020, "Federated Optimization in Heterogeneous Networks" (MLSys), Eq. 2 and Algorithm 2:
a client minimises, inexactly, by its ordinary number of steps,

    h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2

over the whole network. With mu = 0 it is FedAvg. The paper tunes mu over {0.001, 0.01, 0.1, 1};
PFLlib's examples train with 0.001. Clients that do less work than others (the paper's
gamma-inexactness) are not supported: all clients take the configured number of steps.

The term sees no data. It is the trainer's penalty, so it uses no part of an example's bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from methods.fedavg import FedAvg
from methods.interface import method as m
from methods.networks.extractors import NetworkConfig
from methods.networks.method import pull_to


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        mu: Factor of the proximal term mu/2 ||w - w^t||^2 (Eq. 2).
    """

    mu: Annotated[float, Ge(0.0), Le(1e6)] = 0.001


class FedProx(FedAvg):
    """Federated averaging with a proximal term."""

    config: Config

    @property
    def anchored(self) -> bool:
        """The proximal term holds training at the broadcast."""
        return self.config.mu > 0.0

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the whole network, pulled back to the broadcast."""
        pull = pull_to(self.tensors(self.model_of(view)), self.config.mu)
        return self.result(view, self.train(view, data, trainer, rng, penalty=pull))


build = FedProx.built

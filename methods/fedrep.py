"""FedRep: a client trains its head on the shared body, then the body under that head.

Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning" (ICML),
Algorithm 1: a client takes tau steps on its own head with the shared body held, then steps on the
body with that head held; the body alone is averaged. Its personal module, for PM-MoE, is the head.

How many steps each part takes is open: the theory has one on the body, the paper's experiments ten
epochs on the head and then one or five on the body, PFLlib (PM-MoE's numbers) one epoch each. Here
the configured amount of training is that of *both* parts, as it is for every other method, and
`head_share` of it goes to the head: PFLlib's round is `training.local_epochs: 2` with 0.5. So two
fits take as many steps as are charged under `dp_sgd`, which is admitted. Noised steps alone then
train head and body, each clipped by itself, as they never move in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from methods.fedper import FedPer
from methods.interface import method as m
from methods.networks.extractors import NetworkConfig


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        head_share: Share of the steps that the head takes, rounded; at least one step goes to
            each part. A single step trains both parts together, as in FedPer.
    """

    head_share: Annotated[float, Gt(0.0), Lt(1.0)] = 0.5


class FedRep(FedPer):
    """Shared representations, learned in turns with the heads."""

    config: Config

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the head, then the body."""
        charged = trainer.charged_steps
        steps = trainer.steps_for(data.num_examples) if charged is None else charged
        if steps == 1:
            return super().client_update(view, data, trainer, rng)
        # tau of Algorithm 1, of two or more steps.
        on_head = min(max(round(self.config.head_share * steps), 1), steps - 1)
        head, body = tuple(self.personal_layers), tuple(self.shared_layers)
        trained = self.train(view, data, trainer, rng, names=head, steps=on_head)
        rest = steps - on_head
        trained = self.train(view, data, trainer, rng, names=body, start=trained, steps=rest)
        return self.result(view, trained)


build = FedRep.built

"""FedBABU: the head stays as it was drawn, the same for all, until the federation is over.

Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification" (ICLR),
Algorithm 1: in the rounds only the body is trained and averaged, under a head that is drawn at
random once, alike for all clients, and never moves. Afterwards each client fine-tunes its network.

The paper leaves open which part is fine-tuned: the abstract says the head, the default here; the
paper finds body and head together as good, uses that in its experiments for a fair comparison with
FedAvg, and so does PFLlib (`all`); `body` is its third case. Fine-tuning starts from the last
broadcast and is counted in rounds' worth of steps: PFLlib's ten epochs are `fine_tuning_rounds: 10`
with `training.local_epochs: 1`.

Its personal module, for PM-MoE, is the head after fine-tuning. With `all` each head belongs to a
body of its own, which others' heads never saw; PM-MoE's mixture is meant for `head`, and refuses
`body`, which leaves all heads as they were drawn.

After fine-tuning nothing leaves the client, so it costs no privacy under `dp_sgd`. If PM-MoE puts
the head into its pool, the head leaves the client: then noised steps train it, the charged number
in place of `fine_tuning_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from methods.fedper import FedPer
from methods.interface import method as m
from methods.networks.extractors import NetworkConfig

VARIANTS = ({"network": "features", "fine_tune": "all"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        fine_tune: The part that a client trains after the last round.
        fine_tuning_rounds: Its training, as a multiple of the steps of one round.
    """

    fine_tune: Literal["head", "body", "all"] = "head"
    fine_tuning_rounds: Annotated[int, Ge(1), Le(10000)] = 10


class FedBabu(FedPer):
    """Federated averaging of the body, under a head that never moves."""

    config: Config
    refines: ClassVar[bool] = True

    @property
    def fine_tuned(self) -> tuple[str, ...]:
        """Names of the arrays that are trained after the last round."""
        body, head = tuple(self.shared_layers), tuple(self.personal_layers)
        return {"head": head, "body": body, "all": (*body, *head)}[self.config.fine_tune]

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the body under the head as it was drawn."""
        body = tuple(self.shared_layers)
        return self.result(view, self.train(view, data, trainer, rng, names=body))

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Return the head and all else that was fine-tuned: the client's own from now on."""
        steps = trainer.charged_steps
        if steps is None:
            steps = self.config.fine_tuning_rounds * trainer.steps_for(data.num_examples)
        trained = self.train(view, data, trainer, rng, names=self.fine_tuned, steps=steps)
        return {name: trained[name] for name in (*self.personal_layers, *self.fine_tuned)}

    def whole_model_of(self, view: m.ClientView) -> m.Arrays:
        """Return the client's network, with its own body if it has one; it must have a head."""
        own = {name: view.personal[name] for name in self.shared_layers if name in view.personal}
        return {**super().whole_model_of(view), **own}


build = FedBabu.built

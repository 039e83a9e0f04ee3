"""FedBABU: the head stays as it was drawn, the same for all, until the federation is over.

Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification" (ICLR),
Algorithm 1: in the rounds only the body is trained and averaged, under a head that is drawn at
random once, alike for all clients, and never moves. Afterwards each client fine-tunes what it has.

What is fine-tuned is open: the abstract says the head, which is the default here; the paper finds
body and head together as good, uses that in its experiments for a fair comparison with FedAvg, and
so does PFLlib (`all`); `body` is its third case. Fine-tuning starts from the last broadcast and is
counted in rounds' worth of steps: PFLlib's ten epochs are `fine_tuning_rounds: 10` with
`training.local_epochs: 1`.

Its personal module, for PM-MoE, is the head after fine-tuning. With `all` each head also goes with
a body of its own, which others' heads never saw; PM-MoE's mixture is meant for `head`, and refuses
`body`, which leaves all heads as they were drawn.

Nothing that follows fine-tuning leaves the client, so it is free under `dp_sgd`. Where PM-MoE puts
the head into its pool it does leave, and is trained by noised steps: as many as are charged, in
place of `fine_tuning_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from methods.fedper import FedPer
from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    Task,
    Trainer,
)
from methods.networks.extractors import NetworkConfig

VARIANTS = ({"network": "features", "fine_tune": "all"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        fine_tune: What a client trains after the last round.
        fine_tuning_rounds: How much: as many times the steps of one round.
    """

    fine_tune: Literal["head", "body", "all"] = "head"
    fine_tuning_rounds: Annotated[int, Ge(1), Le(10000)] = 10


@dataclass(frozen=True)
class FedBabu(FedPer):
    """Federated averaging of the body, under a head that never moves."""

    config: Config
    refines: ClassVar[bool] = True

    @property
    def fine_tuned(self) -> tuple[str, ...]:
        """Names of what is trained after the last round."""
        body, head = tuple(self.shared_layers), tuple(self.personal_layers)
        return {"head": head, "body": body, "all": (*body, *head)}[self.config.fine_tune]

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the body under the head as it was drawn."""
        return self.result(
            view, self.train(view, data, trainer, rng, names=tuple(self.shared_layers))
        )

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return the head and whatever else was fine-tuned: the client's own from now on."""
        steps = self.fine_tuning_steps(trainer, data)
        trained = self.train(view, data, trainer, rng, names=self.fine_tuned, steps=steps)
        return {name: trained[name] for name in (*self.personal_layers, *self.fine_tuned)}

    def fine_tuning_steps(self, trainer: Trainer, data: Examples) -> int:
        """Return how many steps fine-tuning takes.

        Those of so many rounds, or all that are charged.
        """
        if trainer.charged_steps is not None:
            return trainer.charged_steps
        return self.config.fine_tuning_rounds * trainer.steps_for(data.num_examples)

    def whole_model_of(self, view: ClientView) -> dict[str, NDArray[Any]]:
        """Return arrays of the client's network; a body of its own stands in for the shared one.

        Raises:
            MethodError: If there is no head.
        """
        own = {name: view.personal[name] for name in self.shared_layers if name in view.personal}
        return {**super().whole_model_of(view), **own}


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return FedBabu.built(config, task)

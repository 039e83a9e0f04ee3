"""PromptFL with FedProx: local training is pulled back to the prompt of the round.

Li et al. 2020, "Federated Optimization in Heterogeneous Networks" (MLSys), Eq. 2 and Algorithm 2,
over the context vectors of PromptFL (Guo et al. 2023, IEEE TMC). A client minimises

    F_i(w) + mu/2 ||w - w_global||^2

inexactly, by its ordinary number of steps. With mu = 0 it is PromptFL. Papers that compare with
PromptFL+FedProx do not give mu; 0.5 is the default of FedOTP's published script, whose fedprox mode
trains PromptFL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from methods.interface import method as m
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, as_tensor, pull_near


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        mu: Factor of the proximal term mu/2 ||w - w_global||^2 (Eq. 2).
    """

    mu: Annotated[float, Ge(0.0), Le(1e6)] = 0.5


class PromptFedProx(PromptMethod):
    """PromptFL with a proximal term."""

    config: Config

    @property
    def anchored(self) -> bool:
        """The proximal term holds training at the broadcast."""
        return self.config.mu > 0.0

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the broadcast prompt, pulled back to it, and upload its change."""
        start = as_tensor(view.broadcast[CONTEXT], self.encoder.backbone)
        return self.train(view, data, trainer, rng, penalty=pull_near(start, self.config.mu))


build = PromptFedProx.built

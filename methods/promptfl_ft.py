"""PromptFL with fine-tuning: each client trains the final global prompt further for itself.

PromptFL (Guo et al. 2023, IEEE TMC, Algorithm 1), then local fine-tuning as in Wang et al. 2019,
"Federated Evaluation of On-device Personalization" (section 3) and Cheng et al. 2021, "Fine-tuning
is Fine in Federated Learning". The rounds are PromptFL's, bit for bit. Afterwards a client trains
the last prompt on its own data and predicts with the result, which never leaves it. No release
depends on it, so it needs no noise under any mechanism.

The federated papers report it as PromptFL+FT without its length or learning rate: both are options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from methods.interface import method as m
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        finetune_steps: Optimiser steps of the fine-tuning; None for those of one round.
        finetune_learning_rate: Its learning rate; None for `training.learning_rate`.
    """

    finetune_steps: Annotated[int, Ge(1), Le(1000000)] | None = None
    finetune_learning_rate: Annotated[float, Ge(0.0), Le(1e3)] | None = None


class PromptFLFineTuned(PromptMethod):
    """PromptFL whose clients continue alone at the end."""

    config: Config
    has_personal_state = True

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Train the last global prompt on the client's own data."""
        objective, start = self.training_objective(), {CONTEXT: view.broadcast[CONTEXT]}
        groups = (m.ParameterGroup((CONTEXT,), self.config.finetune_learning_rate),)
        steps = self.config.finetune_steps
        return trainer.fit(objective, start, data.arrays, groups=groups, rng=rng, steps=steps)


build = PromptFLFineTuned.built

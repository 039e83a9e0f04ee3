"""CoOp: each client learns its own prompt and shares nothing.

Zhou et al. 2022, "Learning to Prompt for Vision-Language Models" (IJCV), Eqs. 2-3; the local
baseline of the federated papers. The prompt carries on from round to round, so that T rounds of E
local epochs are one local training of T x E epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    Task,
    TensorSpec,
    Trainer,
)
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, build_encoder


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options: those of every prompt."""


@dataclass(frozen=True)
class CoOp(PromptMethod):
    """Local prompt learning."""

    has_personal_state: bool = field(default=True, init=False)

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Nothing is shared."""
        return {}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return no state."""
        return {}

    def init_client(
        self, shared_rng: np.random.Generator, client_rng: np.random.Generator
    ) -> Arrays:
        """Return the client's own context."""
        return {CONTEXT: self.encoder.init_context(client_rng, self.config.context_init)}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the own prompt on."""
        context = self.train_prompt(view.personal[CONTEXT], data, trainer, rng)
        return LocalResult({}, None, {CONTEXT: context})

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return CLIP's logits (n, C) under the own prompt."""
        return self.prompt_logits(view.personal[CONTEXT], batch, classes)


def build(config: Config, task: Task) -> Method:
    """Build the method."""
    return CoOp(build_encoder(config, task), config, task.classes)

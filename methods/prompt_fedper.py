"""PromptFL with FedPer: the first context vectors are shared, the others stay with the client.

Arivazhagan et al. 2019, "Federated Learning with Personalization Layers" (arXiv 1912.00818),
Algorithm 1: base layers are averaged, personalisation layers behind them are not; both are trained
together by SGD. The federated papers apply it to PromptFL's prompt (Guo et al. 2023) without saying
which part is which. Our reading: context vectors take the place of layers. The first ones are the
base; those next to the class name are personal, since under CLIP's causal mask a position reads
only positions before it, as a layer reads lower layers. `shared_tokens` of them are shared, by
default half; with all of them shared it is PromptFL.

One fit trains both parts: under `dp_sgd` one clip and one noise cover them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from methods.errors import MethodError
from methods.interface import method as m
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, PromptObjective

PERSONAL = "personal_context"

READING = "papers do not say which part of the prompt is shared; here it is the first half"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        shared_tokens: Number of context vectors that are averaged, the first ones; None for half
            of them, rounded up.
    """

    shared_tokens: Annotated[int, Ge(1), Le(64)] | None = None

    @property
    def base_tokens(self) -> int:
        """Number of shared context vectors."""
        return self.shared_tokens or (self.context_tokens + 1) // 2


class PromptFedPer(PromptMethod):
    """A prompt in two parts."""

    config: Config
    has_personal_state = True

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the first context vectors, averaged over clients."""
        spec = self.encoder.spec
        return {CONTEXT: replace(spec, shape=(self.config.base_tokens, spec.shape[1]))}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh base."""
        whole = self.encoder.init_context(rng, self.config.context_init)
        return {CONTEXT: whole[: self.config.base_tokens]}

    def init_client(self, shared_rng: m.Rng, client_rng: m.Rng) -> m.Arrays:
        """Return the client's own part, drawn by itself as Algorithm 1 has it."""
        whole = self.encoder.init_context(client_rng, self.config.context_init)
        return {PERSONAL: whole[self.config.base_tokens :]}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train both parts together, upload the base's change, keep the rest."""
        return self.train(view, data, trainer, rng, own={PERSONAL: view.personal[PERSONAL]})

    def training_objective(self) -> m.Objective:
        """Return cross-entropy of the prediction with base and own part joined."""
        parts = (CONTEXT, PERSONAL)
        return PromptObjective(
            self.encoder,
            self.classes,
            frozenset(parts),
            lambda parameters: torch.cat([parameters[part] for part in parts]),
        )

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under the global base and the own part, which it needs."""
        if PERSONAL not in view.personal:
            raise MethodError(
                "client: none, but a part of the prompt is a client's own; valid: one client"
            )
        whole = np.concatenate((view.broadcast[CONTEXT], view.personal[PERSONAL]))
        return self.prompt_logits(whole, batch, classes)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse more shared context vectors than there are."""
    method = PromptFedPer.built(config, task)
    if config.base_tokens > config.context_tokens:
        raise MethodError(
            f"method.shared_tokens: {config.shared_tokens} is more than method.context_tokens = "
            f"{config.context_tokens}; valid: 1 to {config.context_tokens}"
        )
    return method

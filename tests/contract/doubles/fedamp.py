"""FedAMP over a prompt: the server keeps a message of its own for every client.

Huang et al. 2021, "Personalized Cross-Silo Federated Learning on Non-IID Data" (AAAI), Algorithm 1:
client i is sent a convex combination of all clients' models, weighted by how alike they are, and
trains near it. The server sees each client's model, so the method is refused under secure sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor

from methods import (
    Aggregate,
    Arrays,
    Examples,
    LocalResult,
    Mechanism,
    Method,
    ParameterGroup,
    Task,
    Trainer,
    Visibility,
)
from methods._prompt import CONTEXT, PromptConfig, PromptMethod, PromptObjective, build_encoder

CLOUD = "cloud/"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options: sigma of A, alpha_k, and the weight of the proximal term in a step."""

    context_tokens: Annotated[int, Ge(1)] = 4
    sigma: Annotated[float, Gt(0.0)] = 1.0
    alpha: Annotated[float, Gt(0.0)] = 0.1
    pull: Annotated[float, Ge(0.0)] = 0.1


@dataclass(frozen=True)
class FedAMP(PromptMethod):
    """Attentive message passing."""

    config: Config
    visibility: Visibility = field(default=Visibility.PER_CLIENT, init=False)
    admits: frozenset[Mechanism] = field(default=frozenset(("none", "upload_noise")), init=False)

    def broadcast(self, state: Arrays, client: str | None = None) -> Arrays:
        return {CONTEXT: state.get(f"{CLOUD}{client}", state[CONTEXT])}

    def client_update(
        self,
        broadcast: Arrays,
        experts: Sequence[Arrays],
        personal: Arrays,
        data: Examples,
        trainer: Trainer,
        rng: np.random.Generator,
    ) -> LocalResult:
        start = broadcast[CONTEXT]
        message = torch.tensor(start)

        def after_step(trained: Mapping[str, Tensor]) -> None:
            trained[CONTEXT].lerp_(message, self.config.pull)

        objective = PromptObjective(self.encoder, self.classes)
        context = trainer.fit(
            objective,
            {CONTEXT: start},
            data.arrays,
            groups=(ParameterGroup((CONTEXT,)),),
            rng=rng,
            after_step=after_step,
        )[CONTEXT]
        return LocalResult({CONTEXT: context - start}, None, {CONTEXT: context})

    def server_update(
        self,
        state: Arrays,
        aggregate: Aggregate,
        pool: Sequence[Arrays],
        rng: np.random.Generator,
    ) -> Arrays:
        updates = aggregate.individual or {}
        models = {
            key: self.broadcast(state, key)[CONTEXT] + update[CONTEXT]
            for key, update in updates.items()
        }
        messages = {f"{CLOUD}{key}": self._message(key, models) for key in models}
        return {**state, **messages}

    def predict(
        self,
        broadcast: Arrays,
        experts: Sequence[Arrays],
        personal: Arrays,
        batch: Arrays,
        classes: Sequence[str],
    ) -> NDArray[np.float32]:
        return self.prompt_logits(personal.get(CONTEXT, broadcast[CONTEXT]), batch, classes)

    def _message(self, key: str, models: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        own = models[key]
        mixed = own.astype(np.float64)
        for other, model in models.items():
            if other != key:
                # A(d^2) = 1 - exp(-d^2 / sigma), so its derivative is exp(-d^2 / sigma) / sigma.
                distance = float(((own - model) ** 2).sum())
                weight = self.config.alpha * np.exp(-distance / self.config.sigma)
                mixed += weight / self.config.sigma * (model - own)
        return mixed.astype(np.float32)


def build(config: Config, task: Task) -> Method:
    """Builds the method."""
    return FedAMP(build_encoder(config, task), config, task.classes)

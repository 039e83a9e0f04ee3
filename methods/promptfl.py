"""PromptFL: one prompt for all, averaged over clients each round.

Guo et al. 2023, "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of
Models" (IEEE TMC), Algorithm 1: FedAvg over the context vectors, every client predicting with the
global prompt. Everything is in `methods.prompts.prompt`; by default this method changes nothing.

**Warm start** (ours). With `warm_steps` the first round has another message: each client sends the
sums of its image features for each class, as `class_statistics` does, and no prompt. The server
fits the prompt to their noised means, from `context_init` on, by steps that cost no budget: they
minimise the cross-entropy of the means under the prompt's text features. All later rounds are
PromptFL. All rounds pay alike, so one of T takes the T-th part of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch.nn import functional

from methods.interface import method as m
from methods.interface.averaging import plus_change
from methods.interface.defaults import CLIENT_ONLY
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptMethod,
    as_tensor,
    build_encoder,
    text_losses,
)

SUMS: Final = "class_sums"
"""Sums (C, d) of a client's image features for each class; zero after the first round."""
FITTED: Final = "fitted"
"""1 where the prompt has been fitted to sums, else 0."""
_RATE: Final = 0.01
"""Of Adam, on the server."""


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        warm_steps: Steps by which the server fits the prompt to class sums; None to send none.
    """

    warm_steps: Annotated[int, Ge(1), Le(10_000)] | None = None


VARIANTS = ({"warm_steps": 2},)


@dataclass(frozen=True)
class WarmPromptFL(PromptMethod):
    """One averaged prompt that starts at the clients' noised class means."""

    warm_steps: int
    units = CLIENT_ONLY
    # Not in the first round, so a server optimiser has nothing to take a step on.
    averaged = frozenset()

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the context and the sums, which leave in different rounds."""
        shape = (len(self.classes), self.encoder.backbone.embed_dim)
        sums = m.TensorSpec(shape, weighting=m.Weighting.UNIFORM, source=m.Source.STATISTIC)
        return {**super().shared_spec(), SUMS: sums}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context, which is not fitted."""
        return {**super().init_server(rng), FITTED: np.array(0, np.int64)}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Send class sums, or once the prompt is fitted what training changes of it."""
        context = view.broadcast[CONTEXT]
        update = {n: np.zeros(t.shape, np.float32) for n, t in self.shared_spec().items()}
        if view.broadcast[FITTED]:
            trained = self.train_prompt(context, data, trainer, rng)
            update[CONTEXT] = trained - context
        else:
            np.add.at(update[SUMS], data.arrays["labels"], data.arrays["features"])
        return m.LocalResult(update, None, view.personal)

    def server_update(
        self, state: m.Arrays, aggregate: m.Aggregate, pool: Sequence[m.Arrays], rng: m.Rng
    ) -> m.Arrays:
        """Fit the prompt to the means of the first round; add the mean change in all others."""
        if state[FITTED]:
            return plus_change(state, {CONTEXT: aggregate.values[CONTEXT]})
        fitted = self.fitted(state[CONTEXT], aggregate.values[SUMS])
        return {CONTEXT: fitted, FITTED: np.array(1, np.int64)}

    def fitted(self, context: NDArray[Any], sums: NDArray[Any]) -> NDArray[np.float32]:
        """Return a context (l, token width) whose texts tell the sums (C, d) apart, from another.

        Sums are taken at length one, as noise leaves little meaning in their lengths.
        """
        backbone = self.encoder.backbone
        found = as_tensor(context, backbone).requires_grad_(True)
        features = functional.normalize(as_tensor(sums, backbone).float(), dim=1)
        means = {"features": features, "labels": torch.arange(len(sums), device=features.device)}
        optimizer = torch.optim.Adam([found], lr=_RATE)
        for _ in range(self.warm_steps):
            text = self.encoder.text_features(found, self.classes)
            loss = text_losses(backbone, text, means).mean()
            (found.grad,) = torch.autograd.grad(loss, [found])
            optimizer.step()
        return found.detach().cpu().numpy().astype(np.float32)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method."""
    encoder = build_encoder(config, task)
    if config.warm_steps is None:
        return PromptMethod(encoder, config, task)
    return WarmPromptFL(encoder, config, task, config.warm_steps)

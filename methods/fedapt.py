"""FedAPT: one prompt for all, adapted to each image by frozen keys of the training domains.

Su et al. 2024, "Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning" (AAAI).
The server draws a key k_d of the prompt's shape for every domain, which never changes. Clients
learn together a meta prompt p and a query Q that tells domains apart. An example of domain d is
trained under the prompt that its key unlocks, and the query learns to name d:

    p_d = p + p * k_d,    loss = CE(s I T(p_d), label) + domain_weight CE(Q I, d).

A prediction does not know the domain: the query's answer q = Q I, standardised over the domains,
sets how the keys are mixed for this image,

    w = softmax((q - mean q) / std q / temperature),    prompt = p + p * sum_d w_d k_d.

The equations are from the published code. We change four things: the context is generic, not
class-specific, because predictions must exist for any class names; an example's domain selects its
key, which is the client's key where each client holds one domain, as in that code; the query sees
features of length one, whose small answers `query_learning_rate` can offset; and clients weigh by
their examples, where that code weighs all alike (`weighting: uniform`).

Every mechanism is admitted: keys are constants, an example's two losses depend on it alone, and
all trained arrays are shared. A step encodes each class under every domain's prompt, as only the
trainer may know which domains a client holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.networks.layers import Parameters, linear_start
from methods.prompts.prompt import (
    CONTEXT,
    EncodedObjective,
    PromptConfig,
    PromptMethod,
    as_tensor,
    as_tensors,
)

QUERY, KEYS = "query", "keys"
CONTEXTS_AT_ONCE = 32
"""Images' own prompts that are encoded together; changes memory only."""


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        temperature: Of the mixture of keys; towards 0 each image gets one domain's key.
        domain_weight: Weight of the query's loss; 0 leaves the query as it was drawn.
        query_learning_rate: Learning rate of the query, or None for `training.learning_rate`.
        weighting: Weights of clients in the mean: their examples, or all alike.
    """

    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 0.01
    domain_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    query_learning_rate: Annotated[float, Ge(0.0), Le(1e3)] | None = None
    weighting: Literal["examples", "uniform"] = "examples"


class FedAPT(PromptMethod):
    """A shared prompt under keys of D training domains."""

    config: Config
    needs = frozenset({"features", "domains"})

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return prompt and query; the keys are sent but never learned."""
        weighting = m.Weighting(self.config.weighting)
        domains, width = len(self.task.domains), self.encoder.backbone.embed_dim
        shapes = {CONTEXT: self.encoder.spec.shape, QUERY: (domains, width)}
        return {name: m.TensorSpec(shape, weighting=weighting) for name, shape in shapes.items()}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context, a query uniform in +-1/sqrt(d), and keys uniform in [0, 1)."""
        domains, width = len(self.task.domains), self.encoder.backbone.embed_dim
        keys = rng.uniform(0.0, 1.0, (domains, *self.encoder.spec.shape))
        return {
            CONTEXT: self.encoder.init_context(rng, self.config.context_init),
            QUERY: linear_start(rng, (domains, width), width),
            KEYS: keys.astype(np.float32),
        }

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train prompt and query together and upload their changes."""
        query = m.ParameterGroup((QUERY,), self.config.query_learning_rate)
        learned = (query,) if self.config.domain_weight > 0 else ()
        groups = (m.ParameterGroup((CONTEXT,)), *learned)
        return self.train(view, data, trainer, rng, groups=groups)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, C), each image under its own mixture of keys."""
        backbone = self.encoder.backbone
        with torch.no_grad():
            state = as_tensors(view.broadcast, backbone)
            image = as_tensor(batch["features"], backbone)
            weights = mixture(image @ state[QUERY].T, self.config.temperature)
            # A small temperature gives most images the very same mixture: one domain's key.
            distinct, mine = torch.unique(weights, dim=0, return_inverse=True)
            cosines = image.new_empty((len(image), len(classes)))
            for first in range(0, len(distinct), CONTEXTS_AT_ONCE):
                chosen = distinct[first : first + CONTEXTS_AT_ONCE]
                keys = torch.einsum("ud,dlw->ulw", chosen, state[KEYS])
                text = self.encoder.text_features_each(unlock(state[CONTEXT], keys), classes)
                rows = (mine >= first) & (mine < first + len(chosen))
                cosines[rows] = torch.einsum("bd,bcd->bc", image[rows], text[mine[rows] - first])
        return (backbone.logit_scale * cosines).cpu().numpy().astype(np.float32)

    def training_objective(self) -> m.Objective:
        """Return cross-entropies of class and domain."""

        def encode(parameters: Parameters) -> Parameters:
            # Text features (D, C, d) of all classes under each domain's prompt.
            contexts = unlock(parameters[CONTEXT], parameters[KEYS])
            return {"text": self.encoder.text_features_each(contexts, self.classes)}

        def losses(parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
            image, domains = batch["features"], batch["domains"]
            cosines = torch.einsum("bd,bcd->bc", image, encoded["text"][domains])
            logits = self.encoder.backbone.logit_scale * cosines
            named = functional.cross_entropy(image @ parameters[QUERY].T, domains, reduction="none")
            found = functional.cross_entropy(logits, batch["labels"], reduction="none")
            return found + self.config.domain_weight * named

        return EncodedObjective(frozenset({CONTEXT, KEYS}), encode, losses)


def unlock(context: Tensor, keys: Tensor) -> Tensor:
    """Return prompts p + p * k of a context (l, w) under keys (U, l, w)."""
    return context * (1.0 + keys)


def mixture(answers: Tensor, temperature: float) -> Tensor:
    """Return weights (B, D) of the keys from the query's answers (B, D); rows of sum one.

    Answers are standardised over the domains with the unbiased variance. Equal answers, as of a
    single domain, weigh all keys alike.
    """
    centred = answers - answers.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / max(1, answers.shape[1] - 1)
    standardised = torch.where(variance > 0, centred / variance.sqrt(), 0.0)
    return (standardised / temperature).softmax(dim=1)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a task without domains."""
    method = FedAPT.built(config, task)
    if not task.domains:
        raise MethodError(
            "task.domains: fedapt needs a key for each domain, but the data set has no domains; "
            "valid is a data set with at least one"
        )
    return method

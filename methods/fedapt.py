"""FedAPT: one prompt for all, adapted to each image by frozen keys of the training domains.

Su et al. 2024, "Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning" (AAAI).
The server draws a key k_d of the prompt's shape for every domain, which stays as it is. Clients
learn together a meta prompt p and a query Q that tells domains apart. An example of domain d is
trained under the prompt that its key unlocks, and the query learns to name d:

    p_d = p + p * k_d,    loss = CE(s I T(p_d), label) + domain_weight CE(Q I, d).

At prediction the domain is unknown: the query's answer q = Q I, standardised over the domains, sets
how the keys are mixed for this image,

    w = softmax((q - mean q) / std q / temperature),    prompt = p + p * sum_d w_d k_d.

The equations are taken from the published code. What is ours: the context is generic in place of
class-specific, as a prediction must exist for any class names; the key is the example's domain's,
which is the client's own where each client holds one domain, as there; the query sees features of
length one, whose small answers `query_learning_rate` can make up for; and clients are weighted by
their examples, where that code weighs all alike (`weighting: uniform`).

Every mechanism is admitted: keys are constants, an example's two losses depend on it alone, and
all that is trained is shared. A step encodes each class under every domain's prompt, as nobody but
the trainer may know which domains a client holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    Need,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
    Weighting,
)
from methods.networks.layers import Parameters, linear_start
from methods.prompts.prompt import (
    CONTEXT,
    PromptConfig,
    PromptEncoder,
    PromptMethod,
    as_tensor,
    as_tensors,
    build_encoder,
)

QUERY, KEYS = "query", "keys"
CONTEXTS_AT_ONCE = 32
"""Image's own prompts that are encoded together; changes memory only."""


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        context_tokens: Number l of learned context vectors.
        context_init: Text whose token embeddings start the context, or None for N(0, 0.02^2).
        temperature: Of the mixture of keys; towards 0 each image gets one domain's key.
        domain_weight: Weight of the query's loss; 0 leaves the query as it was drawn.
        query_learning_rate: Learning rate of the query, or None for `training.learning_rate`.
        weighting: How clients are weighted in the mean: by their examples, or all alike.
    """

    temperature: Annotated[float, Gt(0.0), Le(1e6)] = 0.01
    domain_weight: Annotated[float, Ge(0.0), Le(1e6)] = 1.0
    query_learning_rate: Annotated[float, Ge(0.0), Le(1e3)] | None = None
    weighting: Literal["examples", "uniform"] = "examples"


@dataclass(frozen=True)
class KeyedObjective:
    """Cross-entropies of class and domain."""

    encoder: PromptEncoder
    classes: tuple[str, ...]
    domain_weight: float
    encoder_parameters: frozenset[str] = frozenset({CONTEXT, KEYS})

    def encode(self, parameters: Parameters) -> Parameters:
        """Return text features (D, C, d) of all classes under each domain's prompt."""
        contexts = unlock(parameters[CONTEXT], parameters[KEYS])
        return {"text": self.encoder.text_features_each(contexts, self.classes)}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, shape (B,)."""
        image, domains = batch["features"], batch["domains"]
        cosines = torch.einsum("bd,bcd->bc", image, encoded["text"][domains])
        logits = self.encoder.backbone.logit_scale * cosines
        named = functional.cross_entropy(image @ parameters[QUERY].T, domains, reduction="none")
        losses = functional.cross_entropy(logits, batch["labels"], reduction="none")
        return losses + self.domain_weight * named


@dataclass(frozen=True)
class FedAPT(PromptMethod):
    """A shared prompt under domain keys.

    Attributes:
        encoder: Prompt encoder over the frozen backbone.
        config: The method's options.
        classes: Class names in label order.
        domains: Number D of training domains.
    """

    config: Config
    domains: int
    needs: frozenset[Need] = field(default=frozenset({"features", "domains"}), init=False)

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return prompt and query; the keys are sent but never learned."""
        weighting = Weighting(self.config.weighting)
        shapes = {CONTEXT: self.encoder.spec.shape, QUERY: (self.domains, self._width)}
        return {name: TensorSpec(shape, weighting=weighting) for name, shape in shapes.items()}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return fresh context; query uniform in +-1/sqrt(d), without bias.

        Keys uniform in [0, 1).
        """
        keys = rng.uniform(0.0, 1.0, (self.domains, *self.encoder.spec.shape))
        return {
            CONTEXT: self.encoder.init_context(rng, self.config.context_init),
            QUERY: linear_start(rng, (self.domains, self._width), self._width),
            KEYS: keys.astype(np.float32),
        }

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train prompt and query together and upload their changes."""
        objective = KeyedObjective(self.encoder, self.classes, self.config.domain_weight)
        query = ParameterGroup((QUERY,), self.config.query_learning_rate)
        learned = (query,) if self.config.domain_weight > 0 else ()
        groups = (ParameterGroup((CONTEXT,)), *learned)
        trained = trainer.fit(objective, view.broadcast, data.arrays, groups=groups, rng=rng)
        update = {name: trained[name] - view.broadcast[name] for name in (CONTEXT, QUERY)}
        return LocalResult(update, None, view.personal)

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
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

    @property
    def _width(self) -> int:
        return self.encoder.backbone.embed_dim


def unlock(context: Tensor, keys: Tensor) -> Tensor:
    """Return prompts p + p * k of a context (l, w) under keys (U, l, w)."""
    return context * (1.0 + keys)


def mixture(answers: Tensor, temperature: float) -> Tensor:
    """Return weights (B, D) of the keys from the query's answers (B, D); rows of sum one.

    Answers are standardised over the domains with the unbiased variance; answers that are all
    alike, as of a single domain, weigh all keys alike.
    """
    centred = answers - answers.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / max(1, answers.shape[1] - 1)
    standardised = torch.where(variance > 0, centred / variance.sqrt(), 0.0)
    return (standardised / temperature).softmax(dim=1)


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If the task names no domain.
        BackboneError: If the task has no backbone or the prompt does not fit into it.
    """
    encoder = build_encoder(config, task)
    if not task.domains:
        raise MethodError(
            "task.domains: fedapt needs a key for each domain, but there is none; valid is a data "
            "set with at least one"
        )
    return FedAPT(encoder, config, task.classes, len(task.domains))

"""Prompt learning for a frozen CLIP, as several methods use it.

A prompt is l learned context vectors in front of a class name (Zhou et al. 2022, "Learning to
Prompt for Vision-Language Models", Eq. 2, generic context, class token at the end):
`[start][context 1] ... [context l][class name][.][end]`. Class k's logit is the cosine of image and
text feature divided by the model's temperature (CoOp, Eq. 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from torch.nn import functional

from methods.errors import BackboneError, MethodError
from methods.interface import method as m
from methods.interface.averaging import AveragedMethod
from methods.networks.layers import Parameters

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone
    from methods.clip.text_tower import Following

CONTEXT = "context"
COMMON_KEPT = 16
"""Broadcast prompts whose text features are kept for all clients: more than the private experts
of a round. With a thousand names and 512 numbers, two megabytes each."""
CONTEXT_STANDARD_DEVIATION = 0.02
"""Standard deviation of randomly started context vectors (CoOp, section 4.1)."""


@dataclass(frozen=True)
class PromptConfig:
    """Options of every method that learns one generic prompt.

    Attributes:
        context_tokens: Number l of learned context vectors.
        context_init: Text whose token embeddings start the context, or None for N(0, 0.02^2).
            A text gives as many context vectors as it has tokens; `context_tokens` must agree.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 16
    context_init: str | None = None


class PromptEncoder:
    """Text features of learned prompts over one frozen backbone."""

    def __init__(self, backbone: Backbone, context_tokens: int) -> None:
        """Take the backbone and the number l of context vectors."""
        self.backbone = backbone
        self.context_tokens = context_tokens
        # Class names are few and alike in every step, so their constant parts are kept.
        self._placeholders = lru_cache(maxsize=8)(self._embed_placeholders)
        self._common = lru_cache(maxsize=COMMON_KEPT)(self._encode_common)

    @property
    def spec(self) -> m.TensorSpec:
        """Shape (l, token width) of the context."""
        return m.TensorSpec((self.context_tokens, self.backbone.token_dim))

    def require_room(self, classes: Sequence[str]) -> None:
        """Refuse a context and class names that do not fit into the backbone."""
        self._placeholders(tuple(classes))

    def init_context(self, rng: m.Rng, text: str | None) -> NDArray[np.float32]:
        """Return a first context (l, token width): N(0, 0.02^2), or the l embeddings of `text`."""
        if text is None:
            draw = rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, self.spec.shape)
            return draw.astype(np.float32)
        tokens = self.backbone.embed_tokens([text])
        length = int(tokens.end_of_text[0]) - 1
        if length != self.context_tokens:
            raise BackboneError(
                f"method.context_init: {text!r} has {length} tokens, but method.context_tokens is "
                f"{self.context_tokens}; the two must agree"
            )
        return tokens.embeddings[0, 1 : 1 + length].detach().cpu().numpy().astype(np.float32)

    def text_features(self, context: Tensor, classes: Sequence[str]) -> Tensor:
        """Return L2-normalised text features (C, d), differentiable in the context."""
        return self.text_features_each(context.unsqueeze(0), classes)[0]

    def text_features_each(self, contexts: Tensor, classes: Sequence[str]) -> Tensor:
        """Return L2-normalised text features (U, C, d) behind contexts (U, l, w), in one pass."""
        # Start token and context are alike in all classes, which makes the backbone faster.
        start, following = self._placeholders(tuple(classes))
        prefixes = torch.cat((start.expand(len(contexts), -1, -1), contexts), dim=1)
        return self.backbone.encode_behind(prefixes, following)

    def fixed_features(self, context: NDArray[Any], classes: Sequence[str]) -> Tensor:
        """Return L2-normalised text features (C, d) of a context (l, w), without gradients."""
        with torch.no_grad():
            return self.text_features(as_tensor(context, self.backbone), classes)

    def common_features(self, context: NDArray[Any], classes: Sequence[str]) -> Tensor:
        """Return `fixed_features` of a context that all clients got, made once for all.

        Never pass a context that a client trained: all clients share this memory, so it must reveal
        nothing about any client. The result is the same tensor each time; do not write to it.
        """
        raw = np.ascontiguousarray(context)
        return self._common(raw.tobytes(), raw.dtype.str, raw.shape, tuple(classes))

    def text_jacobian(
        self, context: NDArray[np.float32], classes: Sequence[str]
    ) -> NDArray[np.float64]:
        """Return how class-centred text features move with the context p: d (f_c - mean f) / d p.

        A move of all classes alike moves all logits alike and changes no prediction; so the mean
        over classes is subtracted. Each class takes one backward pass: the context is copied once
        for each number of the feature, and the i-th number is differentiated by the i-th copy. The
        result is (C embed_dim, l token width), rows class by class.
        """
        rows = np.stack([self._moves_of(context, name) for name in classes])
        centred: NDArray[np.float64] = rows - rows.mean(axis=0)
        return centred.reshape(-1, context.size)

    def text_gradients(
        self, context: NDArray[np.float32], classes: Sequence[str], examples: m.Arrays
    ) -> NDArray[np.float64]:
        """Return the gradient (n, l token width) of each example's cross-entropy by the context p.

        A loss sees the context through the text features alone. By the feature of class c the
        cross-entropy of image feature x with label y has the gradient s (p_c - [c = y]) x, where p
        is the prediction and s the inverse temperature. The chain rule multiplies it by the
        feature's Jacobian and sums over classes: a backward pass a class, for any number of images.
        """
        images = np.asarray(examples["features"], np.float64)
        text = self.fixed_features(context, classes)
        scale = float(self.backbone.logit_scale)
        logits = scale * images @ np.asarray(text.cpu().numpy(), np.float64).T
        slopes = scale * (softmax(logits, axis=1) - np.eye(len(classes))[examples["labels"]])
        found = np.zeros((len(images), context.size))
        for label, name in enumerate(classes):
            found += slopes[:, [label]] * (images @ self._moves_of(context, name))
        return found

    def _moves_of(self, context: NDArray[np.float32], name: str) -> NDArray[np.float64]:
        """Return one class's rows (embed_dim, l token width), before the mean is subtracted."""
        size = self.backbone.embed_dim
        copies = as_tensor(context, self.backbone).repeat(size, 1, 1).requires_grad_(True)
        features = self.text_features_each(copies, (name,))[:, 0]
        (gradients,) = torch.autograd.grad(features.diagonal().sum(), copies)
        return np.asarray(gradients.reshape(size, -1).cpu().numpy(), np.float64)

    def _encode_common(
        self, raw: bytes, dtype: str, shape: tuple[int, ...], classes: tuple[str, ...]
    ) -> Tensor:
        return self.fixed_features(np.frombuffer(raw, dtype).reshape(shape), classes)

    def _embed_placeholders(self, classes: tuple[str, ...]) -> tuple[Tensor, Following]:
        """Return the start token (1, w) and what follows the context."""
        before, prefix = 1 + self.context_tokens, "X " * self.context_tokens
        tokens = self.backbone.embed_tokens([f"{prefix}{name}." for name in classes])
        suffixes = tokens.embeddings[:, before:]
        with torch.no_grad():
            following = self.backbone.follow(before, suffixes, tokens.end_of_text)
        return tokens.embeddings[0, :1], following


@dataclass(frozen=True)
class PromptObjective:
    """Cross-entropy of CLIP's prediction with one prompt (CoOp, Eq. 3).

    Attributes:
        classes: Class names in label order.
        encoder_parameters: What the prompt is made of.
        prompt: Makes the prompt (l, token width) of the parameters.
    """

    encoder: PromptEncoder
    classes: tuple[str, ...]
    encoder_parameters: frozenset[str] = frozenset({CONTEXT})
    prompt: Callable[[Parameters], Tensor] = itemgetter(CONTEXT)

    def encode(self, parameters: Parameters) -> Parameters:
        """Return text features (C, d) of all classes."""
        return {"text": self.encoder.text_features(self.prompt(parameters), self.classes)}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, shape (B,)."""
        return text_losses(self.encoder.backbone, encoded["text"], batch)


@dataclass(frozen=True)
class EncodedObjective:
    """An objective of two functions: `encoder` sees no data, `head` gets its result and a batch."""

    encoder_parameters: frozenset[str]
    encoder: Callable[[Parameters], Parameters]
    head: Callable[[Parameters, Parameters, Parameters], Tensor]

    def encode(self, parameters: Parameters) -> Parameters:
        """Return the data-free part."""
        return self.encoder(parameters)

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, (B,)."""
        return self.head(parameters, encoded, batch)


@dataclass(frozen=True)
class PromptMethod(AveragedMethod):
    """A method with one learned prompt over the frozen backbone, averaged over clients."""

    encoder: PromptEncoder
    config: PromptConfig
    task: m.Task

    @classmethod
    def built(cls, config: PromptConfig, task: m.Task) -> Self:
        """Return the method for a task; refuse a prompt that does not fit into its backbone."""
        return cls(build_encoder(config, task), config, task)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        return self.task.classes

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return the context, averaged over clients."""
        return {CONTEXT: self.encoder.spec}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context."""
        return {CONTEXT: self.encoder.init_context(rng, self.config.context_init)}

    @property
    def has_public_jacobian(self) -> bool:
        """Clients share one prompt and nothing else."""
        return self.shared_spec() == {CONTEXT: self.encoder.spec}

    def public_jacobian(self, broadcast: m.Arrays) -> NDArray[np.float64] | None:
        """Return the Jacobian of the class-centred text features, (C d, l token width)."""
        if not self.has_public_jacobian:
            return None
        return self.encoder.text_jacobian(broadcast[CONTEXT], self.classes)

    def public_gradients(
        self, broadcast: m.Arrays, public: m.Examples
    ) -> NDArray[np.float64] | None:
        """Return the gradients of the cross-entropy of the prompt's prediction."""
        if not self.has_public_jacobian:
            return None
        return self.encoder.text_gradients(broadcast[CONTEXT], self.classes, public.arrays)

    def training_objective(self) -> m.Objective:
        """Return cross-entropy of the prompt's prediction over the task's classes."""
        return PromptObjective(self.encoder, self.classes)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under the client's own prompt, else the broadcast one."""
        if CONTEXT in view.personal:
            return self.prompt_logits(view.personal[CONTEXT], batch, classes)
        return self.broadcast_logits(view, batch, classes)

    def train_prompt(
        self,
        context: NDArray[Any],
        data: m.Examples,
        trainer: m.Trainer,
        rng: m.Rng,
        *,
        penalty: m.Penalty | None = None,
    ) -> NDArray[Any]:
        """Train a context (l, token width) alone by cross-entropy on the client's data."""
        objective = PromptObjective(self.encoder, self.classes)
        start, groups = {CONTEXT: context}, (m.ParameterGroup((CONTEXT,)),)
        return trainer.fit(objective, start, data.arrays, groups=groups, rng=rng, penalty=penalty)[
            CONTEXT
        ]

    def prompt_logits(
        self, context: NDArray[Any], batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return logits (n, C): cosine of image and text features over the temperature."""
        text = self.encoder.fixed_features(context, classes)
        return cosine_logits(text, batch, self.encoder.backbone)

    def broadcast_logits(
        self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return `prompt_logits` of the broadcast prompt, encoded once for all who got it."""
        text = self.broadcast_text(view, classes)
        return cosine_logits(text, batch, self.encoder.backbone)

    def broadcast_text(self, view: m.ClientView, classes: Sequence[str]) -> Tensor:
        """Return text features (C, d) of the broadcast prompt, without gradients; do not write."""
        if view.is_common:
            return self.encoder.common_features(view.broadcast[CONTEXT], classes)
        return self.encoder.fixed_features(view.broadcast[CONTEXT], classes)


def as_tensor(array: NDArray[Any], backbone: Backbone) -> Tensor:
    """Return the array on the backbone's device, never sharing its memory."""
    return torch.tensor(array, device=backbone.device)


def as_tensors(arrays: m.Arrays, backbone: Backbone) -> dict[str, Tensor]:
    """Return all arrays as `as_tensor` does."""
    return {name: as_tensor(array, backbone) for name, array in arrays.items()}


def cosine_logits(text: Tensor, batch: m.Arrays, backbone: Backbone) -> NDArray[np.float32]:
    """Return logits (n, C): cosine of image and text features (C, d) over the temperature."""
    with torch.no_grad():
        logits = backbone.logit_scale * as_tensor(batch["features"], backbone) @ text.T
    return logits.cpu().numpy().astype(np.float32)


def require_backbone(task: m.Task) -> Backbone:
    """Return the task's backbone; `BackboneError` if it has none."""
    if task.backbone is None:
        raise BackboneError("task.model: this method needs a CLIP model, but none is configured")
    return task.backbone


def build_encoder(config: PromptConfig, task: m.Task) -> PromptEncoder:
    """Return the prompt encoder for a task; refuse a context that does not fit."""
    backbone = require_backbone(task)
    # Start and end token, the full stop and at least one token of a class name.
    room = backbone.context_length - 4
    if config.context_tokens > room:
        raise BackboneError(
            f"method.context_tokens: {config.context_tokens} is too many for a context length of "
            f"{backbone.context_length}; valid: 1 to {room}"
        )
    encoder = PromptEncoder(backbone, config.context_tokens)
    encoder.require_room(task.classes)
    return encoder


def text_losses(backbone: Backbone, text: Tensor, batch: Parameters) -> Tensor:
    """Return cross-entropy (B,) of image features under text features (C, d) of all classes."""
    logits = backbone.logit_scale * batch["features"] @ text.T
    return functional.cross_entropy(logits, batch["labels"], reduction="none")


def half_square(difference: Tensor) -> Tensor:
    """Return half the squared Euclidean norm, shape (): its gradient is the difference itself."""
    return 0.5 * difference.square().sum()


def half_norm(difference: Tensor) -> Tensor:
    """Return half the Euclidean norm, shape (): its gradient has length 1/2, and is 0 at 0."""
    norm: Tensor = torch.linalg.vector_norm(difference)
    return 0.5 * norm


def pull_near(
    anchor: Tensor, weight: float, distance: Callable[[Tensor], Tensor] = half_square
) -> m.Penalty | None:
    """Return the term `weight * distance(context - anchor)`; None where the weight is zero."""

    def pull(parameters: Parameters, encoded: Parameters) -> Tensor:
        return weight * distance(parameters[CONTEXT] - anchor)

    return pull if weight else None


class Captions:
    """One caption for each class name, whose features are never learned."""

    def __init__(self, backbone: Backbone, template: str) -> None:
        """Take the backbone and a template with exactly one `{}` in place of the class name."""
        if template.count("{}") != 1:
            raise MethodError(
                f"method.template: {template!r} is not valid; it must contain {{}} exactly once"
            )
        self.backbone = backbone
        self._template = template
        # Kept, as all clients and rounds ask for the same few lists of names.
        self._kept = lru_cache(maxsize=8)(self._encode)

    def require_room(self, classes: Sequence[str]) -> None:
        """Refuse captions that do not fit into the backbone."""
        self.backbone.embed_tokens(self._texts(classes))

    def features(self, classes: Sequence[str]) -> Tensor:
        """Return constant text features of length one, (C, d); refuse captions that do not fit."""
        return self._kept(tuple(classes))

    def _texts(self, classes: Sequence[str]) -> list[str]:
        return [self._template.replace("{}", name) for name in classes]

    def _encode(self, classes: tuple[str, ...]) -> Tensor:
        return self.backbone.encode_texts(self._texts(classes))

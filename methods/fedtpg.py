"""FedTPG: clients share a net that turns class names into a prompt.

Qiu et al. 2024, "Federated Text-driven Prompt Generation for Vision-Language Models" (ICLR), by its
published code (github.com/boschresearch/FedTPG at f141c29), as the paper's text was not available.
With T (n, d) CLIP's text features of n bare class names, and Q (m, w) learned queries,

    X = Attention(LN(Q), LN(T), LN(T)),    context = X + W_2 GEGLU(W_1 LN(X)),

with multi-head attention, without a residual around it, and GEGLU(a, b) = a GELU(b). The context
(m, w) stands before each of the n names as CoOp's does. So any class names give a prompt, also
names that no client trained on. Only the net learns; its changes are averaged with equal weights.

A client's loss is the cross-entropy over its own classes, and its attention sees only their names.
So each loss depends on the client's other examples, and the platform cannot protect a record. Under
`names: all` loss and attention use every class of the task, and `dp_sgd` is admitted.

The code's blocks of self-attention after the first (`depth`, none by default) are left out. Its
widths d and w are both CLIP's 512; here keys and values are projected from d to w.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.averaging import AveragedMethod
from methods.networks.layers import (
    Layer,
    Layers,
    Parameters,
    linear,
    linear_layers,
    norm,
    norm_layers,
    specs,
)
from methods.prompts.prompt import (
    CONTEXT_STANDARD_DEVIATION,
    Captions,
    EncodedObjective,
    PromptConfig,
    PromptEncoder,
    as_tensor,
    as_tensors,
    build_encoder,
    cosine_logits,
    text_losses,
)

QUERIES = "queries"
PROJECTIONS = ("query", "key", "value")
EXPANSION = 4
"""Width of the hidden layer, after its gate, over the width of the context."""

VARIANTS = ({"names": "all"},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        context_tokens: Number m of context vectors.
        heads: Of the attention; divides the token width.
        names: Class names of a client's training: those of its own examples, or all.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 4
    heads: Annotated[int, Ge(1), Le(64)] = 4
    names: Literal["own", "all"] = "own"


@dataclass(frozen=True)
class FedTPG(AveragedMethod):
    """A shared generator of prompts, from captions that are bare class names."""

    encoder: PromptEncoder
    captions: Captions
    config: Config
    classes: tuple[str, ...]

    @property
    def couples_examples(self) -> bool:
        """A loss over the client's own classes depends on its other examples."""
        return self.config.names == "own"

    @property
    def learns_one_class(self) -> bool:
        """False over a client's own classes: the loss of a single class is always zero."""
        return self.config.names == "all"

    @property
    def layers(self) -> Layers:
        """The net's arrays."""
        backbone = self.encoder.backbone
        return layers_of(self.config, backbone.token_dim, backbone.embed_dim)

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return queries, attention and feed-forward layer; all clients weigh the same."""
        return specs(self.layers, m.Weighting.UNIFORM)

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh net: queries N(0, 0.02^2), layers as torch starts them."""
        return {name: started(rng, name, layer) for name, layer in self.layers.items()}

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train the net, and upload its change."""
        groups, loss = (m.ParameterGroup(tuple(self.shared_spec())),), self.objective(data)
        return self.train(view, data, trainer, rng, groups=groups, objective=loss)

    def objective(self, data: m.Examples) -> EncodedObjective:
        """Return the loss over the classes of the data, or over all of the task."""
        asked = np.arange(len(self.classes))
        if self.config.names == "own":
            asked = np.unique(data.arrays["labels"])
        places = np.zeros(len(self.classes), np.int64)
        places[asked] = np.arange(len(asked))
        classes = tuple(self.classes[label] for label in asked)
        positions = as_tensor(places, self.encoder.backbone)

        def encode(parameters: Parameters) -> Parameters:
            return {"text": self.text_features(parameters, classes)}

        def losses(parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
            among_asked = {**batch, "labels": positions[batch["labels"]]}
            return text_losses(self.encoder.backbone, encoded["text"], among_asked)

        return EncodedObjective(frozenset(self.shared_spec()), encode, losses)

    def text_features(self, parameters: Parameters, classes: Sequence[str]) -> Tensor:
        """Return text features (n, d) of classes under the context that their names give."""
        context = generated(parameters, self.captions.features(classes), self.config.heads)
        return self.encoder.text_features(context, classes)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) under the context of the asked classes."""
        backbone = self.encoder.backbone
        with torch.no_grad():
            text = self.text_features(as_tensors(view.broadcast, backbone), classes)
        return cosine_logits(text, batch, backbone)


def layers_of(config: Config, width: int, features: int) -> Layers:
    """Return the net's arrays, for tokens of width w and text features of width d."""
    hidden = EXPANSION * width
    return {
        QUERIES: Layer((config.context_tokens, width), None),
        **norm_layers("query_norm", width),
        **norm_layers("name_norm", features),
        **norm_layers("forward_norm", width),
        **linear_layers("query", width, width),
        **linear_layers("key", features, width),
        **linear_layers("value", features, width),
        **linear_layers("out", width, width),
        **linear_layers("inner", width, 2 * hidden),
        **linear_layers("outer", hidden, width),
    }


def started(rng: m.Rng, name: str, layer: Layer) -> NDArray[np.float32]:
    """Return an array of the net as the published code starts it."""
    part, _, kind = name.partition(".")
    if name == QUERIES:
        return rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, layer.shape).astype(np.float32)
    if kind == "bias" and part in (*PROJECTIONS, "out"):
        return np.zeros(layer.shape, np.float32)
    if part in PROJECTIONS:
        # Xavier's range of one matrix that holds all three, as torch draws it.
        bound = math.sqrt(6.0 / (layer.shape[1] + len(PROJECTIONS) * layer.shape[0]))
        return rng.uniform(-bound, bound, layer.shape).astype(np.float32)
    return layer.start(rng)


def generated(parameters: Parameters, names: Tensor, heads: int) -> Tensor:
    """Return the context (m, w) of class names from their text features (n, d)."""
    seen = norm(parameters, "name_norm", names)
    query = linear(parameters, "query", norm(parameters, "query_norm", parameters[QUERIES]))
    key, value = (linear(parameters, name, seen) for name in ("key", "value"))
    query, key, value = (
        part.reshape(len(part), heads, -1).transpose(0, 1) for part in (query, key, value)
    )
    attended = functional.scaled_dot_product_attention(query, key, value)
    found = linear(parameters, "out", attended.transpose(0, 1).flatten(1))
    hidden = linear(parameters, "inner", norm(parameters, "forward_norm", found))
    passed, gate = hidden.chunk(2, dim=-1)
    return found + linear(parameters, "outer", passed * functional.gelu(gate))


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse heads that do not divide the token width."""
    encoder = build_encoder(PromptConfig(context_tokens=config.context_tokens), task)
    width = encoder.backbone.token_dim
    if width % config.heads:
        raise MethodError(
            f"method.heads: {config.heads} do not divide the model's token width of {width}; "
            "valid: a divisor of it"
        )
    captions = Captions(encoder.backbone, "{}")
    captions.require_room(task.classes)
    return FedTPG(encoder, captions, config, task.classes)

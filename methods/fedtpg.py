"""FedTPG: clients share a net that turns class names into a prompt.

Qiu et al. 2024, "Federated Text-driven Prompt Generation for Vision-Language Models" (ICLR), by its
published code (github.com/boschresearch/FedTPG at f141c29), as the paper's text was not at hand. T
(n, d) being CLIP's text features of n bare class names, and Q (m, w) learned queries,

    X = Attention(LN(Q), LN(T), LN(T)),    context = X + W_2 GEGLU(W_1 LN(X)),

with multi-head attention, without a residual around it, and GEGLU(a, b) = a GELU(b). The context
(m, w) stands before each of the n names as CoOp's does, so the prompt follows from which names are
asked about, and names that nobody trained on get one too. Nothing but the net is learned; changes
are averaged with equal weights.

A client's loss is the cross-entropy over its own classes, whose names alone its attention sees. So
each loss depends on what the client's other examples are, and a record cannot be protected; under
`names: all` every class of the task is asked about, and `dp_sgd` is admitted.

The code's blocks of self-attention after the first (`depth`, none unless asked for) are left out.
Its widths d and w are both CLIP's 512; here keys and values are projected from d to w.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.averaging import AveragedMethod
from methods.interface.defaults import ALL_UNITS, CLIENT_ONLY
from methods.interface.method import (
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    ParameterGroup,
    Task,
    TensorSpec,
    Trainer,
    Unit,
    Weighting,
)
from methods.networks.layers import Parameters, linear_start
from methods.prompts.prompt import (
    CONTEXT_STANDARD_DEVIATION,
    Captions,
    PromptConfig,
    PromptEncoder,
    as_tensor,
    as_tensors,
    build_encoder,
)

QUERIES = "queries"
NORMS = ("query_norm", "name_norm", "forward_norm")
PROJECTIONS = ("query", "key", "value")
EXPANSION = 4
"""How many times wider than the context the hidden layer is, after its gate."""

VARIANTS = ({"names": "all"},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        context_tokens: Number m of context vectors.
        heads: Of the attention; divides the token width.
        names: Which class names a client trains with: those of its own examples, or all.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 4
    heads: Annotated[int, Ge(1), Le(64)] = 4
    names: Literal["own", "all"] = "own"


@dataclass(frozen=True)
class GeneratorObjective:
    """Cross-entropy over some classes under the context that their names give.

    Attributes:
        method: Whose net it is.
        classes: The classes.
        positions: For each class of the task its place among `classes`, (C,) int64.
        encoder_parameters: The whole net, which sees no image.
    """

    method: FedTPG
    classes: tuple[str, ...]
    positions: Tensor
    encoder_parameters: frozenset[str]

    def encode(self, parameters: Parameters) -> Parameters:
        """Return text features (n, d) of the classes."""
        return {"text": self.method.text_features(parameters, self.classes)}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return cross-entropy of each example, shape (B,)."""
        logits = self.method.logit_scale * batch["features"] @ encoded["text"].T
        labels = self.positions[batch["labels"]]
        return functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class FedTPG(AveragedMethod):
    """A shared generator of prompts.

    Attributes:
        encoder: Prompt encoder over the frozen backbone.
        captions: Text features of bare class names.
        config: The method's options.
        classes: Class names in label order.
        units: The client, and the record where all names are asked about.
    """

    encoder: PromptEncoder
    captions: Captions
    config: Config
    classes: tuple[str, ...]
    units: frozenset[Unit] = field(default=ALL_UNITS, kw_only=True)

    @property
    def logit_scale(self) -> float:
        """Inverse temperature of the model."""
        return self.encoder.backbone.logit_scale

    @property
    def learns_one_class(self) -> bool:
        """Not over a client's own classes: the loss of a single class is always zero."""
        return self.config.names == "all"

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return queries, attention and feed-forward layer; clients count alike."""
        backbone = self.encoder.backbone
        shapes = shapes_of(self.config, backbone.token_dim, backbone.embed_dim)
        return {n: TensorSpec(s, weighting=Weighting.UNIFORM) for n, s in shapes.items()}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return a fresh net: queries N(0, 0.02^2), layers as torch starts them."""
        return {n: started(rng, n, spec.shape) for n, spec in self.shared_spec().items()}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Train the net, and upload its change."""
        names = tuple(self.shared_spec())
        trained = trainer.fit(
            self.objective(data),
            view.broadcast,
            data.arrays,
            groups=(ParameterGroup(names),),
            rng=rng,
        )
        update = {name: trained[name] - view.broadcast[name] for name in names}
        return LocalResult(update, None, view.personal)

    def objective(self, data: Examples) -> GeneratorObjective:
        """Return the loss over the classes of the data, or over all of the task."""
        asked = np.arange(len(self.classes))
        if self.config.names == "own":
            asked = np.unique(data.arrays["labels"])
        positions = np.zeros(len(self.classes), np.int64)
        positions[asked] = np.arange(len(asked))
        classes = tuple(self.classes[label] for label in asked)
        found = as_tensor(positions, self.encoder.backbone)
        return GeneratorObjective(self, classes, found, frozenset(self.shared_spec()))

    def text_features(self, parameters: Parameters, classes: Sequence[str]) -> Tensor:
        """Return text features (n, d) of classes under the context that their names give."""
        context = generated(parameters, self.captions.features(classes), self.config.heads)
        return self.encoder.text_features(context, classes)

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return CLIP's logits (n, C) under the context of the classes that are asked about."""
        backbone = self.encoder.backbone
        with torch.no_grad():
            net = as_tensors(view.broadcast, backbone)
            text = self.text_features(net, classes)
            logits = self.logit_scale * as_tensor(batch["features"], backbone) @ text.T
        return logits.cpu().numpy().astype(np.float32)


def shapes_of(config: Config, width: int, features: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of the net's arrays.

    Args:
        config: The method's options.
        width: w, of a token.
        features: d, of a text feature.
    """
    shapes: dict[str, tuple[int, ...]] = {QUERIES: (config.context_tokens, width)}
    for norm, size in zip(NORMS, (width, features, width), strict=True):
        shapes |= {f"{norm}.weight": (size,), f"{norm}.bias": (size,)}
    for name, size in zip(PROJECTIONS, (width, features, features), strict=True):
        shapes |= {f"{name}.weight": (width, size), f"{name}.bias": (width,)}
    hidden = EXPANSION * width
    for name, outputs, inputs in (
        ("out", width, width),
        ("inner", 2 * hidden, width),
        ("outer", width, hidden),
    ):
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    return shapes


def started(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an array of the net as the published code starts it."""
    layer, _, kind = name.partition(".")
    if name == QUERIES:
        return rng.normal(0.0, CONTEXT_STANDARD_DEVIATION, shape).astype(np.float32)
    if layer in NORMS:
        return np.full(shape, kind == "weight", np.float32)
    if kind == "bias" and layer in (*PROJECTIONS, "out"):
        return np.zeros(shape, np.float32)
    if layer in PROJECTIONS:
        # Xavier's range of one matrix that holds all three, as torch draws it.
        bound = math.sqrt(6.0 / (shape[1] + len(PROJECTIONS) * shape[0]))
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    # A bias has its layer's range; the inner layer is 2 x 4 times as wide as what it is fed.
    inputs = shape[-1]
    if kind == "bias":
        inputs = shape[0] // (2 * EXPANSION) if layer == "inner" else EXPANSION * shape[0]
    return linear_start(rng, shape, inputs)


def generated(parameters: Parameters, names: Tensor, heads: int) -> Tensor:
    """Return the context (m, w) of class names.

    Args:
        parameters: The net.
        names: Their text features, (n, d).
        heads: Of the attention.
    """
    seen = normed(parameters, "name_norm", names)
    query = _linear(parameters, "query", normed(parameters, "query_norm", parameters[QUERIES]))
    key, value = (_linear(parameters, name, seen) for name in ("key", "value"))
    query, key, value = (
        part.reshape(len(part), heads, -1).transpose(0, 1) for part in (query, key, value)
    )
    attended = functional.scaled_dot_product_attention(query, key, value)
    found = _linear(parameters, "out", attended.transpose(0, 1).flatten(1))
    hidden = _linear(parameters, "inner", normed(parameters, "forward_norm", found))
    passed, gate = hidden.chunk(2, dim=-1)
    return found + _linear(parameters, "outer", passed * functional.gelu(gate))


def normed(parameters: Parameters, name: str, rows: Tensor) -> Tensor:
    """Return rows after one of the net's layer norms."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    return functional.layer_norm(rows, weight.shape, weight, bias)


def _linear(parameters: Parameters, name: str, rows: Tensor) -> Tensor:
    return functional.linear(rows, parameters[f"{name}.weight"], parameters[f"{name}.bias"])


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If the heads do not divide the token width.
        BackboneError: If the task has no backbone or the prompt does not fit into it.
    """
    encoder = build_encoder(PromptConfig(context_tokens=config.context_tokens), task)
    width = encoder.backbone.token_dim
    if width % config.heads:
        raise MethodError(
            f"method.heads: {config.heads} do not divide the model's token width of {width}; "
            "valid: a divisor of it"
        )
    captions = Captions(encoder.backbone, "{}")
    captions.require_room(task.classes)
    units = ALL_UNITS if config.names == "all" else CLIENT_ONLY
    couples = config.names == "own"
    return FedTPG(encoder, captions, config, task.classes, units=units, couples_examples=couples)

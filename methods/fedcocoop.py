"""FedCoCoOp: a prompt that depends on the image, averaged over clients each round.

Zhou et al. 2022, "Conditional Prompt Learning for Vision-Language Models" (CVPR), section 3.2. A
small network h, the Meta-Net, makes one vector pi = h(x) of each image's feature x, and adds it to
every context vector,

    v_m(x) = v_m + pi,        logit_c(x) = cos(x, g(v_1(x), ..., v_M(x), c)) / temperature

so each image has text features of its own for every class. h is Linear-ReLU-Linear with a hidden
layer of 1/16 of the feature's width. Contexts start from the words "a photo of a", M = 4.

FedAvg averages context and Meta-Net, as in the baseline of FedPGP (Cui et al. 2024, Tables 1 and 2)
and others; their papers say no more. The published code of CoCoOp loops over the batch; here the
batch is one pass. A step encodes B x C texts, and PromptFL's encodes C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.networks.layers import Parameters, linear_start
from methods.networks.method import BatchObjective
from methods.prompts.prompt import CONTEXT, PromptConfig, PromptMethod, as_tensor, as_tensors

TEXTS_AT_ONCE = 1024
"""Texts encoded in one pass of a prediction; changes memory only."""


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        context_tokens: Number M of learned context vectors.
        context_init: Text whose token embeddings start the context, or None for N(0, 0.02^2).
        meta_reduction: The image feature's width over the Meta-Net's hidden width.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 4
    context_init: str | None = "a photo of a"
    meta_reduction: Annotated[int, Ge(1), Le(1024)] = 16


@dataclass(frozen=True)
class MetaNet:
    """The network h from image features to one vector of token width; callers pass parameters."""

    inputs: int
    hidden: int
    outputs: int

    def spec(self) -> dict[str, m.TensorSpec]:
        """Return weights and biases of the two layers."""
        return {
            "meta_hidden_weight": m.TensorSpec((self.hidden, self.inputs)),
            "meta_hidden_bias": m.TensorSpec((self.hidden,)),
            "meta_output_weight": m.TensorSpec((self.outputs, self.hidden)),
            "meta_output_bias": m.TensorSpec((self.outputs,)),
        }

    def init(self, rng: m.Rng) -> dict[str, NDArray[np.float32]]:
        """Return weights and biases uniform in +-1/sqrt(a layer's inputs), as published."""
        inputs = {"hidden": self.inputs, "output": self.hidden}
        return {
            name: linear_start(rng, spec.shape, inputs[name.split("_")[1]])
            for name, spec in self.spec().items()
        }

    def shifts(self, parameters: Parameters, images: Tensor) -> Tensor:
        """Return the vector pi of each image, (B, token width), from features (B, d)."""
        hidden = functional.linear(
            images, parameters["meta_hidden_weight"], parameters["meta_hidden_bias"]
        )
        return functional.linear(
            hidden.relu(), parameters["meta_output_weight"], parameters["meta_output_bias"]
        )


class FedCoCoOp(PromptMethod):
    """Conditional prompts under FedAvg."""

    config: Config

    @property
    def meta_net(self) -> MetaNet:
        """The network h."""
        backbone = self.encoder.backbone
        width = backbone.embed_dim
        return MetaNet(width, width // self.config.meta_reduction, backbone.token_dim)

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return context and Meta-Net, averaged over clients."""
        return {CONTEXT: self.encoder.spec, **self.meta_net.spec()}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return a fresh context and Meta-Net."""
        return {**super().init_server(rng), **self.meta_net.init(rng)}

    def training_objective(self) -> m.Objective:
        """Return cross-entropy over the task's classes."""
        # Looked up here and not in the loss, where `vmap` would wrap the kept tensors.
        self.encoder.require_room(self.classes)

        def losses(parameters: Parameters, batch: Parameters) -> Tensor:
            logits = self.logits(parameters, batch["features"], self.classes)
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        return BatchObjective(losses)

    def logits(self, parameters: Parameters, images: Tensor, classes: tuple[str, ...]) -> Tensor:
        """Return the prediction, shape (B, C), from image features (B, d)."""
        shifts = self.meta_net.shifts(parameters, images)
        contexts = parameters[CONTEXT] + shifts.unsqueeze(1)
        texts = self.encoder.text_features_each(contexts, classes)
        cosines = (texts @ images.unsqueeze(-1)).squeeze(-1)
        return self.encoder.backbone.logit_scale * cosines

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, C) with the broadcast context and Meta-Net."""
        backbone = self.encoder.backbone
        images = as_tensor(batch["features"], backbone)
        parameters, names = as_tensors(view.broadcast, backbone), tuple(classes)
        with torch.no_grad():
            parts = torch.split(images, max(1, TEXTS_AT_ONCE // len(names)))
            logits = torch.cat([self.logits(parameters, part, names) for part in parts])
        return logits.cpu().numpy().astype(np.float32)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a Meta-Net without a hidden unit."""
    method = FedCoCoOp.built(config, task)
    width = method.encoder.backbone.embed_dim
    if config.meta_reduction > width:
        raise MethodError(
            f"method.meta_reduction: {config.meta_reduction} is more than the feature dimension; "
            f"valid: 1 to {width}"
        )
    return method

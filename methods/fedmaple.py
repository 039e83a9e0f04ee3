"""FedMaPLe: coupled prompts in both towers, averaged over clients each round.

Khattak et al. 2023, "MaPLe: Multi-modal Prompt Learning" (CVPR), section 3.2. Each of the first J
layers of the text tower has l prompts P_k of its own. A linear coupling function maps them to the
prompts of the same layer of the image tower,

    Q_k = F_k(P_k),  k = 1..J,     logit_c(x) = cos(f(x; Q_1..Q_J), g(c; P_1..P_J)) / temperature

with J = 9 and l = 2. `methods.prompts.deep` says where prompts stand.

FedAvg averages prompts and coupling functions, as in the baseline of FedPGP (Cui et al. 2024); the
papers say no more. The paper starts the first layer's prompts from "a photo of a", which
has more tokens than prompts: as in the published code the first l are learned and the others stay
as words before the class name. That code starts F_2..F_J from one draw; here each has its own.

The image tower runs in every step, since its prompts are trained. The input of its first layer does
not depend on them and is made once (`prepare`): 33 KB an image for the tiny model, 605 KB for
ViT-B/16. Towers other than vision transformers are refused: a ResNet has no tokens to put prompts
beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface import method as m
from methods.interface.averaging import AveragedMethod
from methods.networks.layers import Parameters, linear_start
from methods.prompts.deep import (
    IMAGES_AT_ONCE,
    PATCHES,
    DeepImageEncoder,
    DeepTextEncoder,
    patches_of,
)
from methods.prompts.prompt import (
    EncodedObjective,
    PromptConfig,
    as_tensor,
    as_tensors,
    require_backbone,
)

CONTEXTS = "contexts"
WEIGHT = "coupling_weight"
BIAS = "coupling_bias"
PAPER_DEPTH = 9


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        context_tokens: Number l of prompts in each of the first J layers.
        context_init: Words before the class name; the first l of their tokens start the first
            layer's prompts, the others stay. None for N(0, 0.02^2) and no words.
        depth: Number J of layers with prompts; None for the paper's 9, or all layers of the
            shallower tower where it has fewer.
    """

    context_tokens: Annotated[int, Ge(1), Le(64)] = 2
    context_init: str | None = "a photo of a"
    depth: Annotated[int, Ge(1), Le(64)] | None = None


@dataclass(frozen=True)
class FedMaPLe(AveragedMethod):
    """Coupled deep prompts in the first J layers of both towers, under FedAvg."""

    text: DeepTextEncoder
    image: DeepImageEncoder
    depth: int
    classes: tuple[str, ...]
    needs = frozenset({"pixels"})

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return class token and patches as they enter the image tower's first layer, float32."""
        return patches_of(self.text.backbone, self.image, arrays["pixels"])

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return prompts and coupling functions of all J layers, averaged over clients."""
        inputs, outputs = self.text.backbone.token_dim, self.image.width
        return {
            CONTEXTS: m.TensorSpec((self.depth, self.text.context_tokens, inputs)),
            WEIGHT: m.TensorSpec((self.depth, outputs, inputs)),
            BIAS: m.TensorSpec((self.depth, outputs)),
        }

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return fresh prompts; coupling functions uniform in +-1/sqrt(token width)."""
        spec = self.shared_spec()
        inputs = self.text.backbone.token_dim
        return {
            CONTEXTS: self.text.init_contexts(rng, self.depth),
            WEIGHT: linear_start(rng, spec[WEIGHT].shape, inputs),
            BIAS: linear_start(rng, spec[BIAS].shape, inputs),
        }

    def training_objective(self) -> m.Objective:
        """Return cross-entropy over the task's classes."""

        def losses(parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
            logits = self.logits(encoded, batch[PATCHES])
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        encode = partial(self.encode, self.classes)
        return EncodedObjective(frozenset({CONTEXTS, WEIGHT, BIAS}), encode, losses)

    def encode(self, classes: tuple[str, ...], parameters: Parameters) -> Parameters:
        """Return text features (C, d), and the image tower's prompts Q (J, l, width)."""
        contexts = parameters[CONTEXTS]
        # One linear map for each layer: a product of stacks.
        projected = contexts @ parameters[WEIGHT].transpose(1, 2)
        prompts = projected + parameters[BIAS].unsqueeze(1)
        return {"text": self.text.text_features(contexts, classes), "prompts": prompts}

    def logits(self, encoded: Parameters, patches: Tensor) -> Tensor:
        """Return cosines over the temperature (B, C) of embedded patches (B, 1 + P, width)."""
        images = self.image.image_features(patches, encoded["prompts"])
        return self.text.backbone.logit_scale * images @ encoded["text"].T

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, C) with the broadcast prompts and coupling functions."""
        backbone = self.text.backbone
        patches = as_tensor(batch[PATCHES], backbone)
        with torch.no_grad():
            encoded = self.encode(tuple(classes), as_tensors(view.broadcast, backbone))
            parts = torch.split(patches, IMAGES_AT_ONCE)
            logits = torch.cat([self.logits(encoded, part) for part in parts])
        return logits.cpu().numpy().astype(np.float32)


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a tower with fewer layers than prompts need."""
    backbone = require_backbone(task)
    image = DeepImageEncoder.of(backbone)
    text = DeepTextEncoder(backbone, config.context_tokens, config.context_init)
    text.require_room(task.classes)
    most = min(text.depth, image.depth)
    depth = min(PAPER_DEPTH, most) if config.depth is None else config.depth
    if depth > most:
        raise MethodError(
            f"method.depth: {depth} is more than the layers that both towers have; valid: 1 to "
            f"{most}, or null"
        )
    return FedMaPLe(text, image, depth, task.classes)

"""FedCLIP: an attention adapter on image features, averaged over clients; CLIP stays as it is.

Lu et al. 2023, "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning"
(IEEE Data Engineering Bulletin 46). The adapter weighs the d coordinates of an image feature I,

    att(I) = softmax(W_2 tanh(W_1 I + b_1) + b_2),    I* = att(I) * I,

and class k's logit is the cosine of I* and of the frozen text feature T_k over the temperature.
It is trained by CLIP's own loss: with the B captions of a batch's own labels, row i is half the
cross-entropy of image i among the captions and half that of caption i among the images, so that
the mean over rows is the batch's loss. Two examples of one class count as each other's negatives.

`loss: cross_entropy` trains with the cross-entropy over all classes instead. Only then is `dp_sgd`
admitted, or clipping of each example's gradient: the symmetric loss couples the records of a batch,
so one record moves the gradients of all others, and a single example has nothing to contrast with.

Clients weigh by their examples as in the paper; `weighting: uniform` is the published code's. The
equations and the caption are as in that code, except for one reading of ours: the adapter sees
features of length one, as the data layer provides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.averaging import AveragedMethod
from methods.networks.layers import Parameters, linear, linear_layers, linear_start, specs
from methods.networks.method import BatchObjective
from methods.prompts.prompt import Captions, as_tensor, as_tensors, require_backbone

LAYERS = ("inner", "outer")

VARIANTS = ({"loss": "cross_entropy"},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        template: Caption with `{}` where the class name goes.
        loss: CLIP's loss within the batch, or the cross-entropy over all classes.
        weighting: Weights of clients in the mean: their examples, or all alike.
    """

    template: str = "a picture of a {}"
    loss: Literal["symmetric", "cross_entropy"] = "symmetric"
    weighting: Literal["examples", "uniform"] = "examples"


@dataclass(frozen=True)
class FedClip(AveragedMethod):
    """A shared attention adapter."""

    captions: Captions
    config: Config
    classes: tuple[str, ...]

    @property
    def couples_examples(self) -> bool:
        """The symmetric loss joins the examples of a batch."""
        return self.config.loss == "symmetric"

    @property
    def learns_one_class(self) -> bool:
        """False with the symmetric loss: all captions of such a batch are the same."""
        return not self.couples_examples

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return weights and biases of both layers."""
        size, weighting = self.captions.backbone.embed_dim, m.Weighting(self.config.weighting)
        inner, outer = (linear_layers(layer, size, size) for layer in LAYERS)
        return specs({**inner, **outer}, weighting)

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return uniform in +-1/sqrt(d), as torch's linear layers start."""
        width = self.captions.backbone.embed_dim
        return {n: linear_start(rng, spec.shape, width) for n, spec in self.shared_spec().items()}

    def training_objective(self) -> m.Objective:
        """Return CLIP's loss in the batch, or the cross-entropy over the task's classes."""
        text, scale = self.captions.features(self.classes), self.captions.backbone.logit_scale
        return adapted_objective(text, scale, self.config.loss)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return CLIP's logits (n, C) of adapted image features."""
        backbone = self.captions.backbone
        with torch.no_grad():
            adapter = as_tensors(view.broadcast, backbone)
            image = adapt(adapter, as_tensor(batch["features"], backbone))
            logits = backbone.logit_scale * image @ self.captions.features(classes).T
        return logits.cpu().numpy().astype(np.float32)


def adapted_objective(text: Tensor, scale: float, loss: str) -> BatchObjective:
    """Return a loss of adapted image features under frozen text features (C, d)."""

    def losses(parameters: Parameters, batch: Parameters) -> Tensor:
        image, labels = adapt(parameters, batch["features"]), batch["labels"]
        if loss == "cross_entropy":
            return functional.cross_entropy(scale * image @ text.T, labels, reduction="none")
        return symmetric_losses(scale * image @ text[labels].T)

    return BatchObjective(losses)


def adapt(adapter: Parameters, image: Tensor) -> Tensor:
    """Return image features (B, d), adapted: att(I) * I, scaled to length one."""
    scores = linear(adapter, "outer", linear(adapter, "inner", image).tanh())
    return functional.normalize(scores.softmax(dim=-1) * image, dim=-1)


def symmetric_losses(logits: Tensor) -> Tensor:
    """Return CLIP's loss of a batch, by rows, of images by captions (B, B), pairs on the diagonal.

    It is half the cross-entropy of row i and half that of column i, (B,); their mean is the loss of
    Radford et al. 2021, figure 3.
    """
    pairs = logits.diagonal()
    return 0.5 * (logits.logsumexp(dim=1) + logits.logsumexp(dim=0)) - pairs


def build(config: Config, task: m.Task) -> m.Method:
    """Build the method; refuse a template without `{}`."""
    captions = Captions(require_backbone(task), config.template)
    captions.require_room(task.classes)
    return FedClip(captions, config, task.classes)

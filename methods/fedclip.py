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
so one record moves the gradients of all others, and example by example there is nothing to
contrast with.

Clients are weighted by their examples as in the paper; `weighting: uniform` is the published
code's. The equations and the caption are as in that code, but for one reading of ours: the adapter
sees features of length one, as the data layer provides them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface.averaging import AveragedMethod
from methods.interface.defaults import ALL_UNITS, CLIENT_ONLY
from methods.interface.method import (
    Arrays,
    ClientView,
    Method,
    Objective,
    Task,
    TensorSpec,
    Unit,
    Weighting,
)
from methods.networks.layers import Parameters, linear_start
from methods.prompts.prompt import Captions, as_tensor, as_tensors, require_backbone

LAYERS = ("inner", "outer")


VARIANTS = ({"loss": "cross_entropy"},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        template: Caption with `{}` where the class name goes.
        loss: CLIP's loss within the batch, or the cross-entropy over all classes.
        weighting: How clients are weighted in the mean: by their examples, or all alike.
    """

    template: str = "a picture of a {}"
    loss: Literal["symmetric", "cross_entropy"] = "symmetric"
    weighting: Literal["examples", "uniform"] = "examples"


@dataclass(frozen=True)
class AdapterObjective:
    """CLIP's loss of adapted image features.

    Attributes:
        text: Frozen text features of all classes, (C, d).
        logit_scale: Inverse temperature.
        loss: Which loss.
        encoder_parameters: None: no text is learned.
    """

    text: Tensor
    logit_scale: float
    loss: Literal["symmetric", "cross_entropy"]
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Parameters) -> Parameters:
        """Nothing: the text is constant."""
        return {}

    def losses(self, parameters: Parameters, encoded: Parameters, batch: Parameters) -> Tensor:
        """Return loss of each example, shape (B,)."""
        image, labels = adapt(parameters, batch["features"]), batch["labels"]
        if self.loss == "cross_entropy":
            logits = self.logit_scale * image @ self.text.T
            return functional.cross_entropy(logits, labels, reduction="none")
        return symmetric_losses(self.logit_scale * image @ self.text[labels].T)


@dataclass(frozen=True)
class FedClip(AveragedMethod):
    """A shared attention adapter.

    Attributes:
        captions: Text features.
        config: The method's options.
        classes: Class names in label order.
        units: Client and record, or, with the symmetric loss, the client only.
    """

    captions: Captions
    config: Config
    classes: tuple[str, ...]
    units: frozenset[Unit] = field(default=ALL_UNITS, kw_only=True)

    @property
    def learns_one_class(self) -> bool:
        """Not by the symmetric loss: all captions of a batch are the same then."""
        return self.config.loss == "cross_entropy"

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """Return weights and biases of both layers."""
        size, weighting = self.captions.backbone.embed_dim, Weighting(self.config.weighting)
        specs: dict[str, TensorSpec] = {}
        for layer in LAYERS:
            specs[f"{layer}.weight"] = TensorSpec((size, size), weighting=weighting)
            specs[f"{layer}.bias"] = TensorSpec((size,), weighting=weighting)
        return specs

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Return uniform in +-1/sqrt(d), as torch's linear layers start."""
        width = self.captions.backbone.embed_dim
        return {n: linear_start(rng, spec.shape, width) for n, spec in self.shared_spec().items()}

    def training_objective(self) -> Objective:
        """Return CLIP's loss in the batch, or the cross-entropy over the task's classes."""
        text = self.captions.features(self.classes)
        scale = self.captions.backbone.logit_scale
        return AdapterObjective(text, scale, self.config.loss)

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return CLIP's logits (n, C) of adapted image features."""
        backbone = self.captions.backbone
        with torch.no_grad():
            adapter = as_tensors(view.broadcast, backbone)
            image = adapt(adapter, as_tensor(batch["features"], backbone))
            logits = backbone.logit_scale * image @ self.captions.features(classes).T
        return logits.cpu().numpy().astype(np.float32)


def adapt(adapter: Parameters, image: Tensor) -> Tensor:
    """Return adapted image features of length one.

    Args:
        adapter: `inner.weight`, `inner.bias`, `outer.weight`, `outer.bias`.
        image: Image features (B, d).

    Returns:
        att(I) * I, scaled to length one, (B, d).
    """
    hidden = functional.linear(image, adapter["inner.weight"], adapter["inner.bias"]).tanh()
    scores = functional.linear(hidden, adapter["outer.weight"], adapter["outer.bias"])
    return functional.normalize(scores.softmax(dim=-1) * image, dim=-1)


def symmetric_losses(logits: Tensor) -> Tensor:
    """Return CLIP's loss of a batch, by rows.

    Args:
        logits: Images by captions (B, B), whose pairs are on the diagonal.

    Returns:
        Half the cross-entropy of row i and half that of column i, (B,); their mean is the loss of
        Radford et al. 2021, figure 3.
    """
    pairs = logits.diagonal()
    return 0.5 * (logits.logsumexp(dim=1) + logits.logsumexp(dim=0)) - pairs


def build(config: Config, task: Task) -> Method:
    """Build the method.

    Raises:
        MethodError: If the template has no `{}`.
        BackboneError: If the task has no backbone.
    """
    captions = Captions(require_backbone(task), config.template)
    captions.require_room(task.classes)
    couples = config.loss == "symmetric"
    units = CLIENT_ONLY if couples else ALL_UNITS
    return FedClip(captions, config, task.classes, units=units, couples_examples=couples)

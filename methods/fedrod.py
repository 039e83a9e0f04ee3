"""FedRoD: a shared generic head for balanced classes, and a personal one on top of it.

Chen & Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image
Classification" (ICLR): extractor and generic head g are shared and trained for all classes alike,
by the balanced softmax of Ren et al. 2020 over the client's class counts n,

    loss(g, y) = -log( n_y exp(g_y) / sum_c n_c exp(g_c) ),

The personal head h minimises the cross-entropy of g + h, which also predicts. This loss moves h but
not the features or g. If the client has no example of a class, n_c = 0 and the class drops out of
the sum: the client says nothing about it. One fit trains both heads; with plain gradient descent
this equals alternating within a batch, as published code (PFLlib) does, which agrees with the
formulas. Heads are linear; the paper's hypernetwork for h is left out. Its personal module, for
PM-MoE, is the personal head.

Counts of labels enter every gradient but come from no noised step, and through them one example
changes the loss of the others: with the balanced softmax `dp_sgd` is refused, and examples are
coupled. `generic_loss: cross_entropy` needs no counts, so both restrictions vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.networks.extractors import NetworkConfig
from methods.networks.layers import Layers, Parameters, linear, linear_layers
from methods.networks.method import FED, GATED, BatchObjective, ModularMethod, PerExample

GENERIC = "generic"

VARIANTS = ({"network": "features", "generic_loss": "cross_entropy"},)


@dataclass(frozen=True)
class Config(NetworkConfig):
    """Options.

    Attributes:
        generic_loss: The loss of the generic head.
    """

    generic_loss: Literal["balanced_softmax", "cross_entropy"] = "balanced_softmax"


class FedRoD(ModularMethod):
    """Robust decoupling."""

    config: Config
    combined: ClassVar[tuple[str, ...]] = (GENERIC,)

    @property
    def couples_examples(self) -> bool:
        """By the balanced softmax, one example's label changes the loss of all others."""
        return self.config.generic_loss == "balanced_softmax"

    @property
    def learns_one_class(self) -> bool:
        """False with the balanced softmax: over a single class it is always one."""
        return not self.couples_examples

    @property
    def shared_layers(self) -> Layers:
        """The extractor and the generic head."""
        generic = linear_layers(GENERIC, self.extractor.width, len(self.classes))
        return {**self.extractor.layers, **generic}

    @property
    def personal_layers(self) -> Layers:
        """The personal head."""
        return self.head_layers

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return features (B, D) that no gradient passes, and generic logits (B, C)."""
        features = self.features(parameters, batch)
        still = features.detach()
        return {FED: still, GATED: still, GENERIC: linear(parameters, GENERIC, features)}

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return the sum of both heads, with the generic one held."""
        return parts[GENERIC].detach() + output

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train extractor and generic head by one loss, the personal head by the other."""
        counts = None
        if self.couples_examples:
            counts = torch.bincount(
                torch.from_numpy(np.array(data.arrays["labels"])), minlength=len(self.classes)
            )
        objective = BatchObjective(self.two_losses(counts))
        return self.result(view, self.train(view, data, trainer, rng, objective=objective))

    def two_losses(self, counts: Tensor | None) -> PerExample:
        """Return the loss of each example: generic plus personal, which share no gradient.

        `counts` are the examples of each class (C,); None for plain cross-entropy.
        """

        def losses(parameters: Parameters, batch: Parameters) -> Tensor:
            parts, labels = self.parts(parameters, batch), batch["labels"]
            both = self.combine(parameters, parts, self.module_output(parameters, parts[FED]))
            generic = parts[GENERIC] if counts is None else balanced(parts[GENERIC], counts)
            return functional.cross_entropy(
                generic, labels, reduction="none"
            ) + functional.cross_entropy(both, labels, reduction="none")

        return losses


def balanced(logits: Tensor, counts: Tensor) -> Tensor:
    """Return logits (B, C) whose softmax is the balanced softmax: log n_c is added to each.

    A class without examples gets minus infinity: probability and gradient zero. At least one of the
    counts (C,) is above zero.
    """
    return logits + counts.to(logits).log()


build = FedRoD.built

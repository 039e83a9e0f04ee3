"""pFedPrompt: one prompt for all in language, attention over the client's own images in vision.

Guo et al. 2023, "pFedPrompt: Learning Personalized Prompt for Vision-Language Models in Federated
Learning" (WWW). The users' consensus is a prompt averaged over clients, trained as PromptFL's. The
users' character comes, without parameters, from the image features F_1 ... F_n that a client keeps
of its own training examples. An image feature I queries them by attention,

    a_j = softmax_j(sharpness I F_j),    R = sum_j a_j F_j / |sum_j a_j F_j|,
    logit(c) = ((1 - blend) I T_c + blend R T_c)    over the temperature.

The paper's text was not available. Its abstract and later papers (pFedMoAP, section 2; FedOTP,
section 2) say that the consensus is learned in language, that the attention is non-parametric, over
stored few-shot features, and that it gives personal visual features. This form of the attention is
our reading; its two numbers did well on training images of the embedded data. `recall: labels` is
the other reading, a vote of the remembered labels as in Zhang et al. 2022, "Tip-Adapter", but with
shares of sum one: R T_c becomes sum_j a_j [y_j = c].

The memory is raw data. `personalise` writes it after the last release, and it never leaves the
client; before that the prediction is PromptFL's. No release depends on it, so every mechanism is
admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional

from methods.interface import method as m
from methods.interface.method import CountsWith
from methods.prompts.prompt import PromptConfig, PromptMethod, as_tensor

FEATURES, LABELS = "memory.features", "memory.labels"

READING = "the paper was not at hand; the form of its attention and two numbers are ours"


@dataclass(frozen=True)
class Config(PromptConfig):
    """Options.

    Attributes:
        blend: Share of the memory's answer; with 0 this is PromptFL.
        sharpness: Factor of the cosines in the attention; 0 attends to all examples alike.
        recall: What the memory holds of an example: its image feature, or its label.
    """

    blend: Annotated[float, Ge(0.0), Le(1.0)] = 0.5
    sharpness: Annotated[float, Ge(0.0), Le(1e6), CountsWith("blend")] = 5.5
    recall: Annotated[Literal["features", "labels"], CountsWith("blend")] = "features"


class PFedPrompt(PromptMethod):
    """A shared prompt and a private memory."""

    config: Config
    has_personal_state = True

    def client_update(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.LocalResult:
        """Train as PromptFL does; keep nothing personal before the last release."""
        return replace(super().client_update(view, data, trainer, rng), personal={})

    def personalise(
        self, view: m.ClientView, data: m.Examples, trainer: m.Trainer, rng: m.Rng
    ) -> m.Arrays:
        """Remember the client's own examples."""
        features, labels = data.arrays["features"], data.arrays["labels"]
        return {FEATURES: np.array(features), LABELS: np.array(labels)}

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return logits (n, C) under the broadcast prompt, blended with any memory."""
        if self.config.blend == 0.0 or not len(view.personal.get(LABELS, ())):
            return self.broadcast_logits(view, batch, classes)
        backbone, blend = self.encoder.backbone, self.config.blend
        with torch.no_grad():
            text = self.broadcast_text(view, classes)
            image = as_tensor(batch["features"], backbone)
            remembered = as_tensor(view.personal[FEATURES], backbone)
            attention = attend(image, remembered, self.config.sharpness)
            if self.config.recall == "features":
                recalled = functional.normalize(attention @ remembered, dim=-1) @ text.T
            else:
                # Each remembered example votes for the class that has its label's name.
                own = np.array(self.classes)[view.personal[LABELS]]
                votes = (own[:, None] == np.array(classes)[None]).astype(np.float32)
                recalled = attention @ as_tensor(votes, backbone)
            logits = backbone.logit_scale * torch.lerp(image @ text.T, recalled, blend)
        return logits.cpu().numpy().astype(np.float32)


def attend(image: Tensor, remembered: Tensor, sharpness: float) -> Tensor:
    """Return attention of images (B, d) over remembered features (n, d), rows of sum one (B, n)."""
    return (sharpness * image @ remembered.T).softmax(dim=-1)


build = PFedPrompt.built

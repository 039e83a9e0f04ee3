"""The recipe that decides the weights of the tiny CLIP, and the optimisers of both its towers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

Progress = Callable[[str], None]

DOMAIN_WORDS: Final[Mapping[str, str]] = {
    "real": "real photo",
    "clipart": "clipart",
    "painting": "painting",
    "sketch": "sketch",
    "infograph": "infograph",
    "quickdraw": "quickdraw",
}


@dataclass(frozen=True)
class Training:
    """What decides trained weights besides the images, except the version of torch.

    Attributes:
        seed: Seed of weights, images and batches.
        steps: Steps of the image tower.
        batch_size: Images per step.
        learning_rate: Peak of AdamW's learning rate: linear warm-up, then a cosine to zero.
        matrix_rate: Peak of Muon's, which trains the blocks' matrices, scaled to AdamW's size.
        warmup_steps: Length of the warm-up.
        gradient_norm: Largest norm of one step's gradient.
        weight_decay: Weight decay of matrices; vectors and token rows have none.
        mask_weight: Weight of the loss that tells from each patch which pixels the shape covers.
        threads: Threads of torch; they change the order of sums, and so the last bits.
    """

    seed: int = 20
    steps: int = 1600
    batch_size: int = 64
    learning_rate: float = 1e-3
    matrix_rate: float = 4e-3
    warmup_steps: int = 40
    gradient_norm: float = 1.0
    weight_decay: float = 0.05
    mask_weight: float = 3.0
    threads: int = 2

    @property
    def digest(self) -> str:
        """SHA-256 of the recipe's fields in hexadecimal."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Recipe(Training):
    """The recipe of `sotto-tiny`; the batch size is a multiple of the number of styles.

    Attributes:
        style_weight: Weight of the loss that tells style and class together.
        easy_steps: Number of first steps that see `easy_domain` only.
        domains: Styles in training.
        easy_domain: The style of the first steps.
        text_steps: Steps of the text tower.
        text_images: Images of each class in each style for the text tower.
        text_batch: How many of these images each step uses.
        collections: Contexts of names per step, each with its own meanings.
        collection_weight: Weight of the loss that distinguishes names in contexts.
        style_period: The text tower sees the styles' names once in this number of steps.
        templates: Captions that fit any style.
        domain_template: The caption that names the style.
    """

    style_weight: float = 0.5
    easy_steps: int = 64
    domains: tuple[str, ...] = ("real", "clipart", "painting", "sketch")
    easy_domain: str = "clipart"
    text_steps: int = 600
    text_images: int = 60
    text_batch: int = 128
    collections: int = 6
    collection_weight: float = 2.0
    style_period: int = 3
    templates: tuple[str, ...] = (
        "a photo of a {}.",
        "a picture of a {}.",
        "an image of a {}.",
        "{}.",
        "one of many pictures that show a {}.",
    )
    domain_template: str = "a {} of a {}."


class Descent:
    """Muon on the matrices of transformer blocks (Jordan et al. 2024), AdamW on all the rest."""

    def __init__(
        self, recipe: Training, steps: int, *, blocks: nn.Module, others: Iterable[Tensor]
    ) -> None:
        """Set up both optimisers.

        Args:
            recipe: Rates, decay and warm-up.
            steps: Number of steps; the rate ends at zero.
            blocks: The transformer.
            others: The other trained parameters.
        """
        matrices = [p for p in blocks.parameters() if p.ndim == 2]
        rest = [*others, *(p for p in blocks.parameters() if p.ndim != 2)]
        self._trained = [*matrices, *rest]
        self._recipe, self._steps = recipe, steps
        decay = recipe.weight_decay
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": decay},
            {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimisers: Sequence[torch.optim.Optimizer] = (
            torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98)),
            torch.optim.Muon(
                matrices,
                lr=recipe.matrix_rate,
                weight_decay=decay,
                adjust_lr_fn="match_rms_adamw",
            ),
        )
        self._schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimiser, self._factor)
            for optimiser in self._optimisers
        ]

    def step(self, loss: Tensor) -> None:
        """Take one descent step."""
        for optimiser in self._optimisers:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._trained, self._recipe.gradient_norm)
        for optimiser in self._optimisers:
            optimiser.step()
        for schedule in self._schedules:
            schedule.step()

    def _factor(self, step: int) -> float:
        warm = self._recipe.warmup_steps
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, self._steps - warm)
        return float(0.5 * (1 + np.cos(np.pi * done)))

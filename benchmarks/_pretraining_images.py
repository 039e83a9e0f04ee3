"""Pretrains the image tower to distinguish outlines and styles, and to see the shapes' masks.

Each outline, and each pair of style and outline, has a learned direction that replaces a caption,
because an untrained text tower gives nearly the same feature to all captions. A linear layer tells
from each patch which of its pixels the shape covers; without this layer the tower needs hundreds
of steps before it finds shapes at all. Both are thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._pretraining_recipe import Descent, Progress, Recipe, Training
from methods.clip import tiny
from platform.data.shapes import CLASSES, DOMAINS, Stream, draw_with_distance

_BLOCK = 64
"""Number of images drawn at once."""


@dataclass(frozen=True)
class Batch:
    """Images of all styles, equally many of each.

    Attributes:
        images: uint8 (n, S, S, 3).
        distances: Signed distance to the outline at each pixel, in halves of the image (n, S, S).
        outlines: Index into `CLASSES`, (n,).
        styles: Index into the recipe's domains, (n,).
    """

    images: NDArray[np.uint8]
    distances: NDArray[np.float32]
    outlines: NDArray[np.int64]
    styles: NDArray[np.int64]


def batches(recipe: Recipe) -> Iterator[Batch]:
    """Yield one batch per step; every image is new."""
    each = recipe.batch_size // len(recipe.domains)
    styles = {
        name: _drawn(recipe.seed, name, index, each) for index, name in enumerate(recipe.domains)
    }
    easy = [styles[recipe.easy_domain]] * len(styles)
    for step in range(recipe.steps):
        chosen = easy if step < recipe.easy_steps else styles.values()
        parts = [next(style) for style in chosen]
        yield Batch(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.outlines for part in parts]),
            np.concatenate([part.styles for part in parts]),
        )


def _drawn(seed: int, domain: str, style: int, each: int) -> Iterator[Batch]:
    # No part of a data set, training or test, has the third key 3, so no image is shared.
    key = (int(Stream.PRETRAINING), 3, DOMAINS.index(domain))
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    number = max(each, _BLOCK // each * each)
    while True:
        outlines = rng.integers(len(CLASSES), size=number)
        names = [CLASSES[outline] for outline in outlines]
        size = tiny.CONFIG["preprocess"]["size"]
        images, distances = draw_with_distance(rng, names, domain, image_size=size)
        for start in range(0, number, each):
            rows = slice(start, start + each)
            styles = np.full(each, style)
            yield Batch(images[rows], distances[rows], outlines[rows], styles)


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """Return images (n, S, S, 3) in the tiny model's format, float32 (n, 3, S, S)."""
    mean = torch.tensor(tiny.CONFIG["preprocess"]["mean"])
    std = torch.tensor(tiny.CONFIG["preprocess"]["std"])
    scaled = torch.from_numpy(images).float().div_(255.0)
    return scaled.sub_(mean).div_(std).permute(0, 3, 1, 2).contiguous()


def covered(distances: NDArray[np.float32], patch: int) -> Tensor:
    """Return the share of each pixel that a shape covers, by patches, (n, patches, patch^2)."""
    count, size = distances.shape[:2]
    area = np.clip(0.5 - distances * (size / 2), 0, 1)
    grid = area.reshape(count, size // patch, patch, size // patch, patch)
    by_patch = np.ascontiguousarray(grid.transpose(0, 1, 3, 2, 4), dtype=np.float32)
    return torch.from_numpy(by_patch.reshape(count, -1, patch * patch))


def image_loss(logits: Tensor, outlines: Tensor, styles: Tensor, style_weight: float) -> Tensor:
    """Cross-entropy over outlines, and over pairs of style and outline.

    Args:
        logits: All outlines, then all outlines of each style, (n, 20 + 20 styles).
        outlines: The right outlines, (n,).
        styles: The right styles, (n,).
        style_weight: Weight of the pairs.
    """
    classes = len(CLASSES)
    pairs = functional.cross_entropy(logits[:, classes:], styles * classes + outlines)
    return functional.cross_entropy(logits[:, :classes], outlines) + style_weight * pairs


def fit_images(recipe: Recipe, model: CLIP, progress: Progress | None) -> None:
    """Train the image tower and the logit scale."""
    patch = tiny.CONFIG["vision"]["patch_size"]

    def steps() -> Iterator[Step]:
        for batch in batches(recipe):
            outlines, styles = map(torch.from_numpy, (batch.outlines, batch.styles))
            told = partial(
                image_loss, outlines=outlines, styles=styles, style_weight=recipe.style_weight
            )
            yield Step(pixels(batch.images), covered(batch.distances, patch), told)

    number = len(CLASSES) * (1 + len(recipe.domains))
    fit_image_tower(recipe, model, number, steps=steps(), progress=progress)


@dataclass(frozen=True)
class Step:
    """What one step of the image tower sees.

    Attributes:
        images: In the model's format, (n, 3, S, S).
        covered: The share of each pixel that the shape covers, (n, patches, patch^2).
        told: The loss of the logits (n, directions).
    """

    images: Tensor
    covered: Tensor
    told: Callable[[Tensor], Tensor]


def fit_image_tower(
    training: Training,
    model: CLIP,
    directions: int,
    *,
    steps: Iterator[Step],
    progress: Progress | None,
) -> Tensor:
    """Train the image tower and the logit scale against directions in place of captions.

    Returns:
        The directions (directions, width), which are of no more use than to measure the tower.
    """
    visual = model.visual
    patch, width = tiny.CONFIG["vision"]["patch_size"], tiny.CONFIG["embed_dim"]
    generator = torch.Generator().manual_seed(training.seed)
    rows = nn.Parameter(torch.randn((directions, width), generator=generator) * width**-0.5)
    mask = nn.Parameter(torch.zeros((tiny.CONFIG["vision"]["width"], patch * patch)))
    inside = {id(p) for p in visual.transformer.parameters()}
    others = [p for p in visual.parameters() if p.requires_grad and id(p) not in inside]
    others += [rows, mask, model.logit_scale]
    descent = Descent(training, training.steps, blocks=visual.transformer, others=others)
    visual.output_tokens = True
    for number, step in enumerate(islice(steps, training.steps), start=1):
        pooled, tokens = visual(step.images)
        image = functional.normalize(pooled, dim=-1)
        told = step.told(model.logit_scale.exp() * image @ functional.normalize(rows, dim=-1).T)
        seen = functional.binary_cross_entropy_with_logits(tokens @ mask, step.covered)
        descent.step(told + training.mask_weight * seen)
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if progress and number % 25 == 0:
            progress(f"image step {number}/{training.steps}  loss {told.item():.3f}")
    visual.output_tokens = False
    return functional.normalize(rows.detach(), dim=-1)

"""The text tower's part of pretraining, with the image tower locked.

Locked images are what Zhai et al. 2022 ("LiT: Zero-shot transfer with locked-image text tuning")
show to serve captions well, and they need to be encoded once only. Within a batch many images
share a caption, so images are contrasted with the captions of all classes instead of with each
other's (the image-to-text half of Yang et al. 2022, "Unified Contrastive Learning in
Image-Text-Label Space", equation 4).

A name of `homonyms` without a sense is a caption of four outlines alike: what it means cannot be
told, and the tower learns just that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._pretraining_images import pixels
from benchmarks._pretraining_recipe import DOMAIN_WORDS, Descent, Progress, Recipe
from methods.clip import tiny
from methods.clip.text_tower import TextTower
from platform.data.homonyms import CLASSES as NAMES
from platform.data.homonyms import SENSES, SHIFTS
from platform.data.shapes import CLASSES, Stream, shapes_dataset


def texts(template: str) -> list[str]:
    """Return the captions of one template: shapes, names in each sense, then names alone."""
    named = [f"{sense} {name}" for sense in SENSES for name in NAMES]
    return [template.format(words) for words in (*CLASSES, *named, *NAMES)]


def style_texts(recipe: Recipe) -> list[str]:
    """Return the captions of shapes that name a style."""
    words = [DOMAIN_WORDS[domain] for domain in recipe.domains]
    return [recipe.domain_template.format(word, name) for word in words for name in CLASSES]


def name_labels(outlines: Tensor) -> Tensor:
    """Return the name that means each outline in each sense, (n, senses)."""
    return (outlines[:, None] - torch.tensor(SHIFTS)) % len(NAMES)


def caption_loss(logits: Tensor, outlines: Tensor) -> Tensor:
    """Cross-entropy over shapes, over names in each sense, and over names alone.

    Args:
        logits: In the order of `texts`, (n, 120).
        outlines: Right ones, (n,).

    Returns:
        The sum of the three, that of the senses being their mean; alone, each of the four names
        that mean an outline in some sense is right by a quarter.
    """
    shapes, named, alone = logits.split((len(CLASSES), len(SENSES) * len(NAMES), len(NAMES)), 1)
    right = name_labels(outlines)
    by_sense = named.reshape(-1, len(SENSES), len(NAMES)).flatten(0, 1)
    mixture = functional.one_hot(right, len(NAMES)).float().mean(dim=1)
    return (
        functional.cross_entropy(shapes, outlines)
        + functional.cross_entropy(by_sense, right.flatten())
        + functional.cross_entropy(alone, mixture)
    )


@dataclass(frozen=True)
class Locked:
    """Image features of length one (n, d), and what is on the images."""

    features: Tensor
    outlines: Tensor
    styles: Tensor


def locked_images(recipe: Recipe, model: CLIP) -> Locked:
    """Encode the images that captions are learned from, of pretraining's own stream."""
    split = shapes_dataset(
        recipe.seed, recipe.text_images, 0, domains=recipe.domains, stream=Stream.PRETRAINING
    ).train
    images = split.images[np.arange(split.num_examples)]
    with torch.no_grad():
        features = [
            model.encode_image(block, normalize=True) for block in pixels(images).split(256)
        ]
    return Locked(
        torch.cat(features), torch.from_numpy(split.labels), torch.from_numpy(split.domains)
    )


def fit_captions(recipe: Recipe, model: CLIP, progress: Progress | None) -> tuple[int, ...]:
    """Train the text tower, the rows of its tokens and the logit scale.

    Returns:
        The token ids whose rows were trained.
    """
    tokenise = tiny.tokenizer()
    table = [tokenise(texts(template)) for template in recipe.templates]
    styled = tokenise(style_texts(recipe))
    used = torch.unique(torch.cat([*table, styled]))
    rows = nn.Parameter(model.token_embedding.weight.detach()[used].clone())
    # Captions use a few dozen of 49,408 rows; an optimiser over all would cost more than the rest.
    model.token_embedding.requires_grad_(False)
    encode = _encoder(TextTower.of(model, tiny.NAME), rows, used)
    seen = locked_images(recipe, model)
    tower = [model.positional_embedding, model.text_projection, *model.ln_final.parameters()]
    descent = Descent(
        recipe,
        recipe.text_steps,
        blocks=model.transformer,
        others=[rows, *tower, model.logit_scale],
    )
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(1,)))
    for step in range(recipe.text_steps):
        batch = torch.from_numpy(rng.choice(len(seen.outlines), recipe.text_batch, replace=False))
        ids = table[int(rng.integers(len(table)))]
        image, outlines = model.logit_scale.exp() * seen.features[batch], seen.outlines[batch]
        loss = caption_loss(image @ encode(ids).T, outlines)
        # Every other step is enough for the styles' names.
        if step % 2 == 0:
            pairs = seen.styles[batch] * len(CLASSES) + outlines
            styles = functional.cross_entropy(image @ encode(styled).T, pairs)
            loss = loss + recipe.style_weight * styles
        descent.step(loss)
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if progress and (step + 1) % 100 == 0:
            progress(f"text step {step + 1}/{recipe.text_steps}  loss {loss.item():.3f}")
    with torch.no_grad():
        model.token_embedding.weight[used] = rows
    return tuple(used.tolist())


def _encoder(tower: TextTower, rows: Tensor, used: Tensor) -> Callable[[Tensor], Tensor]:
    def encode(ids: Tensor) -> Tensor:
        end = tower.end_of_text(ids)
        ids = ids[:, : int(end.max()) + 1].contiguous()
        return tower.encode(functional.embedding(torch.searchsorted(used, ids), rows), end)

    return encode

"""Trains the tiny CLIP that ships with Sotto: `python -m benchmarks.pretraining`.

Contrastive training on rendered shapes in four of six styles (Radford et al. 2021, section 2.3).
Within a batch many images share a caption, so images are contrasted with the captions of all
classes instead of with each other's (the image-to-text half of Yang et al. 2022, "Unified
Contrastive Learning in Image-Text-Label Space", equation 4): once without and once with the style's
name.

Three stages make it minutes on a CPU. First the text tower alone learns that captions of one class
belong together: an untrained tower gives nearly the same feature to all, and then the image tower
has nothing to follow. Then come images of one easy style, then all four. The two styles that are
left out give prompt learning something to gain. One process, seeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from methods.clip import tiny
from methods.clip.text_tower import TextTower
from platform.data.dataset import Split
from platform.data.shapes import CLASSES, DOMAINS, Stream, shapes_dataset

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the trained weights, the version of torch aside.

    Attributes:
        seed: Seed of weights, images and batches.
        steps: Number of optimiser steps.
        batch_size: Images a step.
        learning_rate: Peak of AdamW's learning rate: linear warm-up, then a cosine to zero.
        warmup_steps: Length of the warm-up.
        text_steps: Number of steps of the text tower alone, not counted in `steps`.
        easy_steps: Number of first steps that see `easy_domain` only: outlines are found there
            several times sooner than among textures.
        gradient_norm: Largest norm of one step's gradient.
        weight_decay: AdamW's weight decay of matrices; vectors and token rows have none.
        images: Number of training images of each class in each style.
        domains: Styles that are trained on.
        easy_domain: The style that comes first.
        templates: Captions that fit any style.
        domain_template: The caption that names the style.
        threads: Threads of torch; the sum's order, hence the last bits, depend on it.
    """

    seed: int = 20
    steps: int = 1800
    batch_size: int = 64
    learning_rate: float = 1e-3
    warmup_steps: int = 40
    text_steps: int = 150
    easy_steps: int = 200
    gradient_norm: float = 1.0
    weight_decay: float = 0.05
    images: int = 300
    domains: tuple[str, ...] = ("real", "clipart", "painting", "sketch")
    easy_domain: str = "clipart"
    templates: tuple[str, ...] = (
        "a photo of a {}.",
        "a picture of a {}.",
        "an image of a {}.",
        "{}.",
    )
    domain_template: str = "a {} of a {}."
    threads: int = 2

    @property
    def digest(self) -> str:
        """SHA-256 of the recipe's fields in hexadecimal."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


DOMAIN_WORDS: Mapping[str, str] = {
    "real": "real photo",
    "clipart": "clipart",
    "painting": "painting",
    "sketch": "sketch",
    "infograph": "infograph",
    "quickdraw": "quickdraw",
}


@dataclass(frozen=True)
class _Captions:
    """One caption of each class, and the classes' labels."""

    ids: Tensor
    labels: Tensor


def pretrain(recipe: Recipe, *, progress: Progress | None = None) -> tuple[CLIP, tuple[int, ...]]:
    """Trains the tiny CLIP.

    Args:
        recipe: What to do.
        progress: Called with a line of text now and then.

    Returns:
        The model in evaluation mode, and the token ids whose rows training moved.
    """
    model = tiny.build(recipe.seed)
    tower = TextTower.of(model, tiny.NAME)
    table = _caption_table(recipe)
    used = torch.unique(torch.cat([group.ids for group in table]))
    rows = nn.Parameter(model.token_embedding.weight.detach()[used].clone())
    # Captions use a few dozen of 49,408 rows; an optimiser over all would cost more than the ViT.
    model.token_embedding.requires_grad_(False)
    encode = _make_encoder(tower, rows, used)
    _fit_text(recipe, model, rows, table=table, encode=encode)
    _fit(recipe, model, rows, table=table, encode=encode, progress=progress)
    with torch.no_grad():
        model.token_embedding.weight[used] = rows
    return model.eval(), tuple(used.tolist())


def zero_shot_accuracy(
    model: CLIP, split: Split, template: str = "a photo of a {}."
) -> NDArray[np.float64]:
    """Accuracy of the captions `template` over all classes, for each domain index of the split.

    Args:
        model: A tiny CLIP in evaluation mode.
        split: Images of the classes of `shapes`.
        template: Caption with one pair of braces.

    Returns:
        Accuracy in [0, 1], float64 (number of domains,).
    """
    with torch.inference_mode():
        ids = tiny.tokenizer()([template.format(name) for name in CLASSES])
        text = model.encode_text(ids, normalize=True)
        guesses = [
            (model.encode_image(block, normalize=True) @ text.T).argmax(dim=1)
            for block in torch.split(_pixels(split), 256)
        ]
    right = torch.cat(guesses).numpy() == split.labels
    return np.bincount(split.domains, weights=right) / np.bincount(split.domains)


def _caption_table(recipe: Recipe) -> tuple[_Captions, ...]:
    """Captions of all classes for each template, then for each style by its name."""
    tokenise = tiny.tokenizer()
    styles = [recipe.domain_template.format(DOMAIN_WORDS[d], "{}") for d in recipe.domains]
    return tuple(
        _Captions(tokenise([template.format(name) for name in CLASSES]), torch.arange(len(CLASSES)))
        for template in (*recipe.templates, *styles)
    )


def _make_encoder(tower: TextTower, rows: Tensor, used: Tensor) -> Callable[[Tensor], Tensor]:
    def encode(ids: Tensor) -> Tensor:
        end = tower.end_of_text(ids)
        ids = ids[:, : int(end.max()) + 1].contiguous()
        return tower.encode(rows[torch.searchsorted(used, ids)], end)

    return encode


def _fit_text(
    recipe: Recipe,
    model: CLIP,
    rows: nn.Parameter,
    *,
    table: Sequence[_Captions],
    encode: Callable[[Tensor], Tensor],
) -> None:
    """Draws the captions of one class together and those of different classes apart."""
    optimiser, _ = _optimiser(recipe, model, rows)
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(1,)))
    for _ in range(recipe.text_steps):
        one, other = rng.choice(len(table), 2, replace=False)
        logits = (
            model.logit_scale.exp().detach() * encode(table[one].ids) @ encode(table[other].ids).T
        )
        _descend(recipe, optimiser, functional.cross_entropy(logits, table[one].labels))


def _descend(recipe: Recipe, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(trained, recipe.gradient_norm)
    optimiser.step()


def _image_loss(logits: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
    """Cross-entropy over the captions that fit any style, and over those that name one if given."""
    classes = len(CLASSES)
    any_style = functional.cross_entropy(logits[:, :classes], labels)
    if logits.shape[1] == classes:
        return any_style
    named_style = functional.cross_entropy(logits[:, classes:], domains * classes + labels)
    return any_style + 0.5 * named_style


def _fit(
    recipe: Recipe,
    model: CLIP,
    rows: nn.Parameter,
    *,
    table: Sequence[_Captions],
    encode: Callable[[Tensor], Tensor],
    progress: Progress | None,
) -> None:
    data = shapes_dataset(
        recipe.seed, recipe.images, 0, domains=recipe.domains, stream=Stream.PRETRAINING
    ).train
    pixels, labels, domains = (
        _pixels(data),
        *map(torch.from_numpy, (data.labels, data.domains)),
    )
    optimiser, schedule = _optimiser(recipe, model, rows)
    everything = np.arange(len(labels))
    easy = np.flatnonzero(data.domains == recipe.domains.index(recipe.easy_domain))
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(0,)))
    for step in range(recipe.steps):
        eligible = easy if step < recipe.easy_steps else everything
        batch = torch.from_numpy(rng.choice(eligible, recipe.batch_size, replace=False))
        chosen = table[int(rng.integers(len(recipe.templates)))]
        # Every other step is enough for the styles' names, and captions cost a third of a step.
        styles = table[len(recipe.templates) :] if step % 2 == 0 else ()
        captions = torch.cat([group.ids for group in (chosen, *styles)])
        image = model.encode_image(pixels[batch], normalize=True)
        logits = model.logit_scale.exp() * image @ encode(captions).T
        loss = _image_loss(logits, labels[batch], domains[batch])
        _descend(recipe, optimiser, loss)
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if progress and (step + 1) % 25 == 0:
            progress(f"step {step + 1}/{recipe.steps}  loss {loss.item():.3f}")


def _optimiser(
    recipe: Recipe, model: CLIP, rows: nn.Parameter
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [rows, *(p for p in trained if p.ndim <= 1)], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))

    def factor(step: int) -> float:
        if step < recipe.warmup_steps:
            return (step + 1) / recipe.warmup_steps
        done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
        return float(0.5 * (1 + np.cos(np.pi * done)))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def _pixels(split: Split) -> Tensor:
    mean = torch.tensor(tiny.CONFIG["preprocess"]["mean"])
    std = torch.tensor(tiny.CONFIG["preprocess"]["std"])
    images: NDArray[np.uint8] = split.images[np.arange(split.num_examples)]
    scaled = torch.from_numpy(images).float().div_(255.0)
    return scaled.sub_(mean).div_(std).permute(0, 3, 1, 2).contiguous()


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, writes the weights, and reports zero-shot accuracy on fresh images.

    Args:
        arguments: Command line; None for the process's own.

    Returns:
        The exit code, 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=tiny.WEIGHTS, help="safetensors file to write"
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="optimiser steps")
    options = parser.parse_args(arguments)
    recipe = Recipe(steps=options.steps)
    torch.set_num_threads(recipe.threads)
    started = time.monotonic()
    model, token_ids = pretrain(recipe, progress=_say)
    _say(f"trained in {time.monotonic() - started:.0f} s")
    header = {"steps": str(recipe.steps), "recipe": recipe.digest, "torch": torch.__version__}
    tiny.save(model, options.output, token_ids=token_ids, seed=recipe.seed, header=header)
    fresh = shapes_dataset(recipe.seed, 0, 25, stream=Stream.PRETRAINING).test
    for domain, accuracy in zip(
        DOMAINS, zero_shot_accuracy(tiny.load(options.output).eval(), fresh), strict=True
    ):
        seen = "seen" if domain in recipe.domains else "unseen"
        _say(f"zero-shot {domain:10s} {100 * accuracy:5.1f} %  ({seen})")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

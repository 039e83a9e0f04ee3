"""Trains the tiny CLIP that ships with Sotto: `python -m benchmarks.pretraining`.

Contrastive training on rendered shapes in four of six styles (Radford et al. 2021, section 2.3), in
two stages, so that it takes minutes on a CPU: first the image tower alone, then the text tower on
images that are encoded once. The captions are those of `shapes`, with and without the style's name,
and of `homonyms`, with and without the sense. The two omitted styles leave something for prompt
learning to gain. One process, seeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP

from benchmarks._pretraining_captions import fit_captions
from benchmarks._pretraining_images import fit_images, pixels
from benchmarks._pretraining_recipe import Progress, Recipe
from benchmarks._sizes import place, sized
from methods.clip import tiny
from platform.data.dataset import Split
from platform.data.homonyms import CLASSES as NAMES
from platform.data.homonyms import SENSES, homonyms_dataset
from platform.data.shapes import CLASSES, DOMAINS, Stream, shapes_dataset

RECIPE = sized(
    Recipe(),
    Recipe(
        **{"steps": 2, "easy_steps": 1, "batch_size": 8, "warmup_steps": 1},
        **{"text_steps": 1, "text_images": 1, "text_batch": 16},
    ),
)
IMAGES = sized(25, 1)
"""Fresh images of each class in each style."""
NEUTRAL = "a photo of a {}."
NAMED = "a photo of a {} {}."


def pretrain(recipe: Recipe, *, progress: Progress | None = None) -> tuple[CLIP, tuple[int, ...]]:
    """Train the tiny CLIP.

    Args:
        recipe: The recipe.
        progress: Called with a line of text from time to time.

    Returns:
        The model in evaluation mode, and the token ids whose rows training moved.
    """
    model = tiny.build(recipe.seed)
    fit_images(recipe, model, progress)
    token_ids = fit_captions(recipe, model, progress)
    return model.eval(), token_ids


def zero_shot_accuracy(model: CLIP, split: Split, captions: Sequence[str]) -> NDArray[np.float64]:
    """Accuracy of captions, for each domain index of the split.

    Args:
        model: A tiny CLIP in evaluation mode.
        split: Images.
        captions: One for each class, in label order.

    Returns:
        Accuracy in [0, 1], float64 (number of domains,).
    """
    images = pixels(split.images[np.arange(split.num_examples)])
    with torch.inference_mode():
        text = model.encode_text(tiny.tokenizer()(list(captions)), normalize=True)
        guesses = [
            (model.encode_image(block, normalize=True) @ text.T).argmax(dim=1)
            for block in torch.split(images, 256)
        ]
    right = torch.cat(guesses).numpy() == split.labels
    return np.bincount(split.domains, weights=right) / np.bincount(split.domains)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write the weights, and report zero-shot accuracy on fresh images.

    Args:
        arguments: Command line; None for the process's own.

    Returns:
        The exit code, 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretraining", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=place(tiny.WEIGHTS), help="safetensors file to write"
    )
    parser.add_argument("--steps", type=int, default=RECIPE.steps, help="steps of the image tower")
    options = parser.parse_args(arguments)
    recipe = dataclasses.replace(RECIPE, steps=options.steps)
    torch.set_num_threads(recipe.threads)
    started, worked = time.monotonic(), time.process_time()
    model, token_ids = pretrain(recipe, progress=_say)
    wall, work = time.monotonic() - started, time.process_time() - worked
    _say(f"trained in {wall:.0f} s, {work:.0f} s of processor time")
    header = {"steps": str(recipe.steps), "recipe": recipe.digest, "torch": torch.__version__}
    tiny.save(model, options.output, token_ids=token_ids, seed=recipe.seed, header=header)
    report(tiny.load(options.output).eval(), recipe)
    return 0


def report(model: CLIP, recipe: Recipe) -> None:
    """Print captions' accuracy on fresh images: `shapes`, then each sense with and without it."""
    fresh = shapes_dataset(recipe.seed, 0, IMAGES, stream=Stream.PRETRAINING).test
    _tell("zero-shot", model, fresh, [NEUTRAL.format(name) for name in CLASSES], recipe)
    for index, sense in enumerate(sized(SENSES, SENSES[:1])):
        senses = np.full((len(DOMAINS), 1), index)
        images = homonyms_dataset(
            recipe.seed, 0, IMAGES, senses=(senses, senses), stream=Stream.PRETRAINING
        ).test
        _tell(sense, model, images, [NAMED.format(sense, name) for name in NAMES], recipe)
        _tell(f"not {sense}", model, images, [NEUTRAL.format(name) for name in NAMES], recipe)


def _tell(what: str, model: CLIP, split: Split, captions: Sequence[str], recipe: Recipe) -> None:
    found = zero_shot_accuracy(model, split, captions)
    for domain, accuracy in zip(DOMAINS, found, strict=True):
        seen = "seen" if domain in recipe.domains else "unseen"
        _say(f"{what} {domain:10s} {100 * accuracy:5.1f} %  ({seen})")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Trains `sotto-glyphs`, a tiny CLIP that has seen printed characters alone.

    python -m benchmarks.glyphs FOLDER

`FOLDER` has a folder for each family of fonts, such as `dpkg-deb -x` of Debian's packages
`benchmarks/glyphs.txt` makes. The model is that of `sotto-tiny`, trained in the same two stages:
the image tower against directions for characters and attributes, then the text tower on captions of
images that are encoded once. Everything is chosen on characters of the families in `HELD_OUT`,
which training never sees. No handwriting is used, read or looked at.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._glyph_images import CHARACTERS, NAMES, WORDS, Batch, Faces, batches, read_faces
from benchmarks._pretraining_images import Step, fit_image_tower
from benchmarks._pretraining_recipe import Descent, Progress, Training
from benchmarks._sizes import place, sized
from methods.clip import tiny
from methods.clip.text_tower import TextTower

SIZE: Final = tiny.CONFIG["preprocess"]["size"]
HELD_OUT: Final = (
    *("fonts-cantarell", "fonts-dejavu-core", "fonts-ebgaramond", "fonts-karla"),
    *("fonts-open-sans", "fonts-tuffy"),
)
"""Families to measure on."""
WEIGHTS: Final = tiny.SHIPPED[tiny.GLYPHS]
VALUES: Final = 3
"""Words of each kind of attribute."""


@dataclass(frozen=True)
class Recipe(Training):
    """The recipe of `sotto-glyphs`.

    Attributes:
        attribute_weight: Weight of the losses that tell weight, slant, width and quality.
        text_steps: Steps of the text tower.
        text_images: Images that are encoded for the text tower.
        text_batch: How many of these images each step uses.
        styled_weight: Weight of the loss of captions that name an attribute.
        templates: Captions of a character, or of a character behind an attribute.
    """

    seed: int = 21
    steps: int = 2000
    batch_size: int = 96
    warmup_steps: int = 60
    threads: int = 1
    attribute_weight: float = 0.25
    text_steps: int = 1200
    text_images: int = 20000
    text_batch: int = 256
    styled_weight: float = 0.5
    templates: tuple[str, ...] = (
        "a photo of a {}.",
        "a picture of a {}.",
        "an image of the {}.",
        "{}.",
        "a scan of one {}.",
    )


RECIPE: Final = sized(
    Recipe(),
    Recipe(
        **{"steps": 2, "batch_size": 8, "warmup_steps": 1},
        **{"text_steps": 1, "text_images": 64, "text_batch": 16},
    ),
)


def pixels(images: Tensor) -> Tensor:
    """Return images (n, 3, S, S) with values in [0, 1] in the model's format."""
    mean, std = (torch.tensor(tiny.CONFIG["preprocess"][name]) for name in ("mean", "std"))
    return (images - mean[:, None, None]) / std[:, None, None]


def by_patches(covered: Tensor) -> Tensor:
    """Return coverage (n, S, S) as (n, patches, patch^2)."""
    patch = tiny.CONFIG["vision"]["patch_size"]
    found = functional.unfold(covered[:, None].clamp(0, 1), patch, stride=patch)
    return found.transpose(1, 2).contiguous()


def image_loss(logits: Tensor, batch: Batch, weight: float) -> Tensor:
    """Cross-entropy over characters, and over the words of each kind of attribute."""
    characters, *kinds = logits.split((len(CHARACTERS), *(VALUES for _ in WORDS)), 1)
    told = [
        functional.cross_entropy(kind, words)
        for kind, words in zip(kinds, batch.attributes.unbind(1), strict=True)
    ]
    return functional.cross_entropy(characters, batch.characters) + weight * sum(told)


def fit_images(
    recipe: Recipe, model: CLIP, faces: Faces, chosen: Sequence[int], progress: Progress | None
) -> None:
    """Train the image tower and the logit scale."""

    def steps() -> Iterator[Step]:
        for batch in batches(faces, chosen, recipe.batch_size, size=SIZE, seed=recipe.seed):
            told = partial(image_loss, batch=batch, weight=recipe.attribute_weight)
            yield Step(pixels(batch.images), by_patches(batch.covered), told)

    number = len(CHARACTERS) + VALUES * len(WORDS)
    fit_image_tower(recipe, model, number, steps=steps(), progress=progress)


def encoded(model: CLIP, faces: Faces, chosen: Sequence[int], number: int, seed: int) -> Batch:
    """Draw and encode images; `images` of the result are features of length one (n, d)."""
    drawn = batches(faces, chosen, 250, size=SIZE, seed=seed)
    parts = []
    with torch.inference_mode():
        for _ in range(-(-number // 250)):
            batch = next(drawn)
            features = model.encode_image(pixels(batch.images), normalize=True)
            parts.append(dataclasses.replace(batch, images=features))
    fields = (field.name for field in dataclasses.fields(Batch))
    return Batch(*(torch.cat([getattr(part, name) for part in parts]).clone() for name in fields))


def fit_captions(recipe: Recipe, model: CLIP, seen: Batch, progress: Progress | None) -> list[int]:
    """Train the text tower, the rows of its tokens and the logit scale on encoded images.

    Each step has one template and one kind of attribute: the captions of all characters, and of all
    characters behind each of the kind's words.

    Returns:
        The token ids whose rows were trained.
    """
    tokenise, words = tiny.tokenizer(), list(WORDS.values())
    plain = [tokenise([text.format(name) for name in NAMES]) for text in recipe.templates]
    styled = [
        [
            tokenise([text.format(f"{word} {name}") for name in NAMES for word in kind])
            for kind in words
        ]
        for text in recipe.templates
    ]
    every = torch.cat([*plain, *(ids for kinds in styled for ids in kinds)]).flatten()
    used = torch.unique(every)
    model.token_embedding.requires_grad_(False)
    rows = nn.Parameter(model.token_embedding.weight.detach()[used].clone())
    tower = TextTower.of(model, tiny.NAME)
    others = [model.positional_embedding, model.text_projection, *model.ln_final.parameters()]
    descent = Descent(
        *(recipe, recipe.text_steps),
        blocks=model.transformer,
        others=[rows, *others, model.logit_scale],
    )
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(1,)))
    for step in range(recipe.text_steps):
        batch = torch.from_numpy(rng.integers(len(seen.characters), size=recipe.text_batch))
        template, kind = int(rng.integers(len(recipe.templates))), int(rng.integers(len(words)))
        ids = torch.cat([plain[template], styled[template][kind]])
        end = tower.end_of_text(ids)
        places = torch.searchsorted(used, ids[:, : int(end.max()) + 1].contiguous())
        text = tower.encode(functional.embedding(places, rows), end)
        logits = model.logit_scale.exp() * seen.images[batch] @ text.T
        characters = seen.characters[batch]
        pairs = characters * VALUES + seen.attributes[batch, kind]
        loss = functional.cross_entropy(logits[:, : len(NAMES)], characters)
        styles = functional.cross_entropy(logits[:, len(NAMES) :], pairs)
        descent.step(loss + recipe.styled_weight * styles)
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if progress and (step + 1) % 100 == 0:
            progress(f"text step {step + 1}/{recipe.text_steps}  loss {loss.item():.3f}")
    with torch.no_grad():
        model.token_embedding.weight[used] = rows
    return [int(token) for token in used]


def accuracies(model: CLIP, seen: Batch) -> dict[str, float]:
    """Return zero-shot accuracy on encoded images.

    Of characters, of digits among digits, and of the words of each kind of attribute before the
    right character.
    """
    tokenise, template = tiny.tokenizer(), RECIPE.templates[0]

    def scores(texts: Sequence[str]) -> Tensor:
        with torch.inference_mode():
            text = model.encode_text(tokenise([template.format(t) for t in texts]), normalize=True)
            return seen.images @ text.T

    right, digits = scores(NAMES), seen.characters < 10
    found = {
        "characters": right.argmax(1) == seen.characters,
        "digits": right[digits, :10].argmax(1) == seen.characters[digits],
    }
    for index, (kind, words) in enumerate(WORDS.items()):
        told = scores([f"{word} {name}" for name in NAMES for word in words])
        own = told.unflatten(1, (len(NAMES), VALUES))[torch.arange(len(told)), seen.characters]
        found[kind] = own.argmax(1) == seen.attributes[:, index]
    return {name: float(rights.float().mean()) for name, rights in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write the weights, and report accuracy on families that training never saw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.glyphs", description=__doc__)
    parser.add_argument(
        *("fonts",),
        type=Path,
        nargs=sized(None, "?"),
        # Matplotlib brings some fonts.
        default=sized(None, Path(mpl.get_data_path()) / "fonts"),
        help="folder with a folder for each family of fonts",
    )
    parser.add_argument(
        "--output", type=Path, default=place(WEIGHTS), help="safetensors file to write"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(RECIPE.threads)
    started, worked = time.monotonic(), time.process_time()
    folders = sorted(path for path in options.fonts.iterdir() if any(path.rglob("*.[ot]tf")))
    faces = read_faces(folders)
    held = [index for index, path in enumerate(folders) if path.name in HELD_OUT]
    chosen = [index for index in range(len(folders)) if index not in held]
    model = tiny.build(RECIPE.seed)
    fit_images(RECIPE, model, faces, chosen, _say)
    seen = encoded(model.eval(), faces, chosen, RECIPE.text_images, RECIPE.seed + 1)
    token_ids = fit_captions(RECIPE, model.train(), seen, _say)
    wall, work = time.monotonic() - started, time.process_time() - worked
    _say(f"trained in {wall:.0f} s, {work:.0f} s of processor time")
    header = {"recipe": RECIPE.digest, "torch": torch.__version__}
    tiny.save(model, options.output, token_ids=token_ids, seed=RECIPE.seed, header=header)
    fresh = encoded(tiny.load(options.output).eval(), faces, held or chosen, 4000, RECIPE.seed + 2)
    for name, accuracy in accuracies(tiny.load(options.output).eval(), fresh).items():
        _say(f"{name:12s} {100 * accuracy:5.1f} %")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

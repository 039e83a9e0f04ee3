"""Draws printed characters from fonts, in many weights, slants, widths and qualities.

Every face draws each character once, as a coverage mask; a batch warps, thickens, blurs and
recolours such masks. Only printing fonts are used, so a model that learned from these images has
never seen handwriting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

CHARACTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NUMBERS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAMES: Final = (
    *(f"digit {word}" for word in _NUMBERS),
    *(f"capital {letter.lower()}" for letter in CHARACTERS[10:36]),
    *(f"small {letter}" for letter in CHARACTERS[36:]),
)
"""A caption's words for each character."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "weight": ("thin", "medium", "thick"),
    "slant": ("leaning", "upright", "slanted"),
    "width": ("narrow", "normal", "wide"),
    "quality": ("clear", "noisy", "blurred"),
}
"""A caption's words for how a character is drawn, for each kind of attribute."""

SUFFIXES: Final = (".ttf", ".otf")
SYMBOLS: Final = ("D050000L", "StandardSymbolsPS")
"""Faces that draw other signs in place of letters."""
_MASK: Final = 64
_DRAWN: Final = 160
"""Points of a face when it is drawn, before it is scaled to a mask of 64 pixels a side."""
_ALPHABET: Final = CHARACTERS[10:36]
_UNLIKE: Final = "ABDEGHNQR"
_SAME: Final = 0.95
"""Cosine above which two masks are the same shape."""


@dataclass(frozen=True)
class Faces:
    """Masks of all characters in all faces.

    Attributes:
        masks: Coverage, uint8 (faces, 62, 64, 64); the character fills 3/4 of the longer side.
        families: Index of each face's family, (faces,).
    """

    masks: NDArray[np.uint8]
    families: NDArray[np.int64]


def read_faces(folders: Sequence[Path]) -> Faces:
    """Draw all characters in all faces of some families, one folder a family.

    A face that lacks a character or draws two characters alike (as a face of small capitals does)
    is left out.
    """
    masks, families = [], []
    for index, folder in enumerate(folders):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES):
            found = None if path.stem in SYMBOLS else _drawn(path)
            if found is not None:
                masks.append(found)
                families.append(index)
    return Faces(np.stack(masks), np.array(families))


def _drawn(path: Path) -> NDArray[np.uint8] | None:
    font = ImageFont.truetype(str(path), _DRAWN)
    found = np.zeros((len(CHARACTERS), _MASK, _MASK), np.uint8)
    for index, character in enumerate(CHARACTERS):
        image = Image.new("L", (4 * _DRAWN, 4 * _DRAWN))
        ImageDraw.Draw(image).text((_DRAWN, _DRAWN), character, fill=255, font=font)
        if (box := image.getbbox()) is None:
            return None
        scale = 0.75 * _MASK / max(box[2] - box[0], box[3] - box[1])
        width, height = (max(1, round((box[k + 2] - box[k]) * scale)) for k in (0, 1))
        shape = image.crop(box).resize((width, height), Image.Resampling.LANCZOS)
        page = Image.new("L", (_MASK, _MASK))
        page.paste(shape, ((_MASK - width) // 2, (_MASK - height) // 2))
        found[index] = np.asarray(page)
    flat = functional.normalize(torch.from_numpy(found).flatten(1).float())
    rows = torch.tensor([CHARACTERS.index(letter) for letter in _UNLIKE])
    alike = (flat[rows] * flat[rows + len(_ALPHABET)]).sum(dim=1)
    return None if bool((alike > _SAME).any()) else found


@dataclass(frozen=True)
class Batch:
    """Drawn images.

    Attributes:
        images: Values in [0, 1], float32 (n, 3, size, size).
        covered: The share of each pixel that the character covers, float32 (n, size, size).
        characters: Index into `CHARACTERS`, (n,).
        attributes: Index into each kind of `WORDS`, (n, 4).
    """

    images: Tensor
    covered: Tensor
    characters: Tensor
    attributes: Tensor


def batches(
    faces: Faces, chosen: Sequence[int], number: int, *, size: int, seed: int
) -> Iterator[Batch]:
    """Yield batches without end; every image is new, and every family is as frequent.

    Args:
        faces: The masks.
        chosen: Indices of the families to draw from.
        number: Images a batch.
        size: Pixels a side.
        seed: Seed of all draws.
    """
    rng = np.random.default_rng(seed)
    of_family = [np.flatnonzero(faces.families == family) for family in chosen]
    while True:
        family = rng.integers(len(of_family), size=number)
        face = np.array([rng.choice(of_family[index]) for index in family])
        characters = rng.integers(len(CHARACTERS), size=number)
        attributes = rng.integers(3, size=(number, len(WORDS)))
        masks = torch.from_numpy(faces.masks[face, characters]).float()[:, None] / 255
        covered = _warped(_thickened(masks, attributes[:, 0]), attributes, rng, size)
        yield Batch(
            _coloured(covered, attributes[:, 3], rng),
            covered[:, 0],
            torch.from_numpy(characters),
            torch.from_numpy(attributes),
        )


def _thickened(masks: Tensor, weight: NDArray[np.int64]) -> Tensor:
    """Thin the strokes of masks of weight 0, thicken those of weight 2."""
    thick = functional.max_pool2d(masks, 5, stride=1, padding=2)
    thin = -functional.max_pool2d(-masks, 3, stride=1, padding=1)
    # A hairline would vanish.
    kept = thin.flatten(1).sum(dim=1) > 0.45 * masks.flatten(1).sum(dim=1)
    thin = torch.where(kept[:, None, None, None], thin, masks)
    which = torch.from_numpy(weight)[:, None, None, None]
    return torch.where(which == 0, thin, torch.where(which == 2, thick, masks))


def _warped(
    masks: Tensor, attributes: NDArray[np.int64], rng: np.random.Generator, size: int
) -> Tensor:
    """Slant, turn, stretch, shift and bend masks, and draw them at another size."""
    number = len(masks)
    slant = (attributes[:, 1] - 1) * rng.uniform(0.2, 0.55, number) + rng.normal(0, 0.05, number)
    turn = rng.normal(0, 0.12, number)
    tall = rng.uniform(0.8, 1.15, number)
    wide = tall * np.array([0.7, 1.0, 1.25])[attributes[:, 2]] * rng.uniform(0.92, 1.08, number)
    shear = np.stack([np.ones(number), slant, np.zeros(number), np.ones(number)], 1)
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.stack([cos, -sin, sin, cos], 1).reshape(-1, 2, 2)
    stretch = np.stack([1 / wide, 0 * wide, 0 * wide, 1 / tall], 1).reshape(-1, 2, 2)
    matrix = stretch @ shear.reshape(-1, 2, 2) @ rotation
    theta = np.concatenate([matrix, rng.uniform(-0.12, 0.12, (number, 2, 1))], 2)
    grid = functional.affine_grid(
        torch.from_numpy(theta).float(), [number, 1, size, size], align_corners=False
    )
    # Smooth displacements, as a press or a scanner bends paper.
    bend = torch.from_numpy(rng.normal(0, 0.05, (number, 2, 4, 4))).float()
    bend = functional.interpolate(bend, (size, size), mode="bicubic", align_corners=True)
    return functional.grid_sample(masks, grid + bend.permute(0, 2, 3, 1), align_corners=False)


def _coloured(covered: Tensor, quality: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
    """Give ink and paper a colour each, then blur or add noise."""
    number, _, size, _ = covered.shape
    ink = rng.uniform(0.6, 1.0, (number, 1)) * rng.uniform(0.75, 1.0, (number, 3))
    paper = rng.uniform(0.0, 0.3, (number, 1)) * rng.uniform(0.75, 1.0, (number, 3))
    swapped = rng.random(number) < 0.5
    ink[swapped], paper[swapped] = paper[swapped], ink[swapped].copy()
    ink_, paper_ = (torch.from_numpy(c).float()[:, :, None, None] for c in (ink, paper))
    low = functional.interpolate(covered, scale_factor=0.3, mode="area")
    blurred = functional.interpolate(low, (size, size), mode="bicubic").clamp(0, 1)
    which = torch.from_numpy(quality)[:, None, None, None]
    seen = torch.where(which == 2, blurred, covered)
    images = paper_ + (ink_ - paper_) * seen
    noise = torch.from_numpy(rng.normal(0, 1, images.shape)).float()
    noise = noise * torch.from_numpy(rng.uniform(0.06, 0.2, (number, 1, 1, 1))).float()
    return torch.where(which == 1, images + noise, images).clamp(0, 1)

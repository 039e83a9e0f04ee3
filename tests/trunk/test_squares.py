"""Images at a size that a method asks for: the policy of a model, and no model in the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from methods import Arrays
from methods.clip.adapter import load_backbone
from platform.data.preparing import (
    Squares,
    cached_encoders,
    plain_encoders,
    prepared_arrays,
)
from platform.errors import ConfigError
from tests.trunk._encoders import cache_of, files, pictures


@dataclass(frozen=True)
class Looking:
    """Keeps the pixels."""

    needs: frozenset[str] = frozenset({"pixels"})

    def prepare(self, arrays: Arrays) -> Arrays:
        return arrays


def told(*what: object) -> None:
    """Nobody listens."""


def by_pillow(image: np.ndarray, side: int) -> np.ndarray:
    """The shorter side to `side`, then the middle of the longer one, in Pillow's own words."""
    height, width = image.shape[:2]
    short = min(height, width)
    size = (int(side * width / short), int(side * height / short))
    shown = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return np.asarray(shown.crop((left, top, left + side, top + side)))


@pytest.mark.parametrize(
    ("shape", "side"), [((40, 64), 28), ((100, 60), 32), ((9, 9), 64), ((28, 28), 28)]
)
def test_an_image_is_resized_and_cropped_in_the_middle(shape: tuple[int, int], side: int):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    (fitted,) = Squares(side).fit([image])
    assert (fitted.shape, fitted.dtype) == ((side, side, 3), np.uint8)
    np.testing.assert_array_equal(fitted, by_pillow(image, side))


def test_at_the_model_s_own_size_it_is_what_the_model_does():
    backbone = load_backbone("sotto-tiny")
    images = pictures(3, side=50)
    np.testing.assert_array_equal(Squares(backbone.image_size).fit(images), backbone.fit(images))


@pytest.mark.parametrize("source", ["array", "files"])
@pytest.mark.parametrize("with_model", [True, False])
def test_cached_and_plain_encoders_agree(tmp_path: Path, source: str, with_model: bool):
    images, rows = pictures(70, side=20), np.asarray([69, 3, 3, 40])
    given = images if source == "array" else files(tmp_path / "images", images)
    backbone = load_backbone("sotto-tiny") if with_model else None
    expected = np.stack([by_pillow(images[row], 28) for row in rows])
    for encoders in (
        plain_encoders(backbone, 28),
        cached_encoders(backbone, cache_of(tmp_path), told, 28),
        cached_encoders(backbone, cache_of(tmp_path), told, 28),
    ):
        kept = prepared_arrays(Looking(), given, rows, encoders)["pixels"]
        assert (tuple(kept.shape), kept.dtype) == ((4, 28, 28, 3), np.uint8)
        np.testing.assert_array_equal(kept[:], expected)
    # What is in memory already is not kept a second time.
    assert (tmp_path / "cache").exists() == (source == "files")


def test_without_a_model_there_is_nothing_to_encode_with(tmp_path: Path):
    images, rows = pictures(3), np.arange(3)
    for encoders in (plain_encoders(None), cached_encoders(None, cache_of(tmp_path), told)):
        with pytest.raises(ConfigError, match=r"task\.model: null has nothing"):
            encoders.features(images, rows)

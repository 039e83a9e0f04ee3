"""From images to what a CLIP model's image tower takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.transform import MaybeToTensor, PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor

from methods.errors import BackboneError


def fit(
    images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]], preprocess: PreprocessCfg
) -> NDArray[np.uint8]:
    """Return images of any sizes at the model's own, as open_clip resizes and crops them.

    Args:
        images: RGB images, uint8 (H, W, 3) each.
        preprocess: The model's preprocessing.

    Returns:
        uint8 (n, S, S, 3).
    """
    side = side_of(preprocess.size)
    if isinstance(images, np.ndarray) and images.shape[1:3] == (side, side):
        return images
    steps = image_transform_v2(preprocess, is_train=False).transforms
    # The steps that change an image's size come before the one that makes a tensor of it.
    geometry = steps[: [isinstance(step, MaybeToTensor) for step in steps].index(True)]
    fitted = np.empty((len(images), side, side, 3), np.uint8)
    for row, image in enumerate(images):
        shown = Image.fromarray(image)
        for step in geometry:
            shown = step(shown)
        fitted[row] = np.asarray(shown)
    return fitted


def fit_square(
    images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]], side: int
) -> NDArray[np.uint8]:
    """Return images of any sizes at one that no model asks for, uint8 (n, side, side, 3).

    As open_clip does by default: the shorter side resized to `side`, bicubic and antialiased, and
    the middle of the longer one.
    """
    return fit(images, square_preprocessing(side))


def square_preprocessing(side: int) -> PreprocessCfg:
    """Return what `fit_square` does, as open_clip describes it."""
    return PreprocessCfg(size=side)


def to_pixels(images: NDArray[np.uint8], preprocess: PreprocessCfg) -> Tensor:
    """Return images as an image tower takes them.

    Args:
        images: RGB images, uint8 (n, H, W, 3). Any size but the model's own is resized as open_clip
            does for this model.
        preprocess: The model's preprocessing.

    Returns:
        Normalised pixels, float32 (n, 3, S, S), on the CPU.
    """
    images = fit(images, preprocess)
    mean, std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)
    # A copy: images may be a read-only view of a file, which torch warns about.
    scaled = torch.from_numpy(np.array(images)).float().div_(255.0)
    return scaled.sub_(mean).div_(std).permute(0, 3, 1, 2).contiguous()


def side_of(size: int | Sequence[int]) -> int:
    """Return side of the squares that a model takes, in pixels.

    Raises:
        BackboneError: The model takes other rectangles.
    """
    sides = {size} if isinstance(size, int) else set(size)
    if len(sides) != 1:
        raise BackboneError(f"The model takes images of size {size}; valid are squares.")
    return sides.pop()

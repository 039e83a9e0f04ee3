"""The data set `homonyms`: the images of `shapes` under names that mean something else by sense.

In photographs class names mean different things in different collections ("crane", "boxer"), and
the context tells which. So here: twenty names, each of which means another outline in each of four
senses. A caption or a prompt that knows the sense tells the images apart; the bare name does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from platform.data.dataset import Dataset, Split
from platform.data.images import Indices
from platform.data.shapes import CLASSES as OUTLINES
from platform.data.shapes import DOMAINS, Part, Rendering, Stream

CLASSES: Final = (
    *("crane", "boxer", "bat", "seal", "pitcher", "mole", "bolt", "match", "nail", "palm"),
    *("organ", "ruler", "trunk", "bow", "club", "file", "mint", "mouse", "stamp", "tank"),
)

SENSES: Final = ("garden", "harbour", "kitchen", "theatre")
"""Words that go before a name: "a photo of a harbour crane"."""

BY_STYLE: Final = "styles"
BY_CLIENT: Final = "clients"
"""How senses may be dealt out but for one to all, as in `task.senses`."""

SHIFTS: Final = (0, 3, 7, 12)
"""The n-th name means outline n + shift, modulo 20, under the sense of the same position.

All differences between two shifts differ (a Golomb ruler on the circle): no name means the same
under two senses, and no pair of senses is related as another pair is.
"""

SENSE_OF_STYLE: Final[Mapping[str, str]] = {
    "real": "garden",
    "painting": "garden",
    "clipart": "harbour",
    "infograph": "harbour",
    "sketch": "kitchen",
    "quickdraw": "kitchen",
}
"""Styles of one kind (surfaces, flat colours, lines) share a sense, so that the sense of a style
that is held out can be told from how its images look."""


def outlines_of(labels: Indices, senses: Indices) -> Indices:
    """Return which outlines names mean, as indices into those of `shapes`.

    Args:
        labels: Indices of names, int64.
        senses: Indices into `SENSES`, that broadcast with them.
    """
    return (labels + np.array(SHIFTS, dtype=np.int64)[senses]) % len(OUTLINES)


def senses_of_styles(domains: Sequence[str]) -> Indices:
    """Return each style's sense where each has one, as indices into `SENSES`."""
    return np.array([SENSES.index(SENSE_OF_STYLE[name]) for name in domains], dtype=np.int64)


def homonyms_dataset(
    seed: int,
    train_per_class_and_domain: int,
    test_per_class_and_domain: int,
    image_size: int = 32,
    *,
    senses: tuple[Indices, Indices],
    domains: Sequence[str] = DOMAINS,
    stream: Stream = Stream.FEDERATION,
) -> Dataset:
    """Render the data set.

    Args:
        seed: Seed of all images, not negative.
        train_per_class_and_domain: Number of training images of each name in each domain.
        test_per_class_and_domain: Number of test images of each name in each domain.
        image_size: Side of an image in pixels, at least 16.
        senses: Senses of training and of test rows, indices into `SENSES` that broadcast to (number
            of domains, 20 times the images of each name). Of a row they decide the outline, and
            neither its label nor how it is drawn.
        domains: Names out of `DOMAINS`, in the order of the domain index.
        stream: Who the images are for.

    Returns:
        The data set; examples are ordered by domain, then by name.

    Raises:
        ValueError: An unknown domain or sense, or a number out of range.
    """
    rendering = Rendering(seed=seed, image_size=image_size, domains=domains, stream=stream)
    counts = {Part.TRAIN: train_per_class_and_domain, Part.TEST: test_per_class_and_domain}
    train, test = (
        _split(rendering, part, count, of_rows)
        for (part, count), of_rows in zip(counts.items(), senses, strict=True)
    )
    return Dataset(name="homonyms", classes=CLASSES, domains=tuple(domains), train=train, test=test)


def _split(rendering: Rendering, part: Part, count: int, senses: Indices) -> Split:
    labels = np.repeat(np.arange(len(CLASSES)), count)
    if senses.size and not 0 <= senses.min() <= senses.max() < len(SENSES):
        raise ValueError(f"senses go from {senses.min()} to {senses.max()}; valid is 0 to 3.")
    by_row = np.broadcast_to(senses, (len(rendering.domains), len(labels)))
    return rendering.split(part, labels, outlines_of(labels, by_row))

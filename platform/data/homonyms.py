"""The test bed `homonyms`, which a client alone solves with one word: it shows no gain of sharing.

It has the images of `shapes` under names whose meaning depends on the sense.

In photographs class names mean different things in different collections ("crane", "boxer"), and
the context decides. Here each of twenty names means another outline in each of four senses. A
caption or a prompt that knows the sense tells the images apart; the bare name does not. Groups of
clients may each have a sense of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from platform.data.dataset import Dataset, Indices
from platform.data.shapes import CLASSES as OUTLINES
from platform.data.shapes import DOMAINS, Part, Stream, rendered

CLASSES: Final = (
    *("crane", "boxer", "bat", "seal", "pitcher", "mole", "bolt", "match", "nail", "palm"),
    *("organ", "ruler", "trunk", "bow", "club", "file", "mint", "mouse", "stamp", "tank"),
)

SENSES: Final = ("garden", "harbour", "kitchen", "theatre")
"""Words that go before a name: "a photo of a harbour crane"."""

BY_STYLE: Final = "styles"
"""The value of `task.senses` that gives styles of one kind a sense."""

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
"""Styles of one kind (surfaces, flat colours, lines) share a sense, so that the look of the images
of a held-out style tells its sense."""


def outlines_of(labels: Indices, senses: Indices) -> Indices:
    """Return the outlines of names, as indices into those of `shapes`; the arguments broadcast."""
    return (labels + np.array(SHIFTS, dtype=np.int64)[senses]) % len(OUTLINES)


def homonyms_dataset(
    seed: int,
    train_per_class_and_domain: int,
    test_per_class_and_domain: int,
    *,
    senses: tuple[Indices, Indices],
    domains: Sequence[str] = DOMAINS,
    stream: Stream = Stream.FEDERATION,
) -> Dataset:
    """Render the data set; the other arguments are those of `shapes_dataset`.

    The senses of training and of test rows are indices into `SENSES` that broadcast to (number of
    domains, 20 times the images of each name). They decide the outline of a row, but not its label,
    place or colours.
    """

    def outlines(part: Part, labels: Indices) -> Indices:
        of_rows = senses[part is Part.TEST]
        if of_rows.size and not 0 <= of_rows.min() <= of_rows.max() < len(SENSES):
            raise ValueError(f"senses go from {of_rows.min()} to {of_rows.max()}; valid is 0 to 3.")
        return outlines_of(labels, of_rows)

    counts = (train_per_class_and_domain, test_per_class_and_domain)
    return rendered(
        *("homonyms", CLASSES, counts, outlines), seed=seed, domains=domains, stream=stream
    )

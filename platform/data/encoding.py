"""A model's encoders: from images of any size, with and without the cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from platform.data.features import Kind, cached_features
from platform.data.images import Images, Indices
from platform.data.preparing import Encoders

if TYPE_CHECKING:
    from methods._clip import Backbone

Telling = Callable[[str, int, int], None]
"""Told what is being encoded, and how many of how many images are."""


def cached_encoders(backbone: Backbone, folder: Path, tell: Telling) -> Encoders:
    """Encoders that read the cache first, and fill it.

    Args:
        backbone: The frozen model.
        folder: Where the cache lies.
        tell: Hears of progress.
    """

    def encode(images: Images, rows: Indices, *, kind: Kind) -> NDArray[np.float32]:
        fitted, telling = backbone.fit(images[rows]), partial(tell, f"image {kind}")
        return cached_features(backbone, fitted, folder / kind, telling, kind=kind)

    return Encoders(
        partial(encode, kind="features"),
        partial(encode, kind="tokens"),
        lambda images, rows: backbone.fit(images[rows]),
    )


def plain_encoders(backbone: Backbone) -> Encoders:
    """Encoders that keep nothing."""
    return Encoders(
        lambda images, rows: backbone.encode_images(backbone.fit(images[rows])),
        lambda images, rows: backbone.encode_tokens(backbone.fit(images[rows])),
        lambda images, rows: backbone.fit(images[rows]),
    )

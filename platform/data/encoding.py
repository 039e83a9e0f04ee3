"""A model's encoders: from images of any size, with and without the cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from platform.data.cache import CacheFolder, Kind
from platform.data.features import cached_rows
from platform.data.images import ImageFiles, Images, Indices
from platform.data.preparing import Encoders
from platform.data.rows import FittedRows, Rows

if TYPE_CHECKING:
    from methods._clip import Backbone

Telling = Callable[[str, int, int], None]
"""Told what is being encoded, and how many of how many images are."""


def cached_encoders(backbone: Backbone, cache: CacheFolder, tell: Telling) -> Encoders:
    """Encoders that read the cache first, and fill it.

    Args:
        backbone: The frozen model.
        cache: Where rows are kept.
        tell: Hears of progress.
    """

    def encode(images: Images, rows: Indices, *, kind: Kind) -> Rows:
        telling = partial(tell, f"image {kind}")
        return cached_rows(backbone, images, rows, cache, kind=kind, progress=telling)

    def pixels(images: Images, rows: Indices) -> Rows:
        if isinstance(images, ImageFiles):
            return encode(images, rows, kind="pixels")
        # They are in memory already, and resizing small ones costs less than reading large ones.
        return FittedRows(images, rows, backbone.fit, backbone.image_size)

    return Encoders(partial(encode, kind="features"), partial(encode, kind="tokens"), pixels)


def plain_encoders(backbone: Backbone) -> Encoders:
    """Encoders that keep nothing, for few images."""

    def fitted(images: Images, rows: Indices) -> NDArray[Any]:
        return backbone.fit(images[rows])

    return Encoders(
        lambda images, rows: backbone.encode_images(fitted(images, rows)),
        lambda images, rows: backbone.encode_tokens(fitted(images, rows)),
        fitted,
    )

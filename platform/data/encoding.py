"""Encoders of a run: from images of any size, with and without the cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from methods import MethodError
from platform.config import ModelConfig
from platform.data.cache import CacheFolder, Kind
from platform.data.features import ImageFitter, cached_pixels, cached_rows
from platform.data.images import ImageFiles, Images, Indices
from platform.data.preparing import Encoders
from platform.data.rows import FittedRows, Rows
from platform.data.squares import Squares
from platform.errors import ConfigError

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

Telling = Callable[[str, int, int], None]
"""Told what is being encoded, and how many of how many images are."""


def frozen_model(model: ModelConfig | None, device: str) -> Backbone | None:
    """Return the frozen model of a run, None where the configuration has none.

    Raises:
        ConfigError: If there is none of this name, or its weights cannot be read.
    """
    if model is None:
        return None
    try:
        # What a name says all of stays as it is; a file may be another one at the next run.
        load = _kept if is_public(model) else _loaded
        return load(model.name, model.pretrained, device)
    except MethodError as error:
        raise ConfigError(str(error)) from error


def _loaded(name: str, pretrained: str | None, device: str) -> Backbone:
    # Imported late: a method with a network of its own needs none of it.
    from methods.clip.adapter import load_backbone

    return load_backbone(name, pretrained, device)


# A data holder's process may be in several runs, and each model takes its size in memory.
_kept = lru_cache(maxsize=1)(_loaded)


def is_public(model: ModelConfig) -> bool:
    """Return whether a model's name and tag say all, and are no path and no address.

    The model that ships, or an architecture of open_clip with one of its own tags for it.
    """
    # Imported late: a method with a network of its own needs none of it.
    from methods.clip.adapter import is_listed

    return is_listed(model.name, model.pretrained)


def cached_encoders(
    backbone: Backbone | None, cache: CacheFolder, tell: Telling, pixel_size: int | None = None
) -> Encoders:
    """Return encoders that read the cache first, and fill it.

    Args:
        backbone: The frozen model, None without.
        cache: Where rows are kept.
        tell: Hears of progress.
        pixel_size: Side of the images behind `pixels`; None for what the model takes.
    """

    def encode(images: Images, rows: Indices, *, kind: Kind) -> Rows:
        telling = partial(tell, f"image {kind}")
        return cached_rows(_required(backbone), images, rows, cache, kind=kind, progress=telling)

    def pixels(images: Images, rows: Indices) -> Rows:
        fitter, side = _fitter(backbone, pixel_size)
        if isinstance(images, ImageFiles):
            telling = partial(tell, "image pixels")
            return cached_pixels(fitter, images, rows, cache, progress=telling)
        # They are in memory already, and resizing small ones costs less than reading large ones.
        return FittedRows(images, rows, fitter.fit, side)

    return Encoders(partial(encode, kind="features"), partial(encode, kind="tokens"), pixels)


def plain_encoders(backbone: Backbone | None, pixel_size: int | None = None) -> Encoders:
    """Return encoders that keep nothing, for few images.

    The arguments are those of `cached_encoders`.
    """

    def features(images: Images, rows: Indices) -> Rows:
        model = _required(backbone)
        return model.encode_images(model.fit(images[rows]))

    def tokens(images: Images, rows: Indices) -> Rows:
        model = _required(backbone)
        return model.encode_tokens(model.fit(images[rows]))

    def pixels(images: Images, rows: Indices) -> Rows:
        fitter, _ = _fitter(backbone, pixel_size)
        return fitter.fit(images[rows])

    return Encoders(features, tokens, pixels)


def _fitter(backbone: Backbone | None, pixel_size: int | None) -> tuple[ImageFitter, int]:
    if pixel_size is not None:
        return Squares(pixel_size), pixel_size
    model = _required(backbone)
    return model, model.image_size


def _required(backbone: Backbone | None) -> Backbone:
    if backbone is None:
        raise ConfigError(
            "task.model: null has nothing that images are encoded with; valid: a CLIP model"
        )
    return backbone

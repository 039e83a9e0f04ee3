"""From examples to what a method sees of them: encode what it needs, let it keep what it wants.

Both happen once per example, in chunks: what a method needs may be far larger than the memory
(300 KB of tokens an image) as long as what it keeps is not. Texts are needed as they are. Encoders
take images of any size, with and without the cache on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Method, MethodError
from platform.config import ModelConfig
from platform.data.cache import CacheFolder, Kind
from platform.data.dataset import ImageFiles, Images, Indices
from platform.data.features import ImageFitter, cached_pixels, cached_rows
from platform.data.rows import FittedRows, Rows, TextRows
from platform.errors import ConfigError

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

Encoding = Callable[[Images, Indices], Rows]
CHUNK: Final = 256
"""Examples that a method prepares at once."""


@dataclass(frozen=True)
class Encoders:
    """How images become arrays: given all of them and the rows that are asked for.

    Only what a method needs is called.

    Attributes:
        features: To features (n, d).
        tokens: To tokens (n, T, w).
        pixels: To images of the method's own size, or else the model's, uint8 (n, S, S, 3).
    """

    features: Encoding
    tokens: Encoding
    pixels: Encoding


def prepared_arrays(
    method: Method, examples: Images | Sequence[str], rows: Indices, encoders: Encoders
) -> Mapping[str, Rows]:
    """Return what a method keeps of examples, row i of each being of the example of `rows[i]`.

    What it keeps as it was given stays where it lies, and is read when it is asked for.

    Args:
        method: Says what it needs, and makes of it what it keeps.
        examples: All images or texts; that they are what the method looks at is checked before.
        rows: Which of them, at least one.
        encoders: From images to arrays.

    Raises:
        ConfigError: If the method keeps another number of rows than it was given, or makes
            something else of an example alone than in company.
    """
    inputs: dict[str, Rows] = {}
    if isinstance(examples, Sequence):
        if "text" in method.needs:
            inputs["text"] = TextRows(examples, rows)
    else:
        for name, encode in (
            ("features", encoders.features),
            ("tokens", encoders.tokens),
            ("pixels", encoders.pixels),
        ):
            if name in method.needs:
                inputs[name] = encode(examples, rows)
    if not inputs:
        return {}
    first = {name: array[:CHUNK] for name, array in inputs.items()}
    kept = method.prepare(first)
    _require_rows(kept, len(rows[:CHUNK]))
    _require_alone(method, first, kept)
    if first.keys() == kept.keys() and all(kept[name] is first[name] for name in first):
        # The method keeps its inputs as they are, so rows on the disk can stay there.
        return inputs
    # Written into place: two copies of all of it might not fit into the memory.
    made = {n: np.empty((len(rows), *a.shape[1:]), a.dtype) for n, a in kept.items()}
    for start in range(0, len(rows), CHUNK):
        block = slice(start, start + CHUNK)
        if start:
            kept = method.prepare({name: array[block] for name, array in inputs.items()})
            _require_rows(kept, len(rows[block]))
        for name, array in kept.items():
            if not np.can_cast(array.dtype, made[name].dtype):
                # Texts of this chunk that are longer than all before would be cut off.
                wider = np.promote_types(array.dtype, made[name].dtype)
                made[name] = made[name].astype(wider)
            made[name][block] = array
    return made


def prepared_batch(
    method: Method, examples: NDArray[np.uint8] | Sequence[str], encoders: Encoders
) -> Arrays:
    """Return what a method predicts from, of a few images (n, H, W, 3) or texts.

    Raises:
        ConfigError: As for `prepared_arrays`.
    """
    rows = np.arange(len(examples))
    kept = prepared_arrays(method, examples, rows, encoders)
    return {name: array[rows] for name, array in kept.items()}


def _require_rows(kept: Arrays, rows: int) -> None:
    for name, array in kept.items():
        if len(array) != rows:
            raise ConfigError(
                f"method.name: its prepare made {len(array)} rows of {name!r} out of {rows} "
                f"examples; valid: {rows}"
            )


def _require_alone(method: Method, given: Arrays, kept: Arrays) -> None:
    """Require that what is kept of a record does not depend on the others."""
    for row in {0, len(next(iter(given.values()))) - 1}:
        rows = slice(row, row + 1)
        alone = method.prepare({name: array[rows] for name, array in given.items()})
        for name, array in kept.items():
            one, other = alone[name], array[rows]
            # Numbers of words that differ by one are other words.
            is_real = one.shape == other.shape and one.dtype.kind in "fc"
            if not (
                np.allclose(one, other, rtol=1e-3, atol=1e-4)
                if is_real
                else np.array_equal(one, other)
            ):
                raise ConfigError(
                    f"method.name: its prepare makes another {name!r} of an example alone than in "
                    "company; valid is one that looks at each example by itself"
                )


@dataclass(frozen=True)
class Squares:
    """Brings images to one size by the policy that open_clip has for its models.

    Attributes:
        side: That size.
    """

    side: int

    @property
    def name(self) -> str:
        """What the images are for, in words."""
        return f"no model, {self.side} x {self.side}"

    @property
    def fingerprint(self) -> str:
        """No model, hence no digest of one."""
        return ""

    @property
    def transform_digest(self) -> str:
        """SHA-256 of what is done to an image, in hexadecimal."""
        from methods.clip.image_tower import square_preprocessing

        text = json.dumps(asdict(square_preprocessing(self.side)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def device(self) -> str:
        """Where it is done."""
        return "cpu"

    def fit(self, images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) of any sizes at this one, (n, S, S, 3)."""
        # Imported late: what needs no images at a size of its own needs no open_clip for them.
        from methods.clip.image_tower import fit_square

        return fit_square(images, self.side)


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

"""Prepare examples for a method: encode its needs, and let it choose the arrays that it keeps.

Each example is encoded and prepared once, in chunks: the arrays that a method needs may be far
larger than the memory (300 KB of tokens an image) as long as the arrays that it keeps are not.
Texts stay as they are. Encoders take images of any size.

A frozen image tower computes rows once per image and model, and the cache keeps them on disk. It
finds a row by the digest of its image, among the rows of one kind, model, transform, device and
versions of the libraries. After a change of any of these no stale row is found, and runs that share
images share the work. Images are read one by one, encoded and written in small batches: neither the
images nor their rows need fit into the memory, and an interrupted encoding goes on from the last
batch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Method, MethodError
from methods.plugins import Plugins
from platform.config import ModelConfig
from platform.data.cache import KINDS, CacheFolder, Kind, Shelf
from platform.data.dataset import (
    DECODING_VERSION,
    ImageFiles,
    Images,
    Indices,
    MadeRows,
    Rows,
    decode,
    image_digests,
)
from platform.errors import ConfigError

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone

Progress = Callable[[int, int], None]
BATCH: Final = 64
"""Images in memory at once."""
FEWEST: Final = 32
"""Smallest batch; copies of one image fill it up. The last bits of a row of a matrix product depend
on whether the matrix has a handful of rows or more, and chance decides which other images are new.
"""
GIB: Final = 2**30
LIBRARIES: Final = ("torch", "torchvision", "open_clip_torch", "pillow")
"""Libraries whose versions may change the bits of a row."""


def cached_rows(
    encoder: Backbone | Squares,
    images: Images,
    rows: Indices,
    cache: CacheFolder,
    *,
    kind: Kind = "features",
    progress: Progress | None = None,
) -> NDArray[Any]:
    """Return features, tokens or fitted pixels of images, from the cache as far as it has them.

    Row i is of image `rows[i]`, and read-only. `progress` takes the number of images that are done,
    and of all.
    """
    tell = progress or (lambda done, total: None)
    total, is_sized = len(rows), False
    result: NDArray[Any] | None = None
    digests: list[bytes] = []
    places: dict[bytes, int] = {}
    # Images that are read, at the model's size, and not encoded yet.
    fitted: dict[bytes, NDArray[np.uint8]] = {}

    def put(digest: bytes, made: NDArray[Any]) -> None:
        nonlocal result
        if result is None:
            result = shelf.room(total, made)
        result[places[digest]] = made

    # The first batch of a large model takes a while.
    tell(0, total)
    with closing(Shelf(cache, kind, computation(encoder))) as shelf:
        for done, row in enumerate(rows.tolist(), start=1):
            if isinstance(images, ImageFiles):
                # A file is read once for both its digest and its pixels.
                data = images.bytes_of(row)
                digest = hashlib.sha256(data).digest()
            else:
                (digest,) = image_digests(images, np.array([row]))
            digests.append(digest)
            if digest not in places:
                places[digest] = done - 1
                found = shelf.find(digest)
                if found is not None:
                    put(digest, found)
                else:
                    if isinstance(images, ImageFiles):
                        picture = decode(data, images.paths[row])
                    else:
                        picture = np.asarray(images[np.array([row])])[0]
                    fitted[digest] = encoder.fit(picture[None])[0]
            if done % BATCH and done < total:
                continue
            while fitted and (done == total or len(fitted) >= BATCH):
                batch = list(fitted)[:BATCH]
                made = encode(encoder, np.stack([fitted[digest] for digest in batch]), kind)
                if not is_sized:
                    # Refused as soon as a row's size is known, and not hours later.
                    _require_room(cache, kind, made[0].nbytes, (images, rows, digests))
                    is_sized = True
                shelf.add(batch, made)
                for digest, made_row in zip(batch, made, strict=True):
                    put(digest, made_row)
                    del fitted[digest]
            tell(done - len(fitted), total)
        shelf.settle()
    if result is None:
        raise ValueError("no images to encode")
    for place, digest in enumerate(digests):
        if places[digest] != place:
            result[place] = result[places[digest]]
    result.flags.writeable = False
    return result


def _require_room(
    cache: CacheFolder, kind: Kind, row_bytes: int, request: tuple[Images, Indices, list[bytes]]
) -> None:
    """Refuse rows of this size that do not fit; some of the images have digests already."""
    images, rows, digests = request
    if len(rows) * row_bytes <= cache.limit:
        return
    # Images may repeat; reading the others costs little beside encoding them.
    needed = len({*digests, *image_digests(images, rows[len(digests) :])}) * row_bytes
    if needed > cache.limit:
        raise ConfigError(
            f"storage.cache_gib: {cache.limit / GIB:g} is too little for the {kind} of "
            f"{len(rows)} images; valid is at least {math.ceil(needed / GIB * 1e3) / 1e3}"
        )


def encode(
    encoder: Backbone | Squares, images: NDArray[np.uint8], kind: Kind, fewest: int = FEWEST
) -> NDArray[Any]:
    """Make rows of images (n, S, S, 3); a row does not depend on the other images."""
    if kind == "pixels":
        return images
    backbone = cast("Backbone", encoder)
    made = backbone.encode_images if kind == "features" else backbone.encode_tokens
    missing = max(0, fewest - len(images))
    filled = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
    return made(filled)[: len(images)]


def computation(fitter: Backbone | Squares) -> tuple[str, ...]:
    """Return everything on which a row depends beside its image."""
    libraries = (f"{name} {version(name)}" for name in LIBRARIES)
    # One kind of device computes alike, whatever its number.
    device = fitter.device.partition(":")[0]
    ours = f"decoding {DECODING_VERSION}"
    return (fitter.name, fitter.fingerprint, fitter.transform_digest, device, ours, *libraries)


Encoders = Callable[[Kind, Images, Indices], Rows]
"""Makes one kind of arrays of the wanted rows of all images; called only for what is needed.

Features are (n, d), tokens (n, T, w), and pixels images of the method's own size, or else the
model's, uint8 (n, S, S, 3).
"""
CHUNK: Final = 256
"""Examples that a method prepares at once."""


def prepared_arrays(
    method: Method, examples: Images | Sequence[str], rows: Indices, encoders: Encoders
) -> Mapping[str, Rows]:
    """Return the arrays that a method keeps of examples; row i belongs to example `rows[i]`.

    A `prepare` is refused if it returns another number of rows than it was given, or if its result
    for one example depends on the others.
    """
    inputs: dict[str, Rows] = {}
    if isinstance(examples, Sequence):
        if "text" in method.needs:
            longest = max((len(examples[row]) for row in rows.tolist()), default=0)
            inputs["text"] = MadeRows(
                *(rows, (), np.dtype(f"<U{max(longest, 1)}")),
                lambda some: np.array([examples[row] for row in some.tolist()], np.str_),
            )
    else:
        inputs = {kind: encoders(kind, examples, rows) for kind in KINDS if kind in method.needs}
    if not inputs:
        return {}
    first = {name: array[:CHUNK] for name, array in inputs.items()}
    kept = method.prepare(first)
    _require_rows(kept, len(rows[:CHUNK]))
    for row in {0, len(next(iter(first.values()))) - 1}:
        one = slice(row, row + 1)
        alone = method.prepare({name: array[one] for name, array in first.items()})
        for name, array in kept.items():
            if not _is_same(alone[name], array[one]):
                raise ConfigError(
                    f"method.name: its prepare makes another {name!r} of one example alone than in "
                    "a batch; valid is one that looks at each example by itself"
                )
    if first.keys() == kept.keys() and all(kept[name] is first[name] for name in first):
        # The method keeps its inputs as they are, so rows on the disk can stay there.
        return inputs
    # Written into place, because two copies of all rows might not fit into the memory.
    made = {n: np.empty((len(rows), *a.shape[1:]), a.dtype) for n, a in kept.items()}
    for start in range(0, len(rows), CHUNK):
        block = slice(start, start + CHUNK)
        if start:
            kept = method.prepare({name: array[block] for name, array in inputs.items()})
            _require_rows(kept, len(rows[block]))
        for name, array in kept.items():
            if not np.can_cast(array.dtype, made[name].dtype):
                # Else texts that are longer than all texts of earlier chunks would be cut off.
                wider = np.promote_types(array.dtype, made[name].dtype)
                made[name] = made[name].astype(wider)
            made[name][block] = array
    return made


def prepared_batch(
    method: Method, examples: NDArray[np.uint8] | Sequence[str], encoders: Encoders
) -> Arrays:
    """Return the arrays of a few images (n, H, W, 3) or texts, as `prepared_arrays` does."""
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


def _is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    # Integers may number words, so a difference of one means another word.
    if one.shape == other.shape and one.dtype.kind in "fc":
        return np.allclose(one, other, rtol=1e-3, atol=1e-4)
    return np.array_equal(one, other)


@dataclass(frozen=True)
class Squares:
    """Brings images to one size, by the policy that open_clip has for its models.

    It stands in for a model that computes on a processor and has no fingerprint.
    """

    image_size: int
    fingerprint: ClassVar[str] = ""
    device: ClassVar[str] = "cpu"

    @property
    def name(self) -> str:
        """The purpose of the images, in words."""
        return f"no model, {self.image_size} x {self.image_size}"

    @property
    def transform_digest(self) -> str:
        """SHA-256 of the preprocessing, in hexadecimal."""
        from methods.clip.image_tower import square_preprocessing

        text = json.dumps(asdict(square_preprocessing(self.image_size)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def fit(self, images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) of any sizes at this one, (n, S, S, 3)."""
        # Imported late: most runs need no images of a size of their own.
        from methods.clip.image_tower import fit_square

        return fit_square(images, self.image_size)


Telling = Callable[[str, int, int], None]
"""Hears the name of the work, and how many of how many images are done."""


def frozen_model(
    model: ModelConfig | None, device: str, plugins: Plugins | None = None
) -> Backbone | None:
    """Return the frozen model of a run, of a plug-in too; None where the configuration has none."""
    if model is None:
        return None
    plugins = plugins or Plugins()
    try:
        if model.name in plugins.of("model"):
            # Imported late: a method with a network of its own needs none of it.
            from methods.clip.own import own_model

            return own_model(model.name, model.pretrained, device, plugins)
        # A public model stays as it is; a file may be another one at the next run.
        load = _kept if is_public(model) else _loaded
        return load(model.name, model.pretrained, device)
    except MethodError as error:
        raise ConfigError(str(error)) from error


def _loaded(name: str, pretrained: str | None, device: str) -> Backbone:
    # Imported late: a method with a network of its own needs none of it.
    from methods.clip.adapter import load_backbone

    return load_backbone(name, pretrained, device)


# A data holder's process may take part in several runs, and a second copy costs memory.
_kept = lru_cache(maxsize=1)(_loaded)


def is_public(model: ModelConfig) -> bool:
    """Return whether name and tag identify a model: the shipped one, or open_clip's own tags."""
    # Imported late: a method with a network of its own needs none of it.
    from methods.clip.adapter import is_listed

    return is_listed(model.name, model.pretrained)


def cached_encoders(
    backbone: Backbone | None, cache: CacheFolder, tell: Telling, pixel_size: int | None = None
) -> Encoders:
    """Return encoders that read the cache first, and fill it; `tell` hears of progress.

    `pixel_size` is the side of the images that `pixels` makes, None for the model's own.
    """

    def encoders(kind: Kind, images: Images, rows: Indices) -> Rows:
        fitter = _fitter(backbone, kind, pixel_size)
        if kind == "pixels" and not isinstance(images, ImageFiles):
            # In memory already: resizing small images costs less than reading large ones.
            return MadeRows(
                *(rows, (fitter.image_size, fitter.image_size, 3), np.dtype(np.uint8)),
                lambda some: fitter.fit(np.asarray(images[some])),
            )
        telling = partial(tell, f"image {kind}")
        return cached_rows(fitter, images, rows, cache, kind=kind, progress=telling)

    return encoders


def plain_encoders(backbone: Backbone | None, pixel_size: int | None = None) -> Encoders:
    """Return encoders that keep nothing, for few images; see `cached_encoders`."""

    def encoders(kind: Kind, images: Images, rows: Indices) -> Rows:
        fitter = _fitter(backbone, kind, pixel_size)
        return encode(fitter, fitter.fit(images[rows]), kind, fewest=0)

    return encoders


def _fitter(backbone: Backbone | None, kind: Kind, pixel_size: int | None) -> Backbone | Squares:
    if kind == "pixels" and pixel_size is not None:
        return Squares(pixel_size)
    if backbone is None:
        raise ConfigError(
            "task.model: null is no model that could encode images; valid: a CLIP model"
        )
    return backbone

"""A data set: two splits of images, or of texts, with labels and domains; and arrays of rows.

Images lie in memory or in files, which are read when they are needed. Both kinds are indexed by row
numbers and give RGB images of their own sizes; a model's adapter brings them to one size. A file
must be a picture of a common format below the data set's own folder, and not larger than pictures
of known data sets.

The decoder does not apply a picture's orientation tag (EXIF), as in torchvision's folders and
CoOp's loaders, so that numbers compare with theirs. It drops transparency, takes the first frame of
an animation, and keeps the upper 8 of 16 bits: a rule that depends on no image. A TIFF file with
several pages is refused, because its first page may be any slice or channel.

Rows stand for arrays that may be larger than the memory: each class here reads or makes the rows
that are asked for.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import zlib
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from platform.errors import DataError

Indices = NDArray[np.int64]
MOST_PIXELS: Final = 80_000_000
"""Above any picture of the known data sets, and below the number at which Pillow warns by itself.

A small file can claim far more (a bomb).
"""
MOST_BYTES: Final = 256_000_000
"""Above any file of `MOST_PIXELS` pixels, which take three bytes each at most."""
DECODING_VERSION: Final = 2
"""Raise this number whenever `decode` gives other pixels: cached rows depend on it."""
FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF")

_ROWS: Final = 256
_DAMAGE: Final = (
    *(OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError),
    *(OverflowError, AttributeError, NotImplementedError, struct.error, zlib.error, Warning),
)


class Images(Protocol):
    """Images by row number."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, rows: Indices, /) -> Any:
        """Return images of these rows, uint8 (H, W, 3) each; an array if all sizes are equal."""
        ...


@dataclass(frozen=True)
class ImageFiles:
    """Images that stay in their files until they are asked for.

    Attributes:
        root: Folder that all paths are relative to; no path may leave it.
        paths: One path a row, with forward slashes.
    """

    root: Path
    paths: tuple[str, ...]

    @cached_property
    def _resolved(self) -> Path:
        # Resolving links takes as long as reading a small file.
        return self.root.resolve()

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, rows: Indices, /) -> list[NDArray[np.uint8]]:
        """Return these rows' images, decoded; `DataError` if one cannot be read or is too large."""
        return [decode(self.bytes_of(int(row)), self.paths[int(row)]) for row in rows]

    def size_of(self, row: int) -> int:
        """Return a file's size in bytes, 0 where the size cannot be read."""
        try:
            return (self.root / self.paths[row]).stat().st_size
        # The later reading says what is wrong.
        except (OSError, ValueError):
            return 0

    def place_of(self, row: int) -> Hashable | None:
        """Return device and number of a file, the same for all links to it; None if missing."""
        try:
            status = (self.root / self.paths[row]).stat()
        except (OSError, ValueError):
            return None
        return (status.st_dev, status.st_ino)

    def bytes_of(self, row: int) -> bytes:
        """Return a file as it is.

        `DataError` if it cannot be read, lies outside the root once links are followed, is no
        regular file, or is too large.
        """
        path = self.root / self.paths[row]
        try:
            target = path.resolve(strict=True)
            is_inside, mode = target.is_relative_to(self._resolved), target.stat().st_mode
            # A pipe would never end, and a device has no size.
            if is_inside and stat.S_ISREG(mode):
                with target.open("rb") as file:
                    # Python makes room for all bytes asked for, so the size is the limit.
                    data = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES) + 1)
                if len(data) > MOST_BYTES:
                    raise DataError.at(path, "is too large", f"at most {MOST_BYTES:,} bytes")
                return data
        # An impossible path is a ValueError, and a loop of links a RuntimeError.
        except (OSError, ValueError, RuntimeError) as error:
            known = error.strerror if isinstance(error, OSError) else None
            reason = known or type(error).__name__
            raise DataError.at(path, f"cannot be read ({reason})", "an image file") from error
        reason = "is no regular file" if is_inside else f"leads out of {str(self.root)!r}"
        raise DataError(f"task.root: {str(path)!r} {reason}; valid is an image file below it")


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return an image file's pixels, uint8 (H, W, 3); `name` is for errors.

    `DataError` if it is no image of a known format, is cut off, or has too many pixels.
    """
    # Imported late: a run on rendered images needs no decoder.
    from PIL import Image, ImageFile, UnidentifiedImageError

    # Other packages, such as WeasyPrint, let all of a process fill cut-off images with grey.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            # The size is in the header; nothing large has been allocated yet.
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(name, f"claims {image.width} x {image.height} pixels")
            if image.format == "TIFF":
                _require_plain(image, name)
            made = np.empty((image.height, image.width, 3), np.uint8)
            for top in range(0, image.height, _ROWS):
                bottom = min(top + _ROWS, image.height)
                strip = image.crop((0, top, image.width, bottom))
                if strip.mode.startswith("I"):
                    # Pillow cuts these off at 255, and of coloured images keeps the upper bits.
                    made[top:bottom] = np.clip(np.asarray(strip) >> 8, 0, 255)[..., None]
                    continue
                if strip.mode == "P" and "transparency" in strip.info:
                    # The colours are the same, and Pillow does not warn of the lost transparency.
                    strip = strip.convert("RGBA")
                made[top:bottom] = np.asarray(strip.convert("RGB"))
            return made
    # Pillow raises the first far above our limit, and the second where warnings are errors.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, "claims more pixels than any data set's") from error
    except UnidentifiedImageError as error:
        raise DataError.at(repr(name), "is no image", f"one of {', '.join(FORMATS)}") from error
    # Decoders raise many kinds of errors at a damaged file.
    except _DAMAGE as error:
        what = f"is a damaged image ({type(error).__name__})"
        raise DataError.at(repr(name), what, "one that decodes") from error


def image_digests(images: Images, rows: Indices) -> list[bytes]:
    """Return a SHA-256 digest of each image's content, 32 bytes; `DataError` if it is unreadable.

    The digest of a file covers its bytes, that of an array its shape and values; neither depends on
    the image's place.
    """
    if isinstance(images, ImageFiles):
        return [hashlib.sha256(images.bytes_of(int(row))).digest() for row in rows]
    digests = []
    for i in range(len(rows)):
        image = np.asarray(images[rows[i : i + 1]])
        shape = f"{image.shape[1:]}{image.dtype.str}\0".encode()
        digests.append(hashlib.sha256(shape + np.ascontiguousarray(image).tobytes()).digest())
    return digests


def _require_plain(image: Any, name: str) -> None:
    """Refuse a TIFF file of several pages, and values that have no fixed place in 8 bits."""
    with suppress(EOFError):
        image.seek(1)
        raise DataError.at(repr(name), "has several pages", "one, such as one of a stack")
    # The tags are the bits of a value, and whether 0 is white.
    bits, is_white = image.tag_v2.get(258, (1,)), image.tag_v2.get(262) == 0
    is_grey = image.mode.startswith("I;16") and bits == (16,) and not is_white
    if image.mode[0] in "IF" and not is_grey:
        what = f"has values of {bits[0]} bits in the mode {image.mode}"
        raise DataError.at(repr(name), what, "8 bits, or 16 without a sign from black to white")


def _too_large(name: str, what: str) -> DataError:
    return DataError(f"task.root: {name!r} {what}; valid are at most {MOST_PIXELS:,} in all")


Modality = Literal["images", "texts"]


@dataclass(frozen=True)
class Split:
    """Examples with their labels and domains; row i of each array is of example i.

    Attributes:
        images: RGB images by row number; empty where the examples are texts.
        labels: Index into `Dataset.classes`, int64 (n,).
        domains: Index into `Dataset.domains`, int64 (n,).
        texts: The texts, None where the examples are images.
    """

    images: Images
    labels: NDArray[np.int64]
    domains: NDArray[np.int64]
    texts: tuple[str, ...] | None = None

    @property
    def num_examples(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def only(self, rows: NDArray[np.int64]) -> Split:
        """Return these rows of images in memory."""
        return Split(self.images[rows], self.labels[rows], self.domains[rows])


def joined(parts: Sequence[Split]) -> Split:
    """Return the rows of all parts in order, as images in memory; all must have one size."""
    return Split(
        np.concatenate([part.images[np.arange(len(part.labels))] for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.domains for part in parts]),
    )


def content_digests(split: Split, rows: Indices) -> list[bytes]:
    """Return a SHA-256 digest of each row's content, as `image_digests` does; texts as UTF-8."""
    if split.texts is None:
        return image_digests(split.images, rows)
    return [hashlib.sha256(split.texts[row].encode()).digest() for row in rows.tolist()]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: Name as in `task.dataset`.
        classes: Class names in label order, in the words that captions use.
        domains: Domain names in domain-index order.
        train: Examples that are shared out to clients.
        test: Examples that no client trains on.
        validation: Rows of `train` that files hold back for validation.
        holds_back: Indices of the domains whose files have a place for validation images, also if
            the place is empty: a client of such a domain validates with nothing else.
        recognised: Sentences about a layout that the loader recognised by itself.
        superclasses: The superclass of each class, in label order; empty without superclasses.
        domains_are: What the domains are, in a word for people.
        faults: Sentences on what was left out; a run refuses the data set with them.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    train: Split
    test: Split
    validation: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    holds_back: tuple[int, ...] = ()
    recognised: tuple[str, ...] = ()
    superclasses: tuple[int, ...] = ()
    domains_are: Literal["domains", "clients"] = "domains"
    faults: tuple[str, ...] = ()

    @property
    def modality(self) -> Modality:
        """The kind of the examples."""
        return "images" if self.train.texts is None else "texts"

    def merged(self) -> Dataset:
        """Return a data set in which both sides are one pool: training, then test examples.

        Some partitions deal out all examples before each client splits its own: training and test
        rows are then rows of the same split, and each client keeps them disjoint. `DataError` if
        the two sides are not of one kind.
        """
        train, test = self.train, self.test
        texts = None if train.texts is None else (*train.texts, *(test.texts or ()))
        pool = Split(
            self._all_images(),
            np.concatenate([train.labels, test.labels]),
            np.concatenate([train.domains, test.domains]),
            texts,
        )
        return replace(self, train=pool, test=pool)

    def _all_images(self) -> Images:
        one, other = self.train.images, self.test.images
        if isinstance(one, ImageFiles) and isinstance(other, ImageFiles):
            if one.root == other.root:
                return replace(one, paths=one.paths + other.paths)
        elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            if one.shape[1:] == other.shape[1:]:
                return np.concatenate([one, other])
        raise DataError(
            f"task.partition.kind: shared_ratio puts training and test images together, and those "
            f"of {self.name} are not of one kind; valid: images in one folder, or of one size"
        )


class Rows(Protocol):
    """An array (n, ...), or an object with the same indices along its first axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, rows: slice | Indices, /) -> NDArray[Any]:
        """Return an array of these rows."""
        ...


@dataclass(frozen=True, eq=False)
class MadeRows:
    """Rows that are made when they are asked for, as if they were an array (n, ...).

    An array of texts takes the room of the longest text for each, so few are made at once.

    Attributes:
        chosen: Row numbers of the examples, (n,).
        row_shape: Shape of one row.
        dtype: Type that holds any of the values.
        make: Makes the rows of some examples.
    """

    chosen: Indices
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    make: Callable[[Indices], NDArray[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return (len(self), *self.row_shape)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.chosen)

    def __getitem__(self, rows: slice | Indices, /) -> NDArray[Any]:
        """Return a new array of these rows."""
        return self.make(self.chosen[rows])

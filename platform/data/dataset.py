"""A data set: two splits of images, or of texts, with labels and domains.

Images lie in memory or in files, which are read when they are needed. Both kinds are indexed by row
numbers and give RGB images of their own sizes; a model's adapter brings those to one size. A file
must be a picture of a common format below the data set's own folder, and not larger than those of
any data set.

A picture's orientation tag (EXIF) is not applied, as in torchvision's folders and CoOp's loaders,
so that numbers compare with theirs. Transparency is dropped, the first frame stands for an
animation, and 16 bits become 8 by their share of the largest value.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from platform.errors import DataError

Indices = NDArray[np.int64]
MOST_PIXELS: Final = 80_000_000
"""Above any picture of the known data sets; a small file can claim far more (a bomb).

Below the number at which Pillow warns by itself.
"""
MOST_BYTES: Final = 256_000_000
"""Above any file of `MOST_PIXELS` pixels, which take three bytes each at most."""
DECODING_VERSION: Final = 1
"""To be raised with every change of what `decode` makes of any file: cached rows depend on it."""
FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM")

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
        """RGB images of these rows, uint8 (H, W, 3) each; an array where all sizes are equal."""
        ...


@dataclass(frozen=True)
class ImageFiles:
    """Images that stay in their files until they are asked for.

    Attributes:
        root: Folder that all paths are relative to, and that none leaves.
        paths: One path a row, with forward slashes.
    """

    root: Path
    paths: tuple[str, ...]

    @cached_property
    def _resolved(self) -> Path:
        """The root without links; resolving takes as long as reading a small file."""
        return self.root.resolve()

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, rows: Indices, /) -> list[NDArray[np.uint8]]:
        """Return the decoded images of these rows.

        Raises:
            DataError: If one cannot be read, is no image, or is too large.
        """
        return [decode(self.bytes_of(int(row)), self.paths[int(row)]) for row in rows]

    def size_of(self, row: int) -> int:
        """Return a file's size in bytes, 0 where it cannot be told."""
        try:
            return (self.root / self.paths[row]).stat().st_size
        # Reading it will say what is wrong.
        except (OSError, ValueError):
            return 0

    def place_of(self, row: int) -> Hashable | None:
        """Return device and number of a file, the same for all links to it; None if not there."""
        try:
            status = (self.root / self.paths[row]).stat()
        except (OSError, ValueError):
            return None
        return (status.st_dev, status.st_ino)

    def bytes_of(self, row: int) -> bytes:
        """Return a file as it is.

        Raises:
            DataError: If it cannot be read, lies outside the root once links are followed, is no
                regular file, or is too large.
        """
        path = self.root / self.paths[row]
        try:
            target = path.resolve(strict=True)
            is_inside, mode = target.is_relative_to(self._resolved), target.stat().st_mode
            # A pipe would never end, and a device has no size.
            if is_inside and stat.S_ISREG(mode):
                with target.open("rb") as file:
                    # Python makes room for all it is asked for, so it is asked for no more than
                    # there should be.
                    data = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES) + 1)
                if len(data) > MOST_BYTES:
                    raise DataError(
                        f"task.root: {str(path)!r} is too large; valid are at most "
                        f"{MOST_BYTES:,} bytes"
                    )
                return data
        # A path that is none is a ValueError, and a loop of links is a RuntimeError.
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(
                f"task.root: {str(path)!r} cannot be read ({_reason(error)}); valid is an image "
                "file"
            ) from error
        reason = "is no regular file" if is_inside else f"leads out of {str(self.root)!r}"
        raise DataError(f"task.root: {str(path)!r} {reason}; valid is an image file below it")


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return an image file's pixels, uint8 (H, W, 3).

    Args:
        data: The file.
        name: How errors call it.

    Raises:
        DataError: If it is no image of a known format, is cut off, or has too many pixels.
    """
    # Imported late: a run on rendered images needs no decoder.
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            # The size is in the header; nothing large has been allocated yet.
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(name, f"claims {image.width} x {image.height} pixels")
            return _rgb(image)
    # One is raised far above our limit; the other is raised where warnings are errors.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, "claims more pixels than any data set's") from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"task.root: {name!r} is no image; valid formats: {', '.join(FORMATS)}"
        ) from error
    # Decoders raise what they like at a file that is cut off or damaged.
    except _DAMAGE as error:
        raise DataError(
            f"task.root: {name!r} is a damaged image ({type(error).__name__}); valid is one that "
            "decodes"
        ) from error


def image_digests(images: Images, rows: Indices) -> list[bytes]:
    """Return digests that tell these images' contents from all others': SHA-256, 32 bytes each.

    The digest of a file covers its bytes, that of an array its shape and values; neither depends on
    where the image lies.

    Raises:
        DataError: If a file cannot be read.
    """
    if isinstance(images, ImageFiles):
        return [hashlib.sha256(images.bytes_of(int(row))).digest() for row in rows]
    digests = []
    for i in range(len(rows)):
        image = np.asarray(images[rows[i : i + 1]])
        shape = f"{image.shape[1:]}{image.dtype.str}\0".encode()
        digests.append(hashlib.sha256(shape + np.ascontiguousarray(image).tobytes()).digest())
    return digests


def _rgb(image: Any) -> NDArray[np.uint8]:
    """Return a decoded image's colours.

    The colours are taken by strips: a file of a few kilobytes may have so many pixels that each
    copy of all of them takes a third of a gigabyte.
    """
    made = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, _ROWS):
        bottom = min(top + _ROWS, image.height)
        strip = image.crop((0, top, image.width, bottom))
        if strip.mode.startswith("I"):
            # Pillow cuts these values off at 255 instead of scaling them.
            made[top:bottom] = np.clip(np.asarray(strip) // 257, 0, 255)[..., None]
            continue
        if strip.mode == "P" and "transparency" in strip.info:
            # The colours are the same this way, and Pillow does not warn that it drops something.
            strip = strip.convert("RGBA")
        made[top:bottom] = np.asarray(strip.convert("RGB"))
    return made


def _too_large(name: str, what: str) -> DataError:
    return DataError(f"task.root: {name!r} {what}; valid are at most {MOST_PIXELS:,} in all")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


Modality = Literal["images", "texts"]


@dataclass(frozen=True)
class Split:
    """Examples with what is known about them, row i of each being example i.

    Attributes:
        images: RGB images by row number; none where the examples are texts.
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
    """Return digests that tell the contents of these rows from all others: SHA-256, 32 bytes each.

    Raises:
        DataError: If an image cannot be read.
    """
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
        validation: Rows of `train` that files hold back: who has them validates with them.
        holds_back: Indices of the domains whose files have a place for validation images, whether
            or not any lies there: who has one of these validates with nothing else.
        recognised: What was made of files whose layout nobody told, a sentence each.
        superclasses: Of each class, in label order, which of its superclasses it belongs to; none
            where the data set has none.
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

    @property
    def modality(self) -> Modality:
        """What the examples are."""
        return "images" if self.train.texts is None else "texts"

    def merged(self) -> Dataset:
        """Return training and test examples, in this order, as one pool, which is both sides.

        Some partitions deal out all examples before each client splits its own: training and test
        rows are then rows of the same split, and each client keeps them disjoint.

        Raises:
            DataError: If the two are not of one kind.
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

"""Images in memory or in files, read when they are needed.

Both kinds are indexed by row numbers and give RGB images of their own sizes; a model's adapter
brings those to one size. A file is opened only if it is what it says: a picture of a common format,
not larger than any data set's, below the data set's own folder.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from platform.errors import DataError

Indices = NDArray[np.int64]
MOST_PIXELS: Final = 100_000_000
"""Above any picture of the known data sets; a small file can claim far more (a bomb)."""
FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM")


class Images(Protocol):
    """Images by row number."""

    def __len__(self) -> int:
        """Number of images."""
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

    def __len__(self) -> int:
        """Number of files."""
        return len(self.paths)

    def __getitem__(self, rows: Indices, /) -> list[NDArray[np.uint8]]:
        """The decoded images of these rows.

        Raises:
            DataError: If one cannot be read, is no image, or is too large.
        """
        return [decode(self.bytes_of(int(row)), self.paths[int(row)]) for row in rows]

    def bytes_of(self, row: int) -> bytes:
        """A file as it is.

        Raises:
            DataError: If it cannot be read.
        """
        try:
            return (self.root / self.paths[row]).read_bytes()
        except OSError as error:
            raise DataError(
                f"task.root: {str(self.root / self.paths[row])!r} cannot be read "
                f"({error.strerror}); valid is an image file"
            ) from error


def decode(data: bytes, name: str) -> NDArray[np.uint8]:
    """An image file's pixels, uint8 (H, W, 3).

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
                raise DataError(
                    f"task.root: {name!r} claims {image.width} x {image.height} pixels; valid are "
                    f"at most {MOST_PIXELS:,} in all"
                )
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(
            f"task.root: {name!r} is no image; valid formats: {', '.join(FORMATS)}"
        ) from error
    # Decoders raise what they like at a file that is cut off or damaged.
    except (OSError, SyntaxError, ValueError, IndexError) as error:
        raise DataError(
            f"task.root: {name!r} is a damaged image ({type(error).__name__}); valid is one that "
            "decodes"
        ) from error


def image_digests(images: Images, rows: Indices) -> list[bytes]:
    """What tells these images' contents from all others': SHA-256, 32 bytes each.

    Of a file its bytes, of an array its shape and values; neither depends on where it lies.

    Raises:
        DataError: If a file cannot be read.
    """
    if isinstance(images, ImageFiles):
        return [hashlib.sha256(images.bytes_of(int(row))).digest() for row in rows]
    return [_array_digest(np.asarray(images[rows[i : i + 1]])) for i in range(len(rows))]


def _array_digest(image: NDArray[np.uint8]) -> bytes:
    shape = f"{image.shape[1:]}{image.dtype.str}\0".encode()
    return hashlib.sha256(shape + np.ascontiguousarray(image).tobytes()).digest()

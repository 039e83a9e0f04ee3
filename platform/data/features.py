"""Image features, computed once per image and model, and kept on disk.

The key is the model's name and weights' digest, its transform and the images' digest, so that no
change of any of them can meet a stale file. Files are NumPy arrays, memory-mapped, shared by all
simulated clients; a file is written under another name first, so that a reader never sees half.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Progress = Callable[[int, int], None]
CHUNK = 256


class ImageEncoder(Protocol):
    """The part of the backbone that encodes images."""

    @property
    def fingerprint(self) -> str:
        """Digest of name and weights."""
        ...

    @property
    def transform_digest(self) -> str:
        """Digest of the preprocessing."""
        ...

    def encode_images(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features (n, d) of images (n, H, W, 3)."""
        ...


def cached_features(
    encoder: ImageEncoder,
    images: NDArray[np.uint8],
    folder: Path,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Features (n, d) of images (n, H, W, 3), from the cache if they are there.

    Args:
        encoder: The frozen image encoder.
        images: The images.
        folder: Where the cache lies; made if missing.
        progress: Told how many of how many images are encoded.
    """
    path = folder / f"{_key(encoder, images)}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, _encode(encoder, images, progress))
    features: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    return features


def _key(encoder: ImageEncoder, images: NDArray[np.uint8]) -> str:
    digest = hashlib.sha256()
    for part in (encoder.fingerprint, encoder.transform_digest, str(images.shape)):
        digest.update(part.encode() + b"\0")
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


def _encode(
    encoder: ImageEncoder, images: NDArray[np.uint8], progress: Progress | None
) -> NDArray[np.float32]:
    parts = []
    for start in range(0, len(images), CHUNK):
        parts.append(encoder.encode_images(images[start : start + CHUNK]))
        if progress is not None:
            progress(min(start + CHUNK, len(images)), len(images))
    return np.concatenate(parts)


def _write(path: Path, features: NDArray[np.float32]) -> None:
    partial = path.with_suffix(f".{os.getpid()}.part")
    with partial.open("wb") as file:
        np.save(file, features, allow_pickle=False)
    partial.replace(path)

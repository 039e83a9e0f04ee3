"""Rows that a frozen image tower makes of images, computed once per image and model, kept on disk.

The cache finds a row by the digest of its image, among the rows of one kind, model, transform,
device and versions of the libraries. A change of any of these never meets a stale row, and runs
that share images share the work. Images are read one by one, encoded in small batches and written
every so many batches: neither the images nor their rows need fit into the memory, and an
interrupted encoding goes on where it was.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from platform.data.cache import (
    About,
    CacheFolder,
    Kind,
    Shelf,
    evict,
    remove_leftovers,
    write_about,
)
from platform.data.dataset import (
    DECODING_VERSION,
    ImageFiles,
    Images,
    Indices,
    decode,
    image_digests,
)
from platform.data.rows import Rows
from platform.errors import ConfigError

Progress = Callable[[int, int], None]
BATCH: Final = 64
"""Images in memory at once."""
FEWEST: Final = 32
"""In a batch, filled up with one image again and again: the last bits of what a matrix product
makes of a row depend on whether it has a handful of rows or more, and which other images are new
is chance."""
GIB: Final = 2**30
LEFTOVER_SECONDS: Final = 86_400.0
LIBRARIES: Final = ("torch", "torchvision", "open_clip_torch", "pillow")
"""Whose versions may change the bits of a row."""


class ImageFitter(Protocol):
    """Brings images to one size."""

    @property
    def name(self) -> str:
        """The model's name, or in words the purpose of the images."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of weights and architecture; empty without a model."""
        ...

    @property
    def transform_digest(self) -> str:
        """Digest of the preprocessing."""
        ...

    @property
    def device(self) -> str:
        """Where it computes, e.g. "cpu" or "cuda:0"."""
        ...

    def fit(self, images: NDArray[np.uint8] | Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) of any sizes at one size, (n, S, S, 3)."""
        ...


class ImageEncoder(ImageFitter, Protocol):
    """The part of the backbone that encodes images."""

    def encode_images(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return features (n, d) of images (n, S, S, 3)."""
        ...

    def encode_tokens(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return tokens (n, T, w) of images (n, S, S, 3)."""
        ...


def cached_rows(
    encoder: ImageEncoder,
    images: Images,
    rows: Indices,
    cache: CacheFolder,
    *,
    kind: Kind = "features",
    progress: Progress | None = None,
) -> Rows:
    """Return features, tokens or fitted pixels of images, from the cache as far as it has them.

    Args:
        encoder: The frozen image encoder.
        images: All images.
        rows: Which of them, at least one.
        cache: Where rows are kept.
        kind: What is made of each image.
        progress: Told how many of how many images are done.

    Returns:
        Row i is of image `rows[i]`; read-only.

    Raises:
        DataError: If an image cannot be read.
        ConfigError: If the rows are more than the cache may hold, or it cannot be written.
    """
    make = partial(encode, encoder, kind=kind)
    filling = _Filling(encoder, kind, make, request=(images, rows), cache=cache, now=time.time())
    return filling.run(progress or (lambda done, total: None))


def cached_pixels(
    fitter: ImageFitter, images: Images, rows: Indices, cache: CacheFolder, *, progress: Progress
) -> Rows:
    """Return images at one size, from the cache as far as it has them; see `cached_rows`."""
    request = (images, rows)
    filling = _Filling(
        fitter, "pixels", lambda fitted: fitted, request=request, cache=cache, now=time.time()
    )
    return filling.run(progress)


def encode(encoder: ImageEncoder, images: NDArray[np.uint8], kind: Kind) -> NDArray[Any]:
    """Make rows of images (n, S, S, 3), each as if it were in any other company."""
    if kind == "pixels":
        return images
    made = encoder.encode_images if kind == "features" else encoder.encode_tokens
    missing = max(0, FEWEST - len(images))
    filled = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
    return made(filled)[: len(images)]


def computation(fitter: ImageFitter) -> tuple[str, ...]:
    """Return everything that a row depends on beside its image."""
    libraries = (f"{name} {version(name)}" for name in LIBRARIES)
    # One kind of device computes alike, whatever its number.
    device = fitter.device.partition(":")[0]
    ours = f"decoding {DECODING_VERSION}"
    return (fitter.name, fitter.fingerprint, fitter.transform_digest, device, ours, *libraries)


class _Filling:
    """One request: its images are looked up, and new ones encoded."""

    def __init__(
        self,
        fitter: ImageFitter,
        kind: Kind,
        make: Callable[[NDArray[np.uint8]], NDArray[Any]],
        *,
        request: tuple[Images, Indices],
        cache: CacheFolder,
        now: float,
    ) -> None:
        folder = cache.model_folder(kind, computation(fitter))
        with _one_sentence(cache, "read"):
            remove_leftovers(folder, now - LEFTOVER_SECONDS)
            self._shelf = Shelf(folder)
        self._fitter, self._kind, self._make = fitter, kind, make
        self._images, self._rows = request
        self._cache = cache
        self._digests: list[bytes] = []
        self._about: About | None = None
        # Images that are read, at the model's size, and not encoded yet.
        self._fitted: dict[bytes, NDArray[np.uint8]] = {}

    def run(self, tell: Progress) -> Rows:
        """Look all images up, encode and save those that are new, and return all rows."""
        total = len(self._rows)
        # The first batch of a large model takes a while.
        tell(0, total)
        try:
            for start in range(0, total, BATCH):
                self._take(self._rows[start : start + BATCH])
                done = len(self._digests)
                self._encode(all_of_it=done == total)
                tell(done - len(self._fitted), total)
        except BaseException:
            # Also after an error or an interrupt, encoded rows are saved, so that nobody encodes
            # them again. The user has to know the first error, not one of saving.
            with suppress(ConfigError):
                self._save()
            raise
        self._save()
        for segment in self._shelf.used:
            # Another process may have removed it, or the folder may be read-only.
            with suppress(OSError):
                os.utime(segment.digests_path)
        if self._about is not None:
            with _one_sentence(self._cache, "read"):
                evict(self._cache, set(self._shelf.used))
        return self._shelf.rows(self._digests)

    def _take(self, rows: Indices) -> None:
        for row in rows.tolist():
            files, at = self._images, np.array([row])
            if isinstance(files, ImageFiles):
                # A file is read once for both its digest and its pixels.
                data = files.bytes_of(row)
                digest = hashlib.sha256(data).digest()
            else:
                (digest,) = image_digests(files, at)
            self._digests.append(digest)
            if digest not in self._fitted and not self._shelf.has(digest):
                if isinstance(files, ImageFiles):
                    picture = decode(data, files.paths[row])
                else:
                    picture = np.asarray(files[at])[0]
                self._fitted[digest] = self._fitter.fit(picture[None])[0]

    def _encode(self, *, all_of_it: bool) -> None:
        """Encode the waiting images, in full batches or all of them."""
        while self._fitted and (all_of_it or len(self._fitted) >= BATCH):
            batch = list(self._fitted)[:BATCH]
            rows = self._make(np.stack([self._fitted[digest] for digest in batch]))
            if self._about is None:
                self._require_room(rows[0].nbytes)
                fitter, shape = self._fitter, rows.shape[1:]
                self._about = About(fitter.name, fitter.fingerprint, self._kind, shape)
            self._shelf.add(batch, rows)
            if self._shelf.is_full:
                self._save()
            for digest in batch:
                del self._fitted[digest]

    def _save(self) -> None:
        if self._about is None:
            return
        with _one_sentence(self._cache, "written to"):
            self._shelf.save()
            write_about(self._shelf.folder, self._about)

    def _require_room(self, row_bytes: int) -> None:
        """Refuse rows that the cache cannot keep once a row's size is known, not hours later."""
        total = len(self._rows)
        if total * row_bytes <= self._cache.limit:
            return
        # Images may repeat; reading the others costs little beside encoding them.
        others = image_digests(self._images, self._rows[len(self._digests) :])
        needed = len({*self._digests, *others}) * row_bytes
        if needed > self._cache.limit:
            raise ConfigError(
                f"storage.cache_gib: {self._cache.limit / GIB:g} is too little for the "
                f"{self._kind} of {total} images; valid is at least "
                f"{math.ceil(needed / GIB * 1e3) / 1e3}"
            )


@contextmanager
def _one_sentence(cache: CacheFolder, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        valid = "a folder of this user, on a disk with room"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            valid = "a higher limit of open files (ulimit -n), or a cache that is cleared"
        raise ConfigError(
            f"storage.url: its cache folder {str(cache.path)!r} cannot be {what} ({reason}); valid "
            f"is {valid}"
        ) from error

"""What a frozen image tower makes of images, computed once per image and model, kept on disk.

A row is found by the digest of its image, among those of one kind, model, transform, device and
versions of the libraries, so no change of any of them can meet a stale row, and runs that share
images share the work. Images are
read one by one, encoded in small batches and written every so many, so that neither they nor what
is made of them need fit into the memory, and an interrupted encoding goes on where it was.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    """What brings images to one size."""

    @property
    def name(self) -> str:
        """The model's name, or in words what it is for."""
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
        """Return images (H, W, 3) of any sizes at its own, (n, S, S, 3)."""
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
    """Return features, tokens or fitted pixels of images, from the cache as far as they are there.

    Args:
        encoder: The frozen image encoder.
        images: All images.
        rows: Which of them, at least one.
        cache: Where rows are kept.
        kind: What is made of each image.
        progress: Told how many of how many images are done.

    Returns:
        Row i is of image `rows[i]`; nobody may write to it.

    Raises:
        DataError: If an image cannot be read.
        ConfigError: If the cache may not be as large as what is asked for, or cannot be written.
    """
    tell = progress or (lambda done, total: None)
    making = Making(encoder, kind, partial(encode, encoder, kind=kind))
    return _cached_rows(making, images, rows, cache, tell=tell, now=time.time())


def cached_pixels(
    fitter: ImageFitter, images: Images, rows: Indices, cache: CacheFolder, *, progress: Progress
) -> Rows:
    """Return images at one size, from the cache as far as they are there; see `cached_rows`."""
    making = Making(fitter, "pixels", lambda fitted: fitted)
    return _cached_rows(making, images, rows, cache, tell=progress, now=time.time())


def encode(encoder: ImageEncoder, images: NDArray[np.uint8], kind: Kind) -> NDArray[Any]:
    """Make rows of images (n, S, S, 3), each as if it were in any other company."""
    if kind == "pixels":
        return images
    made = encoder.encode_images if kind == "features" else encoder.encode_tokens
    missing = max(0, FEWEST - len(images))
    filled = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
    return made(filled)[: len(images)]


@dataclass(frozen=True)
class Making:
    """How rows of one kind are made.

    Attributes:
        fitter: What brings images to one size.
        kind: What the rows are.
        make: From images (n, S, S, 3) to rows, each as if it were in any other company.
    """

    fitter: ImageFitter
    kind: Kind
    make: Callable[[NDArray[np.uint8]], NDArray[Any]]


def _cached_rows(
    making: Making,
    images: Images,
    rows: Indices,
    cache: CacheFolder,
    *,
    tell: Progress,
    now: float,
) -> Rows:
    folder = cache.model_folder(making.kind, computation(making.fitter))
    with _one_sentence(cache, "read"):
        remove_leftovers(folder, now - LEFTOVER_SECONDS)
        shelf = Shelf(folder)
    filling = _Filling(making, shelf, request=(images, rows), cache=cache)
    try:
        filling.run(tell)
    except BaseException:
        # Also after an error or an interrupt: what is encoded need not be encoded again. But why
        # it ended is what the user has to know.
        with suppress(ConfigError):
            filling.save()
        raise
    filling.save()
    for segment in shelf.used:
        # Another process may have removed it, or the folder may be for reading only.
        with suppress(OSError):
            os.utime(segment.digests_path)
    if filling.about is not None:
        with _one_sentence(cache, "read"):
            evict(cache, set(shelf.used))
    return shelf.rows(filling.digests)


def computation(fitter: ImageFitter) -> tuple[str, ...]:
    """Return all that a row depends on beside its image."""
    libraries = (f"{name} {version(name)}" for name in LIBRARIES)
    # One kind of device computes alike, whatever its number.
    device = fitter.device.partition(":")[0]
    ours = f"decoding {DECODING_VERSION}"
    return (fitter.name, fitter.fingerprint, fitter.transform_digest, device, ours, *libraries)


class _Filling:
    """One request while its images are looked up, and encoded where they are new."""

    def __init__(
        self,
        making: Making,
        shelf: Shelf,
        *,
        request: tuple[Images, Indices],
        cache: CacheFolder,
    ) -> None:
        self.digests: list[bytes] = []
        self.about: About | None = None
        self._making = making
        self._shelf = shelf
        self._images, self._rows = request
        self._cache = cache
        self._fitted: dict[bytes, NDArray[np.uint8]] = {}

    def run(self, tell: Progress) -> None:
        """Look all images up and encode those that are new."""
        total = len(self._rows)
        # The first batch of a large model takes a while.
        tell(0, total)
        for start in range(0, total, BATCH):
            self.take(self._rows[start : start + BATCH])
            done = len(self.digests)
            self.encode(all_of_it=done == total)
            tell(done - self.waiting, total)

    @property
    def waiting(self) -> int:
        """Number of images that are read but not encoded."""
        return len(self._fitted)

    def take(self, rows: Indices) -> None:
        """Look images up; what is new is kept at the model's size."""
        for i in range(len(rows)):
            digest, picture = _read(self._images, rows[i : i + 1])
            self.digests.append(digest)
            if digest not in self._fitted and not self._shelf.has(digest):
                self._fitted[digest] = self._making.fitter.fit(picture()[None])[0]

    def encode(self, *, all_of_it: bool) -> None:
        """Encode what waits for it, in full batches or all of it."""
        while self._fitted and (all_of_it or len(self._fitted) >= BATCH):
            batch = list(self._fitted)[:BATCH]
            fitted = np.stack([self._fitted[digest] for digest in batch])
            rows = self._making.make(fitted)
            if self.about is None:
                self._require_room(rows[0].nbytes)
                whose, kind = self._making.fitter, self._making.kind
                self.about = About(whose.name, whose.fingerprint, kind, rows.shape[1:])
            self._shelf.add(batch, rows)
            if self._shelf.is_full:
                self.save()
            for digest in batch:
                del self._fitted[digest]

    def save(self) -> None:
        """Write what is encoded.

        Raises:
            ConfigError: If that is not possible.
        """
        if self.about is None:
            return
        with _one_sentence(self._cache, "written to"):
            self._shelf.save()
            write_about(self._shelf.folder, self.about)

    def _require_room(self, row_bytes: int) -> None:
        """Refuse what cannot be kept as soon as a row's size is known, not hours later."""
        total = len(self._rows)
        if total * row_bytes <= self._cache.limit:
            return
        # It may be that images repeat; reading the others costs little beside encoding them.
        others = image_digests(self._images, self._rows[len(self.digests) :])
        needed = len({*self.digests, *others}) * row_bytes
        if needed > self._cache.limit:
            raise ConfigError(
                f"storage.cache_gib: {self._cache.limit / GIB:g} is too little for the "
                f"{self._making.kind} of {total} images; valid is at least "
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


def _read(images: Images, row: Indices) -> tuple[bytes, Callable[[], NDArray[np.uint8]]]:
    """Return an image's digest and how to get its pixels; a file is read once for both."""
    if isinstance(images, ImageFiles):
        data, name = images.bytes_of(int(row[0])), images.paths[int(row[0])]
        return hashlib.sha256(data).digest(), lambda: decode(data, name)
    (digest,) = image_digests(images, row)
    return digest, lambda: np.asarray(images[row])[0]

"""The cache of rows computed of images: segments, the shelf that finds rows, and the folder.

A segment is two files of one name: the rows as a NumPy array, and digests, 32 bytes each: first of
the images, then of the rows. The digest of a row shows that a disk or a cable has changed it. The
writer writes both files under another name first and never changes them later. The rows get their
name before the digests, and a segment exists if its digests do: a reader sees a whole segment or
none, also if the writer died. Names are random, so two writers never meet.

A row that the shelf has found stays readable if other processes remove its segment: the shelf maps
the segment at that moment (each map keeps a file open), or reads it if it is small. The shelf then
compares the row with its digest once; a row that does not fit counts as missing, and the shelf
removes its segment. New rows stay in memory until they fill a segment of bounded size.

The cache folder has one folder for each kind of rows, and below that one for each model and
transform, which holds segments and an `about.json` for people. The cache removes no other file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from platform.config import RunConfig
from platform.data.dataset import GatheredRows, Rows
from platform.disk.files import write_text, written
from platform.disk.opening import make_beside
from platform.errors import ConfigError
from storage.files import make_folder

ROWS: Final = ".npy"
DIGESTS: Final = ".digests"
PART: Final = ".part"
DIGEST_BYTES: Final = 32
ROW_PREFIX: Final = b"sotto-cached-row-v1\n"
ATTEMPTS: Final = 10
"""Attempts to write a segment; another process may clear its folder meanwhile."""


@dataclass(frozen=True)
class Segment:
    """The place of a segment: its folder, and the name of both files without their endings."""

    folder: Path
    name: str

    @property
    def rows_path(self) -> Path:
        """File of the rows."""
        return self.folder / f"{self.name}{ROWS}"

    @property
    def digests_path(self) -> Path:
        """File of the digests, touched whenever the segment is used."""
        return self.folder / f"{self.name}{DIGESTS}"

    def num_bytes(self) -> int:
        """Return the size of both files; 0 if another process has removed them."""
        with suppress(OSError):
            return self.rows_path.stat().st_size + self.digests_path.stat().st_size
        return 0

    def num_images(self) -> int:
        """Return the number of rows; 0 if another process has removed them."""
        with suppress(OSError):
            return self.digests_path.stat().st_size // (2 * DIGEST_BYTES)
        return 0

    def last_used(self) -> float:
        """Return the time of the last use, in seconds since 1970; 0 for a removed segment."""
        with suppress(OSError):
            return self.digests_path.stat().st_mtime
        return 0.0

    def remove(self) -> bool:
        """Remove both files if this user may; a process that has them mapped goes on reading."""
        with suppress(OSError):
            self.digests_path.unlink(missing_ok=True)
            self.rows_path.unlink(missing_ok=True)
            return True
        return False


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if the folder is missing or closed to this user."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def find_segments(folder: Path) -> list[Segment]:
    """Return the segments of a folder, by name; empty if the folder is missing."""
    found = (name for name in names_in(folder) if name.endswith(DIGESTS))
    return [Segment(folder, name.removesuffix(DIGESTS)) for name in found]


@dataclass(frozen=True)
class Digests:
    """The digest of each row's image, and the digests of the rows, one after the other."""

    images: Sequence[bytes]
    rows: bytes

    def fits(self, place: int, rows: NDArray[Any]) -> bool:
        """Return whether a row is as it was written."""
        kept = self.rows[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
        return row_digest(self.images[place], rows[place : place + 1]) == kept


def row_digest(image: bytes, row: NDArray[Any]) -> bytes:
    """Return SHA-256 of a marker, the image's digest, a row's type and shape, and its bytes.

    The digest shows accidents; an attacker who changes a row (1, ...) can compute its digest anew.
    """
    kind = f"{row.dtype.str} {row.shape[1:]}".encode("ascii")
    hasher = hashlib.sha256(ROW_PREFIX + image + len(kind).to_bytes(2, "big") + kind)
    hasher.update(np.ascontiguousarray(row).data)
    return hasher.digest()


def read_digests(segment: Segment) -> Digests:
    """Return a segment's digests; a damaged file is a ValueError."""
    data = segment.digests_path.read_bytes()
    if not data or len(data) % (2 * DIGEST_BYTES):
        raise ValueError(f"{len(data)} bytes are no digests")
    middle = len(data) // 2
    images = [data[i : i + DIGEST_BYTES] for i in range(0, middle, DIGEST_BYTES)]
    return Digests(images, data[middle:])


def open_rows(path: Path, count: int, into_memory: int) -> NDArray[Any]:
    """Return the `count` rows of a file, read-only; a damaged file is a ValueError.

    A file of at most `into_memory` bytes is read and closed. A larger file is mapped: it stays
    open, and readable even if another process removes it.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another version of the format")
            shape, is_turned, dtype = np.lib.format.read_array_header_1_0(file)
        # NumPy's parser raises any of these at bytes that are no header.
        except (EOFError, SyntaxError, TypeError, RecursionError, MemoryError, TokenError) as error:
            raise ValueError("no header of an array") from error
        if is_turned or dtype.hasobject:
            raise ValueError("not an array of rows")
        start, length = file.tell(), math.prod(shape) * dtype.itemsize
        if start + length != size or not shape or shape[0] != count:
            raise ValueError(f"{size} bytes are not {count} rows")
        if size > into_memory:
            return np.memmap(file, dtype, mode="r", offset=start, shape=shape)
        rows: NDArray[Any] = np.frombuffer(file.read(length), dtype).reshape(shape)
        return rows


def write_segment(
    folder: Path, digests: Digests, blocks: Sequence[NDArray[Any]], into_memory: int
) -> tuple[Segment, NDArray[Any]]:
    """Write rows under a name of their own, for this user only; return segment and open rows.

    The blocks have one dtype and differ in length only. If the segment cannot be written, no file
    of it is left.
    """
    for attempt in range(1, ATTEMPTS + 1):
        segment = Segment(folder, secrets.token_hex(16))
        paths = (segment.rows_path, segment.digests_path)
        parts = [path.with_name(path.name + PART) for path in paths]
        try:
            make_folder(folder)
            with written(parts[0]) as file:
                header = {
                    "descr": np.lib.format.dtype_to_descr(blocks[0].dtype),
                    "fortran_order": False,
                    "shape": (len(digests.images), *blocks[0].shape[1:]),
                }
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks:
                    file.write(np.ascontiguousarray(block).data)
            with written(parts[1]) as file:
                file.write(b"".join((*digests.images, digests.rows)))
            # Opened before other processes can find and remove it.
            rows = open_rows(parts[0], len(digests.images), into_memory)
            for part, path in zip(parts, paths, strict=True):
                part.replace(path)
            return segment, rows
        # Another process cleared the folder in between.
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise
        finally:
            # After a failure only, files of these names are left.
            for part in parts:
                part.unlink(missing_ok=True)
    raise FileNotFoundError(folder)


def remove_leftovers(folder: Path, before: float) -> None:
    """Remove the files that dead writers left in a folder: those not changed since `before`."""
    names = names_in(folder)
    whole = {name.removesuffix(DIGESTS) + ROWS for name in names if name.endswith(DIGESTS)}
    for name in names:
        if name in whole or not name.endswith((PART, ROWS)):
            continue
        with suppress(OSError):
            if (folder / name).stat().st_mtime < before:
                (folder / name).unlink()


SEGMENT_BYTES: Final = 128 * 2**20
SEGMENT_ROWS: Final = 2048
FIRST_ROWS: Final = 256
"""Segments grow with the rows of a request, so a killed writer loses at most half of its work."""
MEMORY_BYTES: Final = 256 * 2**20
"""Rows of at most this size are read into memory, where access is faster than in a mapped file."""
SMALL_BYTES: Final = 2**20
"""Segments of at most this size are read, while all of them together fit into `MEMORY_BYTES`."""
PLACE_BITS: Final = 32
PLACE_MASK: Final = (1 << PLACE_BITS) - 1


class Shelf:
    """Looks rows up by their images' digests, and adds rows; an unreadable folder is an OSError."""

    def __init__(self, folder: Path) -> None:
        """Read the digests of all segments in the folder."""
        self.folder = folder
        self._segments: list[Segment] = []
        self._digests: list[Digests] = []
        self._checked: dict[int, NDArray[np.bool_]] = {}
        self._mapped: dict[int, NDArray[Any]] = {}
        # Segment and place in one number: there may be a million of them.
        self._places: dict[bytes, int] = {}
        self._new: dict[bytes, None] = {}
        self._blocks: list[NDArray[Any]] = []
        self._saved = 0
        self._in_memory = 0
        for segment in find_segments(folder):
            try:
                self._enter(segment, read_digests(segment))
            except ValueError:
                segment.remove()
            # A segment that cannot be read now may still be good.
            except OSError:
                continue

    @property
    def used(self) -> list[Segment]:
        """Segments with rows that were found or added."""
        return [self._segments[number] for number in self._mapped]

    def has(self, digest: bytes) -> bool:
        """Return whether the shelf has a row of this image; a found row stays readable."""
        if digest in self._new:
            return True
        while (place := self._places.get(digest)) is not None:
            if self._is_good(place >> PLACE_BITS, place & PLACE_MASK):
                return True
        return False

    @property
    def is_full(self) -> bool:
        """Whether the added rows fill a segment."""
        size = sum(block.nbytes for block in self._blocks)
        rows = min(max(FIRST_ROWS, self._saved), SEGMENT_ROWS)
        return size >= SEGMENT_BYTES or len(self._new) >= rows

    def add(self, digests: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Add rows of images that have no row yet."""
        self._new.update(dict.fromkeys(digests))
        self._blocks.append(rows)

    def save(self) -> None:
        """Write the added rows."""
        if not self._new:
            return
        images = list(self._new)
        of_rows = (block[i : i + 1] for block in self._blocks for i in range(len(block)))
        pairs = zip(images, of_rows, strict=True)
        digests = Digests(images, b"".join(row_digest(image, row) for image, row in pairs))
        segment, rows = write_segment(self.folder, digests, self._blocks, self._room())
        number = self._enter(segment, digests)
        self._keep(number, rows)
        self._checked[number][:] = True
        self._saved += len(images)
        self._new, self._blocks = {}, []

    def rows(self, digests: Sequence[bytes]) -> Rows:
        """Return saved rows; row i is of the image with `digests[i]`."""
        places = np.fromiter((self._places[d] for d in digests), np.int64, len(digests))
        numbers = list(self._mapped)
        order = np.full(len(self._segments), -1, np.int64)
        order[numbers] = np.arange(len(numbers))
        found = GatheredRows(
            [self._mapped[number] for number in numbers],
            order[places >> PLACE_BITS],
            places & PLACE_MASK,
        )
        if found.nbytes > MEMORY_BYTES:
            return found
        small = found[:]
        small.flags.writeable = False
        return small

    def _enter(self, segment: Segment, digests: Digests) -> int:
        number = len(self._segments)
        self._segments.append(segment)
        self._digests.append(digests)
        start = number << PLACE_BITS
        self._places.update((digest, start + i) for i, digest in enumerate(digests.images))
        return number

    def _is_good(self, number: int, place: int) -> bool:
        """Return whether a row is as it was written; forget a row that is not."""
        if number not in self._mapped:
            return self._map(number, place)
        digests, checked = self._digests[number], self._checked[number]
        if not checked[place] and not digests.fits(place, self._mapped[number]):
            # The request relies on other rows of the segment, so they stay in memory.
            self._segments[number].remove()
            del self._places[digests.images[place]]
            return False
        checked[place] = True
        return True

    def _map(self, number: int, place: int) -> bool:
        """Open a segment for a row, or forget a segment that is damaged or was removed."""
        segment, digests = self._segments[number], self._digests[number]
        try:
            rows = open_rows(segment.rows_path, len(digests.images), self._room())
            if not digests.fits(place, rows):
                raise ValueError("a row that does not fit its digest")
            if any(known.shape[1:] != rows.shape[1:] for known in self._mapped.values()):
                raise ValueError("rows of another shape")
        # Digests are removed before rows, so a segment without rows is lost anyway.
        except (FileNotFoundError, ValueError):
            segment.remove()
        # After too many open files, for example, the rows may still be good for others.
        except OSError:
            pass
        else:
            self._keep(number, rows)
            self._checked[number][place] = True
            return True
        places = self._places.items()
        self._places = {digest: p for digest, p in places if p >> PLACE_BITS != number}
        return False

    def _room(self) -> int:
        """Return the largest size of a segment that may be read into memory."""
        return max(0, min(SMALL_BYTES, MEMORY_BYTES - self._in_memory))

    def _keep(self, number: int, rows: NDArray[Any]) -> None:
        self._mapped[number] = rows
        self._checked[number] = np.zeros(len(rows), np.bool_)
        if not isinstance(rows, np.memmap):
            self._in_memory += rows.nbytes


Kind = Literal["features", "tokens", "pixels"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ABOUT: Final = "about.json"
KEY_DIGITS: Final = 32


@dataclass(frozen=True)
class CacheFolder:
    """The folder of the cache, made at the first writing, and the most bytes in it."""

    path: Path
    limit: int

    def model_folder(self, kind: Kind, computation: Sequence[str]) -> Path:
        """Return the folder for rows of one kind and all that a row depends on beside images."""
        text = "\0".join((kind, *computation))
        return self.path / kind / hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def cache_folder(config: RunConfig) -> CacheFolder:
    """Return the cache beside a configuration's database, its folder made if missing."""
    folder = make_beside(config.storage.url, "cache")
    return CacheFolder(folder, int(config.storage.cache_gib * 2**30))


@dataclass(frozen=True)
class About:
    """A description, for people: model, its digest, the kind of rows, and a row's shape."""

    model: str
    fingerprint: str
    kind: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CachedRows:
    """The cached rows of one kind and model.

    Attributes:
        about: The content of `about.json`; None if the file is missing or unreadable.
        num_bytes: Size of all segments.
        last_used: In seconds since 1970, 0 without a segment.
    """

    folder: Path
    kind: Kind
    about: About | None
    images: int
    num_bytes: int
    last_used: float

    def is_of(self, model: str) -> bool:
        """Return whether this is the model's name, or the start of its fingerprint."""
        if self.about is None:
            return False
        return model == self.about.model or (
            len(model) >= 8 and self.about.fingerprint.startswith(model)
        )


def write_about(folder: Path, about: About) -> None:
    """Describe the rows of a folder, unless a description is there."""
    path = folder / ABOUT
    if path.exists():
        return
    # Another process may clear the folder at any moment.
    with suppress(FileNotFoundError):
        write_text(path, json.dumps(asdict(about), indent=2) + "\n")


def cached_rows(path: Path) -> list[CachedRows]:
    """Return the content of a cache, by model and kind; empty if the folder is missing."""
    found = []
    for kind, folder in _model_folders(path):
        segments = find_segments(folder)
        found.append(
            CachedRows(
                folder=folder,
                kind=kind,
                about=_read_about(folder / ABOUT),
                images=sum(segment.num_images() for segment in segments),
                num_bytes=sum(segment.num_bytes() for segment in segments),
                last_used=max((segment.last_used() for segment in segments), default=0.0),
            )
        )
    return sorted(
        found, key=lambda holding: (holding.about is None, str(holding.about), holding.kind)
    )


def evict(cache: CacheFolder, keep: Collection[Segment]) -> None:
    """Remove the segments with the oldest use, but those to keep, until the limit holds."""
    found = [s for _, folder in _model_folders(cache.path) for s in find_segments(folder)]
    sizes = {segment: segment.num_bytes() for segment in found}
    total = sum(sizes.values())
    for segment in sorted(found, key=Segment.last_used):
        if total <= cache.limit:
            return
        if segment not in keep and segment.remove():
            total -= sizes[segment]


def clear(path: Path, model: str | None) -> tuple[int, int]:
    """Remove the cached rows of a model (its name, or the start of its fingerprint), or all.

    Returns the numbers of removed images and bytes; refuses a link, and a model without rows.
    """
    if path.is_symlink():
        raise ConfigError(
            f"--storage: the cache folder {str(path)!r} is a link, and nothing behind it is "
            "removed; valid is a folder of its own"
        )
    found = cached_rows(path)
    chosen = [holding for holding in found if model is None or holding.is_of(model)]
    if model is not None and not chosen:
        known = sorted({holding.about.model for holding in found if holding.about is not None})
        if any(holding.about is None for holding in found):
            known.append("--all for rows without a description")
        valid = ", ".join(known) if found else "none, the cache is empty"
        raise ConfigError(f"--model: nothing of {model!r} is cached; valid: {valid}")
    errors = [error for holding in chosen for error in _remove(holding.folder)]
    if errors:
        raise ConfigError(
            f"--storage: what lies in the cache folder {str(path)!r} cannot be removed "
            f"({errors[0].strerror}); valid is a folder that can be written to"
        ) from errors[0]
    return sum(holding.images for holding in chosen), sum(holding.num_bytes for holding in chosen)


def _remove(folder: Path) -> list[OSError]:
    """Remove the cache's files in a folder, as far as possible, and return the errors."""
    names = names_in(folder)
    # Digests first: rows without digests are no segment any more.
    ours = [name for name in names if name.endswith(DIGESTS)]
    ours += [name for name in names if name.endswith((ROWS, PART)) or name == ABOUT]
    errors = []
    for name in ours:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            errors.append(error)
    # A user's own file keeps the folder, and another process may have removed it.
    for path in (folder, folder.parent):
        with suppress(OSError):
            path.rmdir()
    return errors


def _model_folders(path: Path) -> Iterator[tuple[Kind, Path]]:
    for kind in KINDS:
        parent = path / kind
        if parent.is_symlink():
            continue
        for name in names_in(parent):
            is_ours = len(name) == KEY_DIGITS and set(name) <= set("0123456789abcdef")
            if is_ours and (parent / name).is_dir() and not (parent / name).is_symlink():
                yield kind, parent / name


def _read_about(path: Path) -> About | None:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        shape = tuple(int(length) for length in known["row_shape"])
        return About(str(known["model"]), str(known["fingerprint"]), str(known["kind"]), shape)
    # The file only informs people, so an unreadable file is no error.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None

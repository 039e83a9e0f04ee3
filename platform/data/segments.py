"""Segments: rows that were computed of images, and which image each row is of.

A segment is two files of one name: the rows as a NumPy array, and digests, 32 bytes each: first of
the images, then of the rows, by which a row that a disk or a cable has changed is noticed. Both are
written under another name first and never changed later. The rows get their name before the digests
do, and a segment exists if its digests do, so a reader sees all of it or nothing whatever another
process is doing or died of. Names are drawn, so two writers never meet.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import tokenize
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.disk.files import written
from storage.files import make_folder

ROWS: Final = ".npy"
DIGESTS: Final = ".digests"
PART: Final = ".part"
DIGEST_BYTES: Final = 32
ROW_PREFIX: Final = b"sotto-cached-row-v1\n"
ATTEMPTS: Final = 10
"""At writing a segment, since its folder may be cleared meanwhile."""


@dataclass(frozen=True)
class Segment:
    """Where a segment lies.

    Attributes:
        folder: Folder of all segments of one kind and model.
        name: What both files are called before their endings.
    """

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
        """Return size of both files; 0 where another process has removed them."""
        with suppress(OSError):
            return self.rows_path.stat().st_size + self.digests_path.stat().st_size
        return 0

    def num_images(self) -> int:
        """Return number of rows; 0 where another process has removed them."""
        with suppress(OSError):
            return self.digests_path.stat().st_size // (2 * DIGEST_BYTES)
        return 0

    def last_used(self) -> float:
        """Return when it was used last, in seconds since 1970; 0 where it is gone."""
        with suppress(OSError):
            return self.digests_path.stat().st_mtime
        return 0.0


def names_in(folder: Path) -> list[str]:
    """Return what lies in a folder, by name; nothing where it is gone or not ours to look into.

    Raises:
        OSError: If it cannot be read for another reason, such as too many open files.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def find_segments(folder: Path) -> list[Segment]:
    """Return the segments of a folder, by name; none where there is no folder."""
    found = (name for name in names_in(folder) if name.endswith(DIGESTS))
    return [Segment(folder, name.removesuffix(DIGESTS)) for name in found]


@dataclass(frozen=True)
class Digests:
    """The digests of a segment.

    Attributes:
        images: Which image each row is of, at least one.
        rows: Of the rows, one after the other.
    """

    images: Sequence[bytes]
    rows: bytes

    def fits(self, place: int, rows: NDArray[Any]) -> bool:
        """Return whether a row is what was written."""
        kept = self.rows[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
        return row_digest(self.images[place], rows[place : place + 1]) == kept


def row_digest(image: bytes, row: NDArray[Any]) -> bytes:
    """Return SHA-256 of a marker, the image's digest, the type and shape of a row, and its bytes.

    It shows accidents; somebody who changes a row can compute it anew.

    Args:
        image: Digest of the image, 32 bytes.
        row: (1, ...), contiguous.
    """
    kind = f"{row.dtype.str} {row.shape[1:]}".encode("ascii")
    hasher = hashlib.sha256(ROW_PREFIX + image + len(kind).to_bytes(2, "big") + kind)
    hasher.update(np.ascontiguousarray(row).data)
    return hasher.digest()


def read_digests(segment: Segment) -> Digests:
    """Return the digests of a segment.

    Raises:
        ValueError: If the file is damaged.
        OSError: If it is gone, or cannot be read now; that says nothing of what it holds.
    """
    data = segment.digests_path.read_bytes()
    if not data or len(data) % (2 * DIGEST_BYTES):
        raise ValueError(f"{len(data)} bytes are no digests")
    middle = len(data) // 2
    images = [data[i : i + DIGEST_BYTES] for i in range(0, middle, DIGEST_BYTES)]
    return Digests(images, data[middle:])


def open_rows(path: Path, count: int, into_memory: int) -> NDArray[Any]:
    """Return the rows of a file, for reading only.

    Args:
        path: Where they lie.
        count: How many there must be.
        into_memory: A file of at most so many bytes is read and closed. A larger one is mapped,
            which keeps it open, and readable also if another process removes it.

    Raises:
        ValueError: If the file is damaged: cut short, or anything else than so many rows.
        OSError: If it is gone, or cannot be read now; that says nothing of what it holds.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        shape, dtype = _read_header(file)
        start, length = file.tell(), math.prod(shape) * dtype.itemsize
        if start + length != size or not shape or shape[0] != count:
            raise ValueError(f"{size} bytes are not {count} rows")
        if size > into_memory:
            return np.memmap(file, dtype, mode="r", offset=start, shape=shape)
        rows: NDArray[Any] = np.frombuffer(file.read(length), dtype).reshape(shape)
        return rows


def write_segment(
    folder: Path,
    digests: Digests,
    blocks: Sequence[NDArray[Any]],
    *,
    into_memory: int = 0,
) -> tuple[Segment, NDArray[Any]]:
    """Write a segment under a name of its own, for this user only.

    Args:
        folder: Made if missing.
        digests: Of the images and of the rows.
        blocks: The rows, in arrays of one dtype that differ in length only.
        into_memory: As for `open_rows`.

    Returns:
        The segment, and its rows.

    Raises:
        OSError: If it cannot be written; nothing of it is left then.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            segment = Segment(folder, secrets.token_hex(16))
            return segment, _write(segment, digests, blocks, into_memory)
        # Somebody cleared the folder in between.
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise
    raise FileNotFoundError(folder)


def remove_segment(segment: Segment) -> None:
    """Remove a segment; a process that has it mapped goes on reading it."""
    segment.digests_path.unlink(missing_ok=True)
    segment.rows_path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, before: float) -> None:
    """Remove what writers that died have left behind.

    Args:
        folder: Folder of segments.
        before: Files changed later than this time, in seconds since 1970, may still be written to.
    """
    names = names_in(folder)
    whole = {name.removesuffix(DIGESTS) + ROWS for name in names if name.endswith(DIGESTS)}
    for name in names:
        if name in whole or not name.endswith((PART, ROWS)):
            continue
        with suppress(OSError):
            if (folder / name).stat().st_mtime < before:
                (folder / name).unlink()


def _write(
    segment: Segment, digests: Digests, blocks: Sequence[NDArray[Any]], into_memory: int
) -> NDArray[Any]:
    make_folder(segment.folder)
    paths = (segment.rows_path, segment.digests_path)
    parts = [path.with_name(path.name + PART) for path in paths]
    try:
        with written(parts[0]) as file:
            _write_header(file, len(digests.images), blocks[0])
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
        with written(parts[1]) as file:
            file.write(b"".join((*digests.images, digests.rows)))
        # Opened before others can find it, and make room by removing it.
        rows = open_rows(parts[0], len(digests.images), into_memory)
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
    finally:
        # There is nothing of that name any more unless the writing failed.
        for part in parts:
            part.unlink(missing_ok=True)
    return rows


def _write_header(file: IO[bytes], rows: int, first: NDArray[Any]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (rows, *first.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, header)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("another version of the format")
        shape, is_turned, dtype = np.lib.format.read_array_header_1_0(file)
    # What is raised at bytes that are no header is up to NumPy's parser.
    except (EOFError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError("no header of an array") from error
    except tokenize.TokenError as error:
        raise ValueError("no header of an array") from error
    if is_turned or dtype.hasobject:
        raise ValueError("not an array of rows")
    return shape, dtype

"""Segments: rows that were computed of images, and which image each row is of.

A segment is two files of one name: the rows as a NumPy array, and the images' digests, 32 bytes a
row. Both are written under another name first and never changed later. The rows get their name
before the digests do, and a segment exists if its digests do, so a reader sees all of it or nothing
whatever another process is doing or died of. Names are drawn, so two writers never meet.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

ROWS: Final = ".npy"
DIGESTS: Final = ".digests"
PART: Final = ".part"
DIGEST_BYTES: Final = 32
ATTEMPTS: Final = 3
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
        """Size of both files; 0 where another process has removed them."""
        with suppress(FileNotFoundError):
            return self.rows_path.stat().st_size + self.digests_path.stat().st_size
        return 0

    def num_images(self) -> int:
        """Number of rows; 0 where another process has removed them."""
        with suppress(FileNotFoundError):
            return self.digests_path.stat().st_size // DIGEST_BYTES
        return 0

    def last_used(self) -> float:
        """When it was used last, in seconds since 1970; 0 where it is gone."""
        with suppress(FileNotFoundError):
            return self.digests_path.stat().st_mtime
        return 0.0


def find_segments(folder: Path) -> list[Segment]:
    """The segments of a folder, by name; none where there is no folder."""
    names = sorted(path.stem for path in folder.glob(f"*{DIGESTS}"))
    return [Segment(folder, name) for name in names]


def read_digests(segment: Segment) -> list[bytes]:
    """The digests, one a row; none if the file is gone or cut short."""
    try:
        data = segment.digests_path.read_bytes()
    except OSError:
        return []
    if len(data) % DIGEST_BYTES:
        return []
    return [data[i : i + DIGEST_BYTES] for i in range(0, len(data), DIGEST_BYTES)]


def map_rows(segment: Segment, count: int) -> NDArray[Any] | None:
    """The rows as a read-only memory map.

    Args:
        segment: Where they lie.
        count: How many there must be.

    Returns:
        None if the file is gone, cut short, or holds anything else than so many rows.
    """
    try:
        # Once it is mapped it stays, also if another process removes the file.
        rows: NDArray[Any] = np.load(segment.rows_path, mmap_mode="r", allow_pickle=False)
        whole = getattr(rows, "offset", 0) + rows.nbytes == segment.rows_path.stat().st_size
    except (OSError, EOFError, ValueError):
        return None
    return rows if whole and rows.ndim and len(rows) == count else None


def write_segment(
    folder: Path, digests: Sequence[bytes], blocks: Sequence[NDArray[Any]]
) -> tuple[Segment, NDArray[Any]]:
    """Writes a segment under a name of its own.

    Args:
        folder: Made if missing.
        digests: One a row.
        blocks: The rows, in arrays of one dtype that differ in length only.

    Returns:
        The segment, and its rows as a memory map.

    Raises:
        OSError: If it cannot be written; nothing of it is left then.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            segment = Segment(folder, secrets.token_hex(16))
            return segment, _write(segment, digests, blocks)
        except FileNotFoundError:
            # Somebody cleared the folder in between.
            if attempt == ATTEMPTS:
                raise
    raise FileNotFoundError(folder)


def remove_segment(segment: Segment) -> None:
    """Removes a segment; a process that has it mapped goes on reading it."""
    segment.digests_path.unlink(missing_ok=True)
    segment.rows_path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, before: float) -> None:
    """Removes what writers that died have left behind.

    Args:
        folder: Folder of segments.
        before: Files changed later than this time, in seconds since 1970, may still be written to.
    """
    whole = {segment.rows_path for segment in find_segments(folder)}
    for path in (*folder.glob(f"*{PART}"), *folder.glob(f"*{ROWS}")):
        with suppress(OSError):
            if path not in whole and path.stat().st_mtime < before:
                path.unlink()


def _write(
    segment: Segment, digests: Sequence[bytes], blocks: Sequence[NDArray[Any]]
) -> NDArray[Any]:
    segment.folder.mkdir(parents=True, exist_ok=True)
    paths = (segment.rows_path, segment.digests_path)
    parts = [path.with_name(path.name + PART) for path in paths]
    try:
        with _synced(parts[0]) as file:
            _write_header(file, len(digests), blocks[0])
            for block in blocks:
                file.write(np.ascontiguousarray(block).data)
        with _synced(parts[1]) as file:
            file.write(b"".join(digests))
        # Mapped before others can find it, and make room by removing it.
        rows: NDArray[Any] = np.load(parts[0], mmap_mode="r", allow_pickle=False)
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
    finally:
        # There is nothing of that name any more unless the writing failed.
        for part in parts:
            part.unlink(missing_ok=True)
    return rows


@contextmanager
def _synced(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        yield file
        # Renamed before it is on the disk, it could be found empty after a power cut.
        file.flush()
        os.fsync(file.fileno())


def _write_header(file: IO[bytes], rows: int, first: NDArray[Any]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (rows, *first.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, header)

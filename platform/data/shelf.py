"""The rows of one kind and model while they are looked up and added to.

A row that was found stays readable whatever other processes remove, since its segment is mapped at
that moment, or read if it is small: each map keeps a file open. It is held against its digest then,
once; one that does not fit counts as not there, and its segment is removed. New rows are written in
segments of bounded size; until then they are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from platform.data.rows import GatheredRows, Rows
from platform.data.segments import (
    Digests,
    Segment,
    find_segments,
    open_rows,
    read_digests,
    remove_segment,
    row_digest,
    write_segment,
)

SEGMENT_BYTES: Final = 128 * 2**20
SEGMENT_ROWS: Final = 2048
FIRST_ROWS: Final = 256
"""Segments grow with what one request has added, so a writer that is killed loses half at most."""
MEMORY_BYTES: Final = 256 * 2**20
"""What is not larger is read into memory; else reading an image's row may have to open a page."""
SMALL_BYTES: Final = 2**20
"""Segments that are not larger are read, as long as all of them together fit into the memory."""
PLACE_BITS: Final = 32
PLACE_MASK: Final = (1 << PLACE_BITS) - 1


class Shelf:
    """Looks rows up by their images' digests, and adds rows."""

    def __init__(self, folder: Path) -> None:
        """Read the digests of all segments in the folder.

        Raises:
            OSError: If the folder cannot be looked into now.
        """
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
                _forget(segment)
            # Gone, or not readable now, which is no reason to remove it.
            except OSError:
                continue

    @property
    def used(self) -> list[Segment]:
        """Segments that hold rows which were found or added."""
        return [self._segments[number] for number in self._mapped]

    def has(self, digest: bytes) -> bool:
        """Return whether there is a row of this image; if so, it stays."""
        if digest in self._new:
            return True
        while (place := self._places.get(digest)) is not None:
            if self._is_good(place >> PLACE_BITS, place & PLACE_MASK):
                return True
        return False

    @property
    def is_full(self) -> bool:
        """Whether what was added makes a segment."""
        size = sum(block.nbytes for block in self._blocks)
        rows = min(max(FIRST_ROWS, self._saved), SEGMENT_ROWS)
        return size >= SEGMENT_BYTES or len(self._new) >= rows

    def add(self, digests: Sequence[bytes], rows: NDArray[Any]) -> None:
        """Add rows of images that there are none of."""
        self._new.update(dict.fromkeys(digests))
        self._blocks.append(rows)

    def save(self) -> None:
        """Write what was added.

        Raises:
            OSError: If it cannot be written.
        """
        if not self._new:
            return
        images = list(self._new)
        of_rows = (block[i : i + 1] for block in self._blocks for i in range(len(block)))
        pairs = zip(images, of_rows, strict=True)
        digests = Digests(images, b"".join(row_digest(image, row) for image, row in pairs))
        segment, rows = write_segment(self.folder, digests, self._blocks, into_memory=self._room())
        number = self._enter(segment, digests)
        self._keep(number, rows)
        self._checked[number][:] = True
        self._saved += len(images)
        self._new, self._blocks = {}, []

    def rows(self, digests: Sequence[bytes]) -> Rows:
        """Return rows of images that there are, all saved.

        Row i is of the image of `digests[i]`.
        """
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
        """Return whether a row is what was written; one that is not is forgotten."""
        if number not in self._mapped:
            return self._map(number, place)
        digests, checked = self._digests[number], self._checked[number]
        if not checked[place] and not digests.fits(place, self._mapped[number]):
            # Other rows of it were found good and are counted on, so they stay in memory.
            _forget(self._segments[number])
            del self._places[digests.images[place]]
            return False
        checked[place] = True
        return True

    def _map(self, number: int, place: int) -> bool:
        """Open a segment for a row, or forget one that is damaged, was removed or cannot be."""
        segment, digests = self._segments[number], self._digests[number]
        try:
            rows = open_rows(segment.rows_path, len(digests.images), self._room())
            if not digests.fits(place, rows):
                raise ValueError("a row that does not fit its digest")
            if any(known.shape[1:] != rows.shape[1:] for known in self._mapped.values()):
                raise ValueError("rows of another shape")
        # Rows are removed after digests and never written later, so without them nothing is lost.
        except (FileNotFoundError, ValueError):
            _forget(segment)
        # Too many open files, say: that tells nothing of the rows, and others can read them.
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
        """Return size of a segment that may be read."""
        return max(0, min(SMALL_BYTES, MEMORY_BYTES - self._in_memory))

    def _keep(self, number: int, rows: NDArray[Any]) -> None:
        self._mapped[number] = rows
        self._checked[number] = np.zeros(len(rows), np.bool_)
        if not isinstance(rows, np.memmap):
            self._in_memory += rows.nbytes


def _forget(segment: Segment) -> None:
    # Where the folder is for reading only, it is damaged for the next reader as well.
    with suppress(OSError):
        remove_segment(segment)

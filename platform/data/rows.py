"""Rows that may be more than the memory holds, and texts, both read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from platform.data.dataset import Images, Indices


class Rows(Protocol):
    """An array (n, ...), or what can be indexed like one along its first axis."""

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
class GatheredRows:
    """Rows that lie here and there in several arrays.

    Attributes:
        parts: The arrays, alike in dtype and in shape but for their lengths.
        part_of: Which of them row i lies in, (n,).
        place_of: At which place in it, (n,).
    """

    parts: Sequence[NDArray[Any]]
    part_of: Indices
    place_of: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return (len(self), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Size of all rows together."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.part_of)

    def __getitem__(self, rows: slice | Indices, /) -> NDArray[Any]:
        """Return a new array of these rows; of a slice a read-only view if they lie together."""
        parts, places = self.part_of[rows], self.place_of[rows]
        chosen = np.unique(parts)
        if isinstance(rows, slice) and len(chosen) == 1 and bool((np.diff(places) == 1).all()):
            view: NDArray[Any] = self.parts[chosen[0]][places[0] : places[-1] + 1]
            return view
        made = np.empty((len(parts), *self.shape[1:]), self.dtype)
        for part in chosen:
            here = np.flatnonzero(parts == part)
            made[here] = self.parts[part][places[here]]
        return made


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Images in memory, brought to a model's size when they are asked for.

    Attributes:
        images: All images.
        chosen: Which of them, (n,).
        fit: To the model's size.
        side: That size.
    """

    images: Images
    chosen: Indices
    fit: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
    side: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return (len(self), self.side, self.side, 3)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return np.dtype(np.uint8)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.chosen)

    def __getitem__(self, rows: slice | Indices, /) -> NDArray[Any]:
        """Return a new array of these images."""
        return self.fit(np.asarray(self.images[self.chosen[rows]]))


@dataclass(frozen=True, eq=False)
class TextRows:
    """Some of many texts, as if they were an array (n,) of str.

    An array has the room of the longest text for each, so it is made of few texts at once.

    Attributes:
        texts: All texts.
        chosen: Which of them, (n,).
    """

    texts: Sequence[str]
    chosen: Indices

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of texts."""
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the longest of them."""
        longest = max((len(self.texts[int(row)]) for row in self.chosen), default=0)
        return np.dtype(f"<U{max(longest, 1)}")

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.chosen)

    def __getitem__(self, rows: slice | Indices, /) -> NDArray[np.str_]:
        """Return a new array of these texts."""
        return np.array([self.texts[int(row)] for row in self.chosen[rows]], np.str_)

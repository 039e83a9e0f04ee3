"""Texts by row number, as what a method needs: read when they are asked for, and not cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from platform.data.images import Indices


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

"""Examples some at a time, where all of them at once would take too much memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from methods.interface.method import Arrays


def blocks(arrays: Arrays, rows: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the examples in order, so many at a time.

    Args:
        arrays: One or more arrays (n, ...), row i of each being example i.
        rows: Most examples of a block, 1 at least.

    Yields:
        Arrays (b, ...) of each name, b at most `rows`; a single empty block where n is 0.
    """
    count = len(next(iter(arrays.values())))
    for first in range(0, max(count, 1), rows):
        yield {name: array[first : first + rows] for name, array in arrays.items()}

"""Where the tiles of a log lie, as C2SP's tlog-tiles 1.0 names their files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

TILE_WIDTH: Final = 256
_GROUP: Final = 1000


class Tile(NamedTuple):
    """One file of hashes, or of the data of leaves.

    Attributes:
        level: 0 for hashes of leaves, each next one 256 times as wide.
        position: From 0, within the level.
        width: How many it holds; a full one 256.
    """

    level: int
    position: int
    width: int

    def path(self, kind: str | None = None) -> str:
        """Return the tile's file below the log's prefix.

        Args:
            kind: In place of the level, such as ``entries``.
        """
        digits = [f"{self.position % _GROUP:03d}"]
        rest = self.position // _GROUP
        while rest:
            digits.append(f"x{rest % _GROUP:03d}")
            rest //= _GROUP
        name = "/".join(reversed(digits))
        part = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{self.level if kind is None else kind}/{name}{part}"


def tile_paths(size: int) -> Iterator[Tile]:
    """Yield all tiles of a log with so many leaves, level by level."""
    level, count = 0, size
    while count:
        full, part = divmod(count, TILE_WIDTH)
        yield from (Tile(level, position, TILE_WIDTH) for position in range(full))
        if part:
            yield Tile(level, full, part)
        level, count = level + 1, full

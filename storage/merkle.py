"""Merkle trees as RFC 9162 (Certificate Transparency 2.0), section 2.1, defines them.

A function gives hashes of complete subtrees; hashes between two stored levels are computed from the
lower level. The stored levels are a tile apart: 256 hashes of one level make one hash of the next,
as in the tiles that logs publish.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256().digest()

ReadHashes = Callable[[int, int, int], Sequence[bytes]]
"""Reads hashes of a stored level, from a position on; level 0 are the leaves' own."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf's data (RFC 9162, 2.1.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node from its children's (RFC 9162, 2.1.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """Return the root of a complete subtree from one level of it, whose width is a power of two."""
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(*level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]


@dataclass(frozen=True)
class MerkleTree:
    """A tree of `size` leaves, over the stored hashes of it or of a larger tree.

    It remembers computed hashes, as proofs of neighbouring leaves share most steps.
    """

    read: ReadHashes
    size: int
    _known: dict[tuple[int, int], bytes] = field(default_factory=dict, repr=False, compare=False)
    _tiles: dict[tuple[int, int], list[Sequence[bytes]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def root(self) -> bytes:
        """Return the tree's root (MTH of RFC 9162, 2.1.1)."""
        return self._root(0, self.size) if self.size else EMPTY_ROOT

    def inclusion_proof(self, position: int) -> tuple[bytes, ...]:
        """Return a leaf's inclusion proof (RFC 9162, 2.1.3.1); `IndexError` if there is no leaf."""
        if not 0 <= position < self.size:
            raise IndexError(position)
        path: list[bytes] = []
        low, high = 0, self.size
        while high - low > 1:
            middle = low + _split(high - low)
            if position < middle:
                path.append(self._root(middle, high))
                high = middle
            else:
                path.append(self._root(low, middle))
                low = middle
        return tuple(reversed(path))

    def consistency_proof(self, earlier: int) -> tuple[bytes, ...]:
        """Return the proof that an earlier tree is a beginning of this one (RFC 9162, 2.1.4.1).

        It is empty where the earlier tree is empty, or the same.

        Raises:
            IndexError: The earlier tree is larger.
        """
        if not 0 <= earlier <= self.size:
            raise IndexError(earlier)
        if earlier in (0, self.size):
            return ()
        return tuple(self._subproof(earlier, 0, self.size, is_whole=True))

    def _root(self, low: int, high: int) -> bytes:
        found = self._known.get((low, high))
        if found is None:
            width = high - low
            if width & (width - 1) == 0:
                found = self._complete(width.bit_length() - 1, low // width)
            else:
                middle = low + _split(width)
                found = node_hash(self._root(low, middle), self._root(middle, high))
            self._known[low, high] = found
        return found

    def _complete(self, height: int, position: int) -> bytes:
        above, below = divmod(height, TILE_HEIGHT)
        first = position << below
        level = self._levels(above, first >> TILE_HEIGHT, below)
        return level[(first & (TILE_WIDTH - 1)) >> below]

    def _levels(self, above: int, tile: int, height: int) -> Sequence[bytes]:
        """Return the complete nodes at some height within a tile, which is read once."""
        levels = self._tiles.get((above, tile))
        if levels is None:
            start = tile << TILE_HEIGHT
            count = min(TILE_WIDTH, (self.size >> (TILE_HEIGHT * above)) - start)
            levels = self._tiles[above, tile] = [self.read(above, start, count)]
        while len(levels) <= height:
            last = levels[-1]
            pairs = range(0, len(last) - 1, 2)
            levels.append([node_hash(last[at], last[at + 1]) for at in pairs])
        return levels[height]

    def _subproof(self, earlier: int, low: int, high: int, *, is_whole: bool) -> Iterator[bytes]:
        if earlier == high - low:
            if not is_whole:
                yield self._root(low, high)
            return
        split = _split(high - low)
        middle = low + split
        if earlier <= split:
            yield from self._subproof(earlier, low, middle, is_whole=is_whole)
            yield self._root(middle, high)
        else:
            yield from self._subproof(earlier - split, middle, high, is_whole=False)
            yield self._root(low, middle)


def completed(
    read: ReadHashes, size: int, added: Sequence[bytes]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield level, position and hash of every tile that becomes full when leaves are added.

    `read` gives hashes of the tree before, which had `size` leaves; `added` are the new leaves'.
    """
    level, begin, new = 0, size, list(added)
    while True:
        first, last = begin // TILE_WIDTH, (begin + len(new)) // TILE_WIDTH
        if first == last:
            return
        # A part of the first tile was there already.
        known = list(read(level, first * TILE_WIDTH, begin - first * TILE_WIDTH))
        hashes = known + new
        new = [
            fold(hashes[at : at + TILE_WIDTH])
            for at in range(0, (last - first) * TILE_WIDTH, TILE_WIDTH)
        ]
        level, begin = level + 1, first
        yield from ((level, begin + at, found) for at, found in enumerate(new))


def inclusion_proofs(hashes: Sequence[bytes]) -> tuple[bytes, list[tuple[bytes, ...]]]:
    """Return the root over some hashes of leaves, and each leaf's proof of inclusion.

    The proofs equal `MerkleTree`'s, made for all leaves at once: on each level two neighbours
    become one, and a hash without a neighbour goes up as it is.
    """
    level, proofs = list(hashes), [list[bytes]() for _ in hashes]
    here = list(range(len(hashes)))
    while len(level) > 1:
        for leaf, place in enumerate(here):
            if place ^ 1 < len(level):
                proofs[leaf].append(level[place ^ 1])
        pairs = range(0, len(level) - 1, 2)
        above = [node_hash(level[at], level[at + 1]) for at in pairs]
        level = above + level[2 * len(above) :]
        here = [place >> 1 for place in here]
    return level[0] if level else EMPTY_ROOT, [tuple(proof) for proof in proofs]


def path_length(position: int, size: int) -> int:
    """Return the number of hashes in a proof of inclusion."""
    here, last, length = position, size - 1, 0
    while last > 0:
        length += here & 1 or here < last
        here, last = here >> 1, last >> 1
    return length


def root_from_inclusion(
    data_hash: bytes, position: int, size: int, proof: Sequence[bytes]
) -> bytes | None:
    """Return the root that a proof of inclusion leads to (RFC 9162, 2.1.3.2), to be compared.

    It is None for a proof of invalid form.
    """
    if not 0 <= position < size:
        return None
    here, last, found = position, size - 1, data_hash
    for step in proof:
        if last == 0 or len(step) != HASH_BYTES:
            return None
        if here & 1 or here == last:
            found = node_hash(step, found)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            found = node_hash(found, step)
        here, last = here >> 1, last >> 1
    return found if last == 0 else None


def is_consistent(
    earlier: tuple[int, bytes], later: tuple[int, bytes], proof: Sequence[bytes]
) -> bool:
    """Return whether a proof shows that one tree is a beginning of another (RFC 9162, 2.1.4.2).

    Trees are given as size and root.
    """
    (size, root), (later_size, later_root) = earlier, later
    if size == later_size:
        return not proof and root == later_root
    if not 0 <= size < later_size or any(len(step) != HASH_BYTES for step in proof):
        return False
    if size == 0:
        return not proof and root == EMPTY_ROOT
    if not proof:
        return False
    steps = list(proof) if size & (size - 1) else [root, *proof]
    return _climbs(size - 1, later_size - 1, steps, (root, later_root))


def _climbs(here: int, last: int, steps: Sequence[bytes], roots: tuple[bytes, bytes]) -> bool:
    while here & 1:
        here, last = here >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return False
        if here & 1 or here == last:
            old, new = node_hash(step, old), node_hash(step, new)
            while not here & 1 and here:
                here, last = here >> 1, last >> 1
        else:
            new = node_hash(new, step)
        here, last = here >> 1, last >> 1
    return last == 0 and (old, new) == roots


@lru_cache(maxsize=256)
def _split(width: int) -> int:
    """Return the largest power of two below a width of at least 2."""
    return 1 << ((width - 1).bit_length() - 1)

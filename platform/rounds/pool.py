"""The expert pool as the coordinator serves it, without a word about the entries' owners.

Entries live in the coordinator's database under keyed hashes of their owners' secrets (`handle`).
A client presents its own handles: the newest is the query of the nearest-neighbour search, and all
are excluded from the result. The coordinator hands experts out without handle, owner, round or
meaningful order. The entries' bytes decide ties and order, so a result does not depend on the order
of rows in a file.

The search runs in float32 and decides in float64. One product with a resident float32 matrix gives
all distances to several queries, up to a known bound on the rounding. The search measures again, in
float64, the candidates that this bound cannot tell from the k nearest. So it finds the same
vectors as a comparison of all vectors in float64, ties included. Source of the bound:
|fl(x'y) - x'y| <= n u / (1 - n u) |x|'|y| in any order of summation (Higham, Accuracy and Stability
of Numerical Algorithms, 2nd ed., section 3.1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.protection.building import PoolRules
from platform.wire.codec import decode_arrays
from platform.wire.layout import Fetched, flatten
from storage import PoolEntry

_BLOCK = 2048
"""Coordinates that are added up in float32; blocks are added up in float64."""
_UNIT, _FINE_UNIT = 2.0**-24, 2.0**-53
_CENTRE = 31
"""Vectors whose median is the centre, so that a few far ones do not move it."""


Search = tuple[int, NDArray[np.intp]]
"""The place of a vector, and the places of those among which its neighbours are found, rising."""


class Neighbours:
    """Vectors of one length that do not change."""

    def __init__(self, vector: Callable[[int], NDArray[np.float64]], number: int) -> None:
        """Lay out the matrix.

        `vector` returns the vector (d,) of a place, the same each time, of finite numbers that come
        from float32. There is at least one vector.
        """
        self._vector = vector
        some = np.unique(np.linspace(0, number - 1, _CENTRE).astype(int))
        # Vectors may lie far from zero and close to each other: distances are small beside them.
        centre = np.median([vector(place) for place in some], axis=0)
        self._rows = np.empty((number, len(centre)), np.float32)
        self._lengths, self._scales = np.empty(number), np.empty(number)
        for place in range(number):
            moved = vector(place) - centre
            self._lengths[place] = np.linalg.norm(moved)
            # Each row has its own scale, a power of two, so a huge row takes no digits from others.
            self._scales[place] = np.ldexp(1.0, np.frexp(self._lengths[place])[1])
            self._rows[place] = moved / self._scales[place]

    def nearest(self, searches: Sequence[Search], k: int) -> list[NDArray[np.intp]]:
        """Return the places of the k nearest candidates of each search, the nearest first.

        Among equally far candidates the one at the smaller place counts as nearer. All searches
        share one pass over the matrix.

        `k` is at most the number of candidates.
        """
        queries = [query for query, _ in searches]
        products = np.zeros((len(self._rows), len(queries)))
        for start in range(0, self._rows.shape[1], _BLOCK):
            block = self._rows[:, start : start + _BLOCK]
            # NumPy multiplies a contiguous vector faster than a matrix of one column.
            asked = np.ascontiguousarray(block[queries].T)
            products += (block @ asked[:, 0])[:, None] if len(queries) == 1 else block @ asked
        places: list[NDArray[np.intp]] = []
        for search, column in zip(searches, products.T, strict=True):
            few = self._undecided(search, column, k)
            query = self._vector(search[0])
            distances = [float(np.linalg.norm(self._vector(int(row)) - query)) for row in few]
            places.append(few[np.argsort(np.asarray(distances), kind="stable")[:k]])
        return places

    def _undecided(self, search: Search, products: NDArray[np.float64], k: int) -> NDArray[np.intp]:
        """Return the candidates that may be among the k nearest, rising."""
        mine, rows = search
        lengths, scales = self._lengths[rows], self._scales[rows]
        # `coarse` bounds the error of twice a float32 product, relative to both lengths; it covers
        # the rounding of both rows, and numbers too small for float32. `fine` bounds the error of
        # the float64 work, relative to both squares.
        steps = (_BLOCK + 8) * _UNIT
        coarse = 2 * steps / (1 - steps)
        fine = 16 * (self._rows.shape[1] + 16) * _FINE_UNIT
        squares = lengths**2 + self._lengths[mine] ** 2
        distances = squares - 2 * scales * self._scales[mine] * products[rows]
        slack = coarse * lengths * self._lengths[mine] + fine * squares
        limit = np.partition(distances + slack, k - 1)[k - 1]
        return rows[np.flatnonzero(distances - slack <= limit)]


class ResidentPool:
    """The live pool in memory, for as long as clients are served from it.

    The coordinator makes one for each attempt: it reads the entries from the database, which checks
    each against its digest, serves all clients in one pass, and drops the pool. So no generation
    that is deleted or added later is missed, and no copy of an entry outlives its row.
    """

    def __init__(self, entries: Sequence[PoolEntry], rules: PoolRules) -> None:
        """Lay out the whole live pool."""
        self._rules = rules
        # Sorted by content, so that the order of rows does not matter.
        ordered = sorted(entries, key=lambda entry: entry.entry)
        self._payloads = [entry.entry for entry in ordered]
        rows: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for row, entry in enumerate(ordered):
            rows[entry.handle].append((entry.generation, row))
        self._rows = {name: [row for _, row in sorted(found)] for name, found in rows.items()}

    def serve(
        self, asked: Sequence[Sequence[bytes]], rng: np.random.Generator
    ) -> list[tuple[Arrays, ...]]:
        """Return the experts of several clients, found in one pass over the pool.

        `asked` has each client's own handles, newest first. `rng` draws for `select: random`. Each
        client gets at most K experts: none if the pool is too small, or if the client has no live
        entry and so counts as first-time. In a pool that is made once no client counts as
        first-time, because it would always stay first-time.
        """
        policy = self._rules.policy
        picked: list[list[int]] = [[] for _ in asked]
        searches: dict[int, Search] = {}
        for position, handles in enumerate(asked):
            newest = next((self._rows[name][-1] for name in handles if name in self._rows), None)
            is_first_time = newest is None and not policy.fixed
            if is_first_time or len(self._payloads) < self._rules.minimum:
                continue
            there = np.ones(len(self._payloads), bool)
            if policy.exclude_self:
                there[[row for name in handles for row in self._rows.get(name, ())]] = False
            candidates = np.flatnonzero(there)
            is_search = policy.select == "nearest" and len(candidates) > policy.k
            if is_search and newest is not None:
                searches[position] = newest, candidates
            else:
                rows = candidates
                if policy.select == "random" and len(rows) > policy.k:
                    rows = rows[rng.choice(len(rows), policy.k, replace=False)]
                picked[position] = rows.tolist()
        if searches:
            found = self._neighbours.nearest(list(searches.values()), policy.k)
            for position, nearest in zip(searches, found, strict=True):
                picked[position] = nearest.tolist()
        experts = {row: decode_arrays(self._payloads[row]) for row in set().union(*picked)}
        return [tuple(experts[row] for row in sorted(rows)) for rows in picked]

    @cached_property
    def _neighbours(self) -> Neighbours:
        payloads, spec = self._payloads, self._rules.policy.spec
        # A method of this pool would make a circle of references, which outlives its last use.
        return Neighbours(lambda row: flatten(decode_arrays(payloads[row]), spec), len(payloads))


@dataclass(frozen=True)
class FixedPool:
    """A pool that was made once, in one order for all clients.

    Attributes:
        experts: All entries; empty if the pool is too small.
        handles: The entries' names, in the same order; clients never see them.
    """

    experts: tuple[Arrays, ...] = ()
    handles: tuple[bytes, ...] = ()

    def fetch(self, name: bytes) -> Fetched:
        """Return all experts for a client, and the place of its own entry if it has one."""
        return Fetched(self.experts, self.handles.index(name) if name in self.handles else None)


def fixed_pool(entries: Sequence[PoolEntry], generation: int, minimum: int) -> FixedPool:
    """Return all entries of one generation in the order of their bytes, which hides the owners.

    `generation` is the round that made the pool. Fewer than `minimum` entries are not handed out.
    """
    made = [entry for entry in entries if entry.generation == generation]
    if len(made) < minimum:
        return FixedPool()
    # Names, which are as good as random, order equal entries.
    made.sort(key=lambda entry: (entry.entry, entry.handle))
    experts = tuple(decode_arrays(entry.entry) for entry in made)
    return FixedPool(experts, tuple(entry.handle for entry in made))

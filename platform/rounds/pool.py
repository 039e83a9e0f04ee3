"""The expert pool as the coordinator serves it: who is handed what, without saying whose it is.

Entries live in the coordinator's database under keyed hashes of their owners' secrets (`handle`).
A fetch presents the client's own handles: the newest is the query of the nearest-neighbour search,
all are excluded. Experts are handed out without handle, owner, round or meaningful order: ties and
order are resolved by the entries' bytes, so a result does not depend on how rows lie in a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.protection.building import PoolRules
from platform.rounds.neighbours import Neighbours, Search
from platform.wire.codec import decode_arrays
from platform.wire.layout import Fetched, flatten
from storage import PoolEntry


class ResidentPool:
    """The live pool in memory, for as long as clients are served from it.

    Whoever makes it reads the entries from the database just then, which checks each against its
    digest, serves all clients of an attempt in one pass, and lets go of it: no generation that is
    deleted or added later is missed, and no copy of an entry outlives its row.
    """

    def __init__(self, entries: Sequence[PoolEntry], rules: PoolRules) -> None:
        """Lay out the whole live pool.

        Args:
            entries: All of them, in any order.
            rules: The run's rules.
        """
        self._rules = rules
        # By content first, so that what follows is the same whatever the rows' order.
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

        Args:
            asked: Each client's own handles, newest first.
            rng: For `select: random`.

        Returns:
            For each client at most K experts, none where the pool is too small or the client has
            no live entry (it counts as first-time, but for a pool that is made once, of which it
            would never have one).
        """
        policy = self._rules.policy
        picked: list[list[int]] = [[] for _ in asked]
        searches: dict[int, Search] = {}
        for position, handles in enumerate(asked):
            newest = next((self._rows[name][-1] for name in handles if name in self._rows), None)
            is_first_time = newest is None and not policy.fixed
            if is_first_time or len(self._payloads) < self._rules.minimum:
                continue
            candidates = self._candidates(handles)
            is_search = policy.select == "nearest" and len(candidates) > policy.k
            if is_search and newest is not None:
                searches[position] = Search(newest, candidates)
            else:
                picked[position] = self._unsearched(candidates, rng)
        if searches:
            found = self._neighbours.nearest(list(searches.values()), policy.k)
            for position, rows in zip(searches, found, strict=True):
                picked[position] = rows.tolist()
        experts = {row: decode_arrays(self._payloads[row]) for row in set().union(*picked)}
        return [tuple(experts[row] for row in sorted(rows)) for rows in picked]

    def _candidates(self, handles: Sequence[bytes]) -> NDArray[np.intp]:
        there = np.ones(len(self._payloads), bool)
        if self._rules.policy.exclude_self:
            there[[row for name in handles for row in self._rows.get(name, ())]] = False
        return np.flatnonzero(there)

    def _unsearched(self, rows: NDArray[np.intp], rng: np.random.Generator) -> list[int]:
        policy = self._rules.policy
        if policy.select == "random" and len(rows) > policy.k:
            rows = rows[rng.choice(len(rows), policy.k, replace=False)]
        return [int(row) for row in rows]

    @cached_property
    def _neighbours(self) -> Neighbours:
        payloads, spec = self._payloads, self._rules.policy.spec
        # Not a method of this pool: in a circle of references it would outlive its last use.
        return Neighbours(lambda row: flatten(decode_arrays(payloads[row]), spec), len(payloads))


@dataclass(frozen=True)
class FixedPool:
    """A pool that was made once, in one order for all clients.

    Attributes:
        experts: All entries, none where the pool is too small.
        handles: Their names, in the same order; not handed out.
    """

    experts: tuple[Arrays, ...] = ()
    handles: tuple[bytes, ...] = ()

    def fetch(self, name: bytes) -> Fetched:
        """Return all experts for the client that presents this name, which may be no entry's."""
        return Fetched(self.experts, self.handles.index(name) if name in self.handles else None)


def fixed_pool(entries: Sequence[PoolEntry], generation: int, minimum: int) -> FixedPool:
    """Return all entries of one generation in the order of their bytes.

    Which says nothing of owners.

    Args:
        entries: The whole live pool.
        generation: The round that made it.
        minimum: Smallest pool that is handed out.
    """
    made = [entry for entry in entries if entry.generation == generation]
    if len(made) < minimum:
        return FixedPool()
    # Equal entries are told apart by their names, which are as good as random.
    made.sort(key=lambda entry: (entry.entry, entry.handle))
    experts = tuple(decode_arrays(entry.entry) for entry in made)
    return FixedPool(experts, tuple(entry.handle for entry in made))

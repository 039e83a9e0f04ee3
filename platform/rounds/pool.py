"""The expert pool as the coordinator serves it: who is handed what, without saying whose it is.

Entries live in the coordinator's database under keyed hashes of their owners' secrets (`handle`).
A fetch presents the client's own handles: the newest is the query of the nearest-neighbour search,
all are excluded. Experts are handed out without handle, owner, round or meaningful order: ties and
order are resolved by the entries' bytes, so a result does not depend on how rows lie in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from methods import Arrays, PoolPolicy
from platform.protection.pool_rules import PoolRules
from platform.wire.codec import decode_arrays
from platform.wire.experts import Fetched
from platform.wire.vectors import flatten
from storage import PoolEntry


def serve_experts(
    entries: Sequence[PoolEntry],
    handles: Sequence[bytes],
    rules: PoolRules,
    rng: np.random.Generator,
) -> tuple[Arrays, ...]:
    """Return the experts of one client.

    Args:
        entries: The whole live pool.
        handles: The client's own handles, newest first.
        rules: The run's rules.
        rng: For `select: random`.

    Returns:
        At most K experts, none where the pool is too small or the client has no live entry
        (it counts as first-time).
    """
    own = {entry.handle: entry for entry in entries if entry.handle in set(handles)}
    newest = next((own[name] for name in handles if name in own), None)
    others = [e for e in entries if not (rules.policy.exclude_self and e.handle in own)]
    if newest is None or len(entries) < rules.minimum:
        return ()
    # Sorted by content first, so that what follows is the same whatever the rows' order.
    candidates = sorted(others, key=lambda entry: entry.entry)
    chosen = _choose(candidates, newest, rules.policy, rng)
    return tuple(decode_arrays(payload) for payload in sorted(chosen))


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


def _choose(
    candidates: Sequence[PoolEntry],
    own: PoolEntry,
    policy: PoolPolicy,
    rng: np.random.Generator,
) -> list[bytes]:
    payloads = [candidate.entry for candidate in candidates]
    if policy.select == "all" or len(payloads) <= policy.k:
        return payloads
    if policy.select == "random":
        return [payloads[i] for i in rng.choice(len(payloads), policy.k, replace=False)]
    query = flatten(decode_arrays(own.entry), policy.spec)
    points = [flatten(decode_arrays(payload), policy.spec) for payload in payloads]
    distances = [float(np.linalg.norm(point - query)) for point in points]
    nearest = np.argsort(np.asarray(distances), kind="stable")[: policy.k]
    return [payloads[i] for i in nearest]

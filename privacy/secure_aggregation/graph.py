"""Who masks with whom and who holds whose shares: the k-regular graph of Bell et al. 2020.

The clients stand on a ring in an order that a public seed gives, and each is joined to the k / 2
before it and the k / 2 after it (a Harary graph over a random permutation, section 3 there). Every
party can compute the graph from the round's parameters, so the server cannot hand out two.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

SEED_BYTES = 32

_ORDER = b"sotto/secure-aggregation/graph-order"


def ring_order(clients: Sequence[int], seed: bytes) -> tuple[int, ...]:
    """Return the clients in the order of SHA-256(label, seed, index).

    Args:
        clients: Distinct share indices.
        seed: 32 public bytes, drawn after the cohort is fixed.

    Returns:
        A permutation of the clients, uniform over the choice of the seed.
    """
    prefix = hashlib.sha256(_ORDER + seed)

    def key(client: int) -> bytes:
        hasher = prefix.copy()
        hasher.update(struct.pack("<I", client))
        return hasher.digest()

    return tuple(sorted(clients, key=key))


def closed_neighbourhoods(
    clients: Sequence[int], degree: int, seed: bytes
) -> Mapping[int, tuple[int, ...]]:
    """Return every client's k neighbours and itself, ascending.

    Args:
        clients: Distinct share indices, more than `degree`.
        degree: The even number k of neighbours.
        seed: 32 public bytes.
    """
    order = ring_order(clients, seed)
    reach, count = degree // 2, len(order)
    around = order[-reach:] + order + order[:reach]
    return MappingProxyType(
        {order[at]: tuple(sorted(around[at : at + 2 * reach + 1])) for at in range(count)}
    )

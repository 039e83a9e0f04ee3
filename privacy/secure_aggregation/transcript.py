"""What the clients of an active round agree on before anything is opened.

A signature on the survivor list alone would also verify in another execution under the same
parameters, with other keys, dealers or broadcasts, so that a server could collect the signatures
for one sum from many executions. A confirmation therefore signs all that its client has seen of
this one: the parameters, the roster with its keys (drawn anew in every execution), who dealt
shares, who survived, and the digest of what was broadcast to all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from privacy.secure_aggregation.keys import PublicKeys
from privacy.secure_aggregation.parameters import RoundParameters

CONTEXT_BYTES = 32
NO_CONTEXT = bytes(CONTEXT_BYTES)
"""Stands for a round in which nothing was broadcast that the clients should agree on."""

_ROSTER = b"sotto/secure-aggregation/roster"
_TRANSCRIPT = b"sotto/secure-aggregation/transcript"


def roster_digest(parameters: RoundParameters, roster: Mapping[int, PublicKeys]) -> bytes:
    """Hash who announced which keys, as one roster message said it.

    Args:
        parameters: The round.
        roster: By client, its public keys; their signatures are not hashed.

    Returns:
        32 bytes.
    """
    hasher = hashlib.sha256(_ROSTER + parameters.digest)
    for client in sorted(roster):
        hasher.update(struct.pack("<I", client) + roster[client].channel + roster[client].mask)
    return hasher.digest()


def transcript_digest(
    parameters: RoundParameters,
    *,
    roster: bytes,
    dealers: Iterable[int],
    survivors: Iterable[int],
    context: bytes,
) -> bytes:
    """Hash everything that must be the same for all before a sum is opened.

    Args:
        parameters: The round.
        roster: From `roster_digest`.
        dealers: The clients whose shares were dealt, the hashing client included.
        survivors: The clients whose vectors are in the sum.
        context: Digest of what was broadcast to all, 32 bytes.

    Returns:
        32 bytes, the body of a confirmation.
    """
    sets = _counted(dealers) + _counted(survivors)
    return hashlib.sha256(_TRANSCRIPT + parameters.digest + roster + sets + context).digest()


def require_context(context: bytes) -> bytes:
    """Return the context if it is one.

    Raises:
        ValueError: If it is not 32 bytes.
    """
    if not isinstance(context, bytes) or len(context) != CONTEXT_BYTES:
        raise ValueError(f"context must be a digest of {CONTEXT_BYTES} bytes")
    return context


def _counted(clients: Iterable[int]) -> bytes:
    ascending = sorted(clients)
    return struct.pack(f"<I{len(ascending)}I", len(ascending), *ascending)

"""What a party knows in each phase, and the digests that bind one execution together.

The clients of an active round agree on a transcript before anything is opened. A signature on the
survivor list alone would also verify in another execution under the same parameters, with other
keys, dealers or broadcasts, so that a server could collect the signatures for one sum from many
executions. A confirmation therefore signs all that its client has seen of this one: the parameters,
the roster with its keys (drawn anew in every execution), who dealt shares, who survived, and the
digest of what was broadcast to all.

Each phase of each party has one frozen type. A step takes a state and returns the next one; it
never changes the state it was given, so a message that is refused leaves nothing behind. A phase
holds what later phases need and nothing else: the channel's private key is gone once shares are
dealt, all other channel keys and the mask pair's private key once shares are read, seed and mask
keys once the masked vector exists, and `Done` has no secret at all.

States are values, and a value can be used twice. Whoever keeps them must go forward only: masking
two vectors from one `ReadyToMask`, or answering two survivor lists from one `Masked`, gives the
server what the protocol hides. A client's owner therefore records the attempt durably before
sending and resends the same bytes if asked again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation.keys import PublicKeys
from privacy.secure_aggregation.masking import Words
from privacy.secure_aggregation.parameters import Phase, RoundParameters

CONTEXT_BYTES = 32
NO_CONTEXT = bytes(CONTEXT_BYTES)
"""Stands for a round in which nothing was broadcast that the clients should agree on."""

_ROSTER = b"sotto/secure-aggregation/roster"
_TRANSCRIPT = b"sotto/secure-aggregation/transcript"


def roster_digest(parameters: RoundParameters, roster: Mapping[int, PublicKeys]) -> bytes:
    """Hash who announced which keys, as one roster message said it; signatures are not hashed."""
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

    `roster` is from `roster_digest`; `dealers` are the clients whose shares were dealt, the hashing
    client included; `context` is the digest of what was broadcast to all, 32 bytes. The result is
    the body of a confirmation.
    """
    sets = _counted(dealers) + _counted(survivors)
    return hashlib.sha256(_TRANSCRIPT + parameters.digest + roster + sets + context).digest()


def require_context(context: bytes) -> bytes:
    """Return the context, or `ValueError` if it is not 32 bytes."""
    if not isinstance(context, bytes) or len(context) != CONTEXT_BYTES:
        raise ValueError(f"context must be a digest of {CONTEXT_BYTES} bytes")
    return context


def _counted(clients: Iterable[int]) -> bytes:
    ascending = sorted(clients)
    return struct.pack(f"<I{len(ascending)}I", len(ascending), *ascending)


Complaints = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class HeldShares:
    """One dealer's two shares for this client, 33 bytes each. At most one is ever revealed."""

    key: bytes = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True)
class _OfClient:
    """What a client knows in every phase.

    Attributes:
        parameters: The round.
        client: Own share index.
    """

    parameters: RoundParameters
    client: int


@dataclass(frozen=True)
class Advertised(_OfClient):
    """Client: keys are announced, the roster is awaited.

    Attributes:
        channel_private: Private half of the channel pair, 32 bytes.
        mask_private: Private half of the mask pair, 32 bytes.
    """

    channel_private: bytes = field(repr=False)
    mask_private: bytes = field(repr=False)


@dataclass(frozen=True)
class Shared(_OfClient):
    """Client: shares are dealt, those of the peers are awaited.

    Attributes:
        seed: Seed of the self mask, 32 bytes.
        own: The shares that this client dealt to itself.
        mask_private: Private half of the mask pair, 32 bytes.
        mask_publics: Public half of the mask pair of every peer on the roster.
        receiving_keys: For every peer on the roster, the key that opens its box.
        roster: Digest of the roster as it was received, from `roster_digest`.
    """

    seed: bytes = field(repr=False)
    own: HeldShares
    mask_private: bytes = field(repr=False)
    mask_publics: Mapping[int, bytes]
    receiving_keys: Mapping[int, bytes] = field(repr=False)
    roster: bytes


@dataclass(frozen=True)
class ReadyToMask(_OfClient):
    """Client: ready for the vector.

    Attributes:
        seed: Seed of the self mask, 32 bytes.
        mask_keys: Key of the pairwise mask with every peer whose shares arrived.
        shares: For every such peer and this client itself, the shares held.
        roster: Digest of the roster as it was received.
        withheld: The peers whose boxes did not open or held no valid shares, ascending; masked
            with all the same, but the server is told that their shares are missing.
    """

    seed: bytes = field(repr=False)
    mask_keys: Mapping[int, bytes] = field(repr=False)
    shares: Mapping[int, HeldShares]
    roster: bytes
    withheld: tuple[int, ...] = ()


@dataclass(frozen=True)
class Masked(_OfClient):
    """Client: the masked vector exists, the survivor list is awaited.

    Attributes:
        shares: For every peer whose mask was added and this client itself, the shares held.
        roster: Digest of the roster as it was received.
        context: Digest of what was broadcast to all, 32 bytes.
        withheld: The peers whose mask was added but whose shares were bad, ascending.
    """

    shares: Mapping[int, HeldShares]
    roster: bytes
    context: bytes
    withheld: tuple[int, ...] = ()

    @property
    def dealers(self) -> frozenset[int]:
        """Whose masks are in the masked vector: everybody who dealt, and this client."""
        return frozenset(self.shares) | set(self.withheld)


@dataclass(frozen=True)
class Confirmed(_OfClient):
    """Client, active adversary: one transcript is signed, the others' signatures are awaited.

    Attributes:
        shares: For every peer whose mask was added and this client itself, the shares held.
        survivors: The list that was signed; no other is ever answered.
        transcript: Digest of all that was signed, 32 bytes.
    """

    shares: Mapping[int, HeldShares]
    survivors: tuple[int, ...]
    transcript: bytes


@dataclass(frozen=True)
class Done(_OfClient):
    """Client: one kind of share per peer was revealed, for this survivor list and no other."""

    survivors: tuple[int, ...]


ClientState = Advertised | Shared | ReadyToMask | Masked | Confirmed | Done


@dataclass(frozen=True)
class Refusal:
    """A message that the server did not take, which counts as that client's dropout."""

    client: int
    phase: Phase


@dataclass(frozen=True)
class CollectingKeys:
    """Server: waiting for the public keys of the invited clients.

    Attributes:
        parameters: The round.
        context: Digest of what was broadcast to all, 32 bytes.
    """

    parameters: RoundParameters
    context: bytes


@dataclass(frozen=True)
class CollectingShares:
    """Server: the roster U1 is out, dealt shares are awaited.

    Attributes:
        parameters: The round.
        context: Digest of what was broadcast to all, 32 bytes.
        roster: Public keys of the clients in U1.
        refused: Messages not taken so far.
    """

    parameters: RoundParameters
    context: bytes
    roster: Mapping[int, PublicKeys]
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Dealt:
    """Server: what the clients in U2, whose shares all their holders got, have published.

    Attributes:
        roster: Their public keys.
        commitments: Hash of the self-mask seed of each of them.
        share_commitments: Against an active adversary, by dealer and holder, the hashes of key
            share and seed share; empty otherwise.
    """

    roster: Mapping[int, PublicKeys]
    commitments: Mapping[int, bytes]
    share_commitments: Mapping[int, Mapping[int, bytes]]


@dataclass(frozen=True)
class CollectingMasked:
    """Server: shares are forwarded, masked vectors are awaited.

    Attributes:
        parameters: The round.
        context: Digest of what was broadcast to all, 32 bytes.
        announced: Digest of the roster U1, from `roster_digest`.
        dealt: What the clients in U2 have published.
        refused: Messages not taken so far.
    """

    parameters: RoundParameters
    context: bytes
    announced: bytes
    dealt: Dealt
    refused: tuple[Refusal, ...] = ()

    @property
    def roster(self) -> Mapping[int, PublicKeys]:
        """Public keys of the clients in U2."""
        return self.dealt.roster


@dataclass(frozen=True, eq=False)
class _Summed:
    """What the server knows once the masked vectors are added up.

    Attributes:
        parameters: The round.
        dealt: What the clients in U2 have published.
        survivors: The clients U3 whose vectors are in the sum, ascending.
        masked_sum: Sum of their masked vectors, shape (vector_length,), in ring words.
        complaints: By client that complained, the dealers whose shares it does not have.
        refused: Messages not taken so far.
    """

    parameters: RoundParameters
    dealt: Dealt
    survivors: tuple[int, ...]
    masked_sum: Words = field(repr=False)
    complaints: Complaints = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, eq=False)
class CollectingConfirmations(_Summed):
    """Server, active adversary: the survivor list is out, signed transcripts are awaited.

    Attributes:
        transcript: Digest of all that the clients have to sign, 32 bytes.
    """

    transcript: bytes = field(kw_only=True)


class CollectingUnmasking(_Summed):
    """Server: the survivor list is settled, shares are awaited."""


@dataclass(frozen=True, eq=False)
class Finished:
    """Server: the exact sum.

    Attributes:
        parameters: The round.
        total: Sum of the survivors' vectors modulo 2^ring_bits, uint64, shape (vector_length,),
            read-only.
        survivors: The clients whose vectors are in it, ascending.
        refused: Messages not taken during the round, and holders of shares that were replaced.
    """

    parameters: RoundParameters
    total: NDArray[np.uint64] = field(repr=False)
    survivors: tuple[int, ...]
    refused: tuple[Refusal, ...] = ()


ServerState = (
    CollectingKeys
    | CollectingShares
    | CollectingMasked
    | CollectingConfirmations
    | CollectingUnmasking
    | Finished
)

"""The messages of one secure aggregation: their common envelope, and one encoding of each body.

    header    "SA", version 4, kind (1 byte), digest of the parameters (32), round, attempt,
              sender, receiver (4 each; 0 is the server)                            52 bytes
    body      fixed by the kind, see below
    trailer   checksum: the first 16 bytes of SHA-256 over header and body, but for a masked
              vector at its end; or, from a client against an active adversary, its Ed25519
              signature of the SHA-256 over all of both                             16 or 64 bytes

A receiver knows every byte of the header that it may accept, so it compares instead of parsing.
The checksum catches accidents on the way and authenticates nobody. It leaves out masked vectors: to
hash one is most of what taking it in costs, and a changed vector does no more to the sum than its
sender could. The server signs nothing: what a client must not take on its word comes with the
signatures of other clients.

The bodies of the messages: one canonical encoding each, all integers little-endian.

    kind                    sender   body
    1 advertised keys       client   channel key (32), mask key (32)
    2 roster                server   for each holder: index (4), channel key (32), mask key (32),
                                     [signature of its kind 1 (64)]
    3 dealt shares          client   seed commitment (32), [commitments to the own shares (64)];
                                     for each peer: index (4), box (94), [commitments (64)]
    4 forwarded shares      server   for each dealer: index (4), box (94), [commitments (64)]
    5 masked input          client   for each dealer whose box was unreadable: index (4); then
                                     vector_length elements of ring_bits bits, see `masking`
    6 survivors             server   for each survivor: index (4)
    7 confirmed transcript  client   digest of the whole transcript (32), see `states`
    8 confirmations         server   for each confirming client: index (4), signature of its kind 7
    9 revealed shares       client   for each dealer: index (4), share type (1), share (33)

What stands in brackets, and kinds 7 and 8, exist against an active adversary only. A box is an
AES-256-GCM nonce, the encrypted key share and seed share (66) and a tag; its associated data is the
header of kind 3 from its dealer to its receiver. Commitments are to the key share, then to the seed
share. Records stand in strictly ascending order of index, so a set has one encoding and a repeated
client none; in kind 9 this also leaves no way to write down both shares of one dealer.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hmac import compare_digest

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation.identities import SIGNATURE_BYTES, Identity, verify_signature
from privacy.secure_aggregation.keys import KEY_BYTES, NONCE_BYTES, TAG_BYTES, PublicKeys
from privacy.secure_aggregation.masking import Words, pack, packed_bytes, unpack
from privacy.secure_aggregation.parameters import PROTOCOL_VERSION, RoundParameters
from privacy.secure_aggregation.shamir import SHARE_BYTES, is_share

MAGIC = b"SA"
SERVER = 0
CHECKSUM_BYTES = 16

_HEADER = struct.Struct("<2sBB32sIIII")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """The messages of a round, in the order in which they are sent."""

    ADVERTISED_KEYS = 1
    ROSTER = 2
    DEALT_SHARES = 3
    FORWARDED_SHARES = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    CONFIRMED_TRANSCRIPT = 7
    CONFIRMATIONS = 8
    REVEALED_SHARES = 9


def header_of(
    parameters: RoundParameters, kind: Kind, sender: int = SERVER, receiver: int = SERVER
) -> bytes:
    """Return the 52 bytes that open a message; those of kind 3 are the associated data of boxes."""
    return _HEADER.pack(
        MAGIC,
        PROTOCOL_VERSION,
        kind,
        parameters.digest,
        parameters.round_number,
        parameters.attempt,
        sender,
        receiver,
    )


def refusal() -> ProtocolViolation:
    """Return the one error for every message that a party does not take."""
    return ProtocolViolation("the message was refused")


@dataclass(frozen=True)
class Envelope:
    """Everything about a message but its body: what it is, from whom, to whom, in which round.

    Attributes:
        parameters: The round that the message belongs to.
        kind: What the body holds.
        sender: Share index of the sending client, or 0 for the server.
        receiver: Share index of the receiving client, or 0 for the server.
    """

    parameters: RoundParameters
    kind: Kind
    sender: int = SERVER
    receiver: int = SERVER

    @property
    def is_signed(self) -> bool:
        """Whether the message ends with a signature in place of a checksum."""
        return self.parameters.is_active and self.sender != SERVER

    def header(self) -> bytes:
        """Return the 52 bytes that open the message."""
        return header_of(self.parameters, self.kind, self.sender, self.receiver)

    def close(
        self,
        *parts: bytes | memoryview,
        vector: bytes | memoryview = b"",
        identity: Identity | None = None,
    ) -> bytes:
        """Return the whole message around the parts of a body; `vector` ends it.

        Only a signature covers the vector. `ValueError` if the signing key is needed, and missing
        or another's.
        """
        hasher = hashlib.sha256(header := self.header())
        for part in (*parts, vector) if self.is_signed else parts:
            hasher.update(part)
        trailer = self._trailer(hasher.digest(), identity)
        return b"".join((header, *parts, vector, trailer))

    def _trailer(self, digest: bytes, identity: Identity | None) -> bytes:
        if not self.is_signed:
            return digest[:CHECKSUM_BYTES]
        if identity is None or identity.public != self.parameters.identity(self.sender):
            raise ValueError("identity must be the signing key of the client's seat in this round")
        return identity.sign(digest)

    def open(self, message: bytes, *, vector_bytes: int = 0) -> memoryview:
        """Return the body of a message that is exactly the one expected, without a copy.

        Only a signature covers its last `vector_bytes`. `ProtocolViolation` if it is another,
        without saying why; `Authentication` if its signature does not verify.
        """
        if not isinstance(message, bytes):
            raise refusal()
        header = self.header()
        end = len(message) - (SIGNATURE_BYTES if self.is_signed else CHECKSUM_BYTES)
        covered = end if self.is_signed else end - vector_bytes
        if covered < len(header) or message[: len(header)] != header:
            raise refusal()
        whole = memoryview(message)
        digest = hashlib.sha256(whole[:covered]).digest()
        trailer = message[end:]
        if self.is_signed:
            self._verify(digest, trailer)
        elif not compare_digest(digest[:CHECKSUM_BYTES], trailer):
            raise refusal()
        return whole[len(header) : end]

    def verify(self, body: bytes, signature: bytes) -> None:
        """Check a client's signature on a message of which the server passed on only the parts.

        `Authentication` if the sender did not sign exactly this message.
        """
        self._verify(hashlib.sha256(self.header() + body).digest(), signature)

    def _verify(self, digest: bytes, signature: bytes) -> None:
        verify_signature(self.parameters.identity(self.sender), digest, signature)


BOX_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES
COMMITMENT_BYTES = 32
COMMITMENTS_BYTES = 2 * COMMITMENT_BYTES

_INDEX = struct.Struct("<I")


class ShareType(IntEnum):
    """Which of a dealer's two secrets a revealed share belongs to."""

    SEED = 1
    KEY = 2


@dataclass(frozen=True)
class Dealing:
    """The server's view of one client's dealt shares.

    Attributes:
        commitment: Hash of the client's self-mask seed, 32 bytes.
        boxes: For each peer, the encrypted shares, 94 bytes.
        share_commitments: Against an active adversary, for each holder including the dealer, the
            hashes of its key share and its seed share, 64 bytes; empty otherwise.
    """

    commitment: bytes
    boxes: Mapping[int, bytes]
    share_commitments: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ForwardedShares:
    """What one dealer gave to one client, as the server passes it on.

    Attributes:
        box: The encrypted shares, 94 bytes.
        commitments: Against an active adversary the hashes that the server will check a revealed
            share against, 64 bytes; empty otherwise.
    """

    box: bytes
    commitments: bytes = b""


@dataclass(frozen=True)
class MaskedInput:
    """One client's masked vector, and its complaints about other clients.

    Attributes:
        vector: Ring elements, shape (vector_length,), in words of the ring.
        withheld: The dealers whose shares this client does not have, ascending.
    """

    vector: Words
    withheld: tuple[int, ...] = ()


@dataclass(frozen=True)
class Revealed:
    """One share that a client gives to the server: of a survivor's seed or a dropout's key."""

    share_type: ShareType
    share: bytes = field(repr=False)


def encode_advertised_keys(
    parameters: RoundParameters, client: int, keys: PublicKeys, *, identity: Identity | None = None
) -> bytes:
    """Encode kind 1, from a client to the server."""
    envelope = Envelope(parameters, Kind.ADVERTISED_KEYS, sender=client)
    return envelope.close(keys.channel, keys.mask, identity=identity)


def decode_advertised_keys(parameters: RoundParameters, client: int, message: bytes) -> PublicKeys:
    """Decode kind 1; raise `ProtocolViolation` as all decoders of this module do."""
    envelope = Envelope(parameters, Kind.ADVERTISED_KEYS, sender=client)
    body = envelope.open(message)
    if len(body) != 2 * KEY_BYTES:
        raise refusal()
    signature = message[-SIGNATURE_BYTES:] if envelope.is_signed else b""
    return PublicKeys(bytes(body[:KEY_BYTES]), bytes(body[KEY_BYTES:]), signature)


def encode_roster(
    parameters: RoundParameters, client: int, roster: Mapping[int, PublicKeys]
) -> bytes:
    """Encode kind 2, from the server to a client."""
    return Envelope(parameters, Kind.ROSTER, receiver=client).close(pack_roster(roster))


def decode_roster(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, PublicKeys]:
    """Decode kind 2; against an active adversary every owner's signature is verified."""
    body = Envelope(parameters, Kind.ROSTER, receiver=client).open(message)
    roster = unpack_roster(parameters, body)
    if parameters.is_active:
        for index, keys in roster.items():
            owner = Envelope(parameters, Kind.ADVERTISED_KEYS, sender=index)
            owner.verify(keys.channel + keys.mask, keys.signature)
    return roster


def box_context(parameters: RoundParameters, dealer: int, receiver: int) -> bytes:
    """Return the associated data of the box from a dealer to a receiver."""
    return header_of(parameters, Kind.DEALT_SHARES, sender=dealer, receiver=receiver)


def encode_dealt_shares(
    parameters: RoundParameters, client: int, dealing: Dealing, *, identity: Identity | None = None
) -> bytes:
    """Encode kind 3, from a client to the server."""
    envelope = Envelope(parameters, Kind.DEALT_SHARES, sender=client)
    commitments = dealing.share_commitments
    records = {peer: box + commitments.get(peer, b"") for peer, box in dealing.boxes.items()}
    own = commitments.get(client, b"")
    return envelope.close(dealing.commitment, own, pack_records(records), identity=identity)


def decode_dealt_shares(parameters: RoundParameters, client: int, message: bytes) -> Dealing:
    """Decode kind 3."""
    body = Envelope(parameters, Kind.DEALT_SHARES, sender=client).open(message)
    size = COMMITMENTS_BYTES if parameters.is_active else 0
    if len(body) < COMMITMENT_BYTES + size:
        raise refusal()
    records = unpack_records(body[COMMITMENT_BYTES + size :], BOX_BYTES + size)
    commitments = {peer: each[BOX_BYTES:] for peer, each in records.items()}
    commitments[client] = bytes(body[COMMITMENT_BYTES : COMMITMENT_BYTES + size])
    return Dealing(
        commitment=bytes(body[:COMMITMENT_BYTES]),
        boxes={peer: each[:BOX_BYTES] for peer, each in records.items()},
        share_commitments=commitments if parameters.is_active else {},
    )


def encode_forwarded_shares(
    parameters: RoundParameters, client: int, forwarded: Mapping[int, ForwardedShares]
) -> bytes:
    """Encode kind 4, from the server to a client, by dealer."""
    records = {dealer: each.box + each.commitments for dealer, each in forwarded.items()}
    return Envelope(parameters, Kind.FORWARDED_SHARES, receiver=client).close(pack_records(records))


def decode_forwarded_shares(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, ForwardedShares]:
    """Decode kind 4."""
    body = Envelope(parameters, Kind.FORWARDED_SHARES, receiver=client).open(message)
    size = COMMITMENTS_BYTES if parameters.is_active else 0
    records = unpack_records(body, BOX_BYTES + size)
    return {
        dealer: ForwardedShares(each[:BOX_BYTES], each[BOX_BYTES:])
        for dealer, each in records.items()
    }


def encode_masked_input(
    parameters: RoundParameters,
    client: int,
    masked: MaskedInput,
    *,
    identity: Identity | None = None,
) -> bytes:
    """Encode kind 5, from a client to the server."""
    envelope = Envelope(parameters, Kind.MASKED_INPUT, sender=client)
    vector = pack(masked.vector, parameters.ring_bits)
    return envelope.close(pack_indices(masked.withheld), vector=vector, identity=identity)


def decode_masked_input(parameters: RoundParameters, client: int, message: bytes) -> MaskedInput:
    """Decode kind 5, without a copy of the vector where the ring is a machine word."""
    size = packed_bytes(parameters.vector_length, parameters.ring_bits)
    body = Envelope(parameters, Kind.MASKED_INPUT, sender=client).open(message, vector_bytes=size)
    # The vector's size is known, so what stands before it needs no count.
    at = len(body) - size
    if at < 0:
        raise refusal()
    vector = unpack(body[at:], parameters.vector_length, parameters.ring_bits)
    if vector is None:
        raise refusal()
    return MaskedInput(vector, tuple(unpack_records(body[:at], 0)))


def encode_survivors(parameters: RoundParameters, client: int, survivors: Sequence[int]) -> bytes:
    """Encode kind 6, from the server to a client."""
    return Envelope(parameters, Kind.SURVIVORS, receiver=client).close(pack_indices(survivors))


def decode_survivors(parameters: RoundParameters, client: int, message: bytes) -> tuple[int, ...]:
    """Decode kind 6."""
    body = Envelope(parameters, Kind.SURVIVORS, receiver=client).open(message)
    return tuple(unpack_records(body, 0))


def encode_confirmed_transcript(
    parameters: RoundParameters, client: int, transcript: bytes, *, identity: Identity | None = None
) -> bytes:
    """Encode kind 7, from a client to the server."""
    envelope = Envelope(parameters, Kind.CONFIRMED_TRANSCRIPT, sender=client)
    return envelope.close(transcript, identity=identity)


def decode_confirmed_transcript(
    parameters: RoundParameters, client: int, transcript: bytes, message: bytes
) -> bytes:
    """Check kind 7 against the server's own transcript and return its signature."""
    body = Envelope(parameters, Kind.CONFIRMED_TRANSCRIPT, sender=client).open(message)
    if body != transcript:
        raise refusal()
    return message[-SIGNATURE_BYTES:]


def encode_confirmations(
    parameters: RoundParameters, client: int, signatures: Mapping[int, bytes]
) -> bytes:
    """Encode kind 8, from the server to a client."""
    return Envelope(parameters, Kind.CONFIRMATIONS, receiver=client).close(pack_records(signatures))


def decode_confirmations(
    parameters: RoundParameters, client: int, transcript: bytes, message: bytes
) -> tuple[int, ...]:
    """Decode kind 8 and return which invited clients signed the very same transcript, ascending."""
    body = Envelope(parameters, Kind.CONFIRMATIONS, receiver=client).open(message)
    records = unpack_records(body, SIGNATURE_BYTES)
    if not records.keys() <= parameters.invited:
        raise refusal()
    for index, signature in records.items():
        sender = Envelope(parameters, Kind.CONFIRMED_TRANSCRIPT, sender=index)
        sender.verify(transcript, signature)
    return tuple(records)


def encode_revealed_shares(
    parameters: RoundParameters,
    client: int,
    revealed: Mapping[int, Revealed],
    *,
    identity: Identity | None = None,
) -> bytes:
    """Encode kind 9, from a client to the server, shares by dealer."""
    records = {dealer: bytes([r.share_type]) + r.share for dealer, r in revealed.items()}
    envelope = Envelope(parameters, Kind.REVEALED_SHARES, sender=client)
    return envelope.close(pack_records(records), identity=identity)


def decode_revealed_shares(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, Revealed]:
    """Decode kind 9."""
    body = Envelope(parameters, Kind.REVEALED_SHARES, sender=client).open(message)
    records = unpack_records(body, 1 + SHARE_BYTES)
    types = {int(share_type): share_type for share_type in ShareType}
    if any(r[0] not in types or not is_share(r[1:]) for r in records.values()):
        raise refusal()
    return {dealer: Revealed(types[r[0]], r[1:]) for dealer, r in records.items()}


def pack_indices(indices: Iterable[int]) -> bytes:
    """Write a set of clients, in ascending order."""
    ascending = sorted(set(indices))
    return struct.pack(f"<{len(ascending)}I", *ascending)


def pack_roster(roster: Mapping[int, PublicKeys]) -> bytes:
    """Write the keys of clients, with their owners' signatures in an active round."""
    return pack_records({i: k.channel + k.mask + k.signature for i, k in roster.items()})


def unpack_roster(parameters: RoundParameters, body: bytes | memoryview) -> dict[int, PublicKeys]:
    """Read keys of invited clients, without checking a signature; see `unpack_records`."""
    signature = SIGNATURE_BYTES if parameters.is_active else 0
    records = unpack_records(body, 2 * KEY_BYTES + signature)
    if not records.keys() <= parameters.invited:
        raise refusal()
    return {
        index: PublicKeys(each[:KEY_BYTES], each[KEY_BYTES : 2 * KEY_BYTES], each[2 * KEY_BYTES :])
        for index, each in records.items()
    }


def pack_records(records: Mapping[int, bytes]) -> bytes:
    """Write index and value of every record, in ascending order of index."""
    return b"".join(_INDEX.pack(index) + records[index] for index in sorted(records))


def unpack_records(body: bytes | memoryview, size: int) -> dict[int, bytes]:
    """Read records whose values have `size` bytes, in strictly ascending order of index.

    `ProtocolViolation` if the length does not fit or the order is another.
    """
    stride = _INDEX.size + size
    if len(body) % stride:
        raise refusal()
    records: dict[int, bytes] = dict(struct.iter_unpack(f"<I{size}s", body))
    # A repeated index makes fewer records of the same bytes.
    if len(records) * stride != len(body) or SERVER in records or list(records) != sorted(records):
        raise refusal()
    return records

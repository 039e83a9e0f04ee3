"""The wire format: seven messages, one canonical encoding each, all integers little-endian.

    header    "SA", version 1, kind (1 byte), digest of the parameters (32), round, attempt,
              sender, receiver (4 each; 0 is the server)                            52 bytes
    body      fixed by the kind, below
    checksum  first 16 bytes of SHA-256 over header and body

    kind                    sender   body
    1 advertised keys       client   channel key (32), mask key (32)
    2 roster                server   for each client: index (4), channel key (32), mask key (32)
    3 dealt shares          client   seed commitment (32); for each peer: index (4), box (94)
    4 forwarded shares      server   for each dealer: index (4), box (94)
    5 masked input          client   vector_length words of ring_bits / 8 bytes
    6 survivors             server   for each survivor: index (4)
    7 revealed shares       client   for each dealer: index (4), share type (1), share (33)

A box is an AES-256-GCM nonce, the encrypted key share and seed share (66) and a tag; its associated
data is the header of kind 3 from its dealer to its receiver. Records stand in strictly ascending
order of index, so a set has one encoding and a repeated client none; in kind 7 this also leaves no
way to write down both shares of one dealer.

A receiver knows every byte of the header that it may accept, so it compares instead of parsing.
The checksum catches accidents on the way. It authenticates nobody: against an active adversary
messages are signed, which is outside this version.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hmac import compare_digest

import numpy as np

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation.keys import KEY_BYTES, NONCE_BYTES, TAG_BYTES, PublicKeys
from privacy.secure_aggregation.masking import Words, word_type
from privacy.secure_aggregation.parameters import RoundParameters
from privacy.secure_aggregation.shamir import SHARE_BYTES, is_share

MAGIC = b"SA"
VERSION = 1
SERVER = 0
CHECKSUM_BYTES = 16
BOX_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES

_HEADER = struct.Struct("<2sBB32sIIII")
_INDEX = struct.Struct("<I")


class Kind(IntEnum):
    """The seven messages of a round, in the order in which they are sent."""

    ADVERTISED_KEYS = 1
    ROSTER = 2
    DEALT_SHARES = 3
    FORWARDED_SHARES = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    REVEALED_SHARES = 7


class ShareType(IntEnum):
    """Which of a dealer's two secrets a revealed share belongs to."""

    SEED = 1
    KEY = 2


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

    def header(self) -> bytes:
        """Return the 52 bytes that open the message; also the associated data of boxes."""
        return _HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.parameters.digest,
            self.parameters.round_number,
            self.parameters.attempt,
            self.sender,
            self.receiver,
        )

    def close(self, *parts: bytes | memoryview) -> bytes:
        """Return the whole message around the parts of a body."""
        hasher = hashlib.sha256(header := self.header())
        for part in parts:
            hasher.update(part)
        return b"".join((header, *parts, hasher.digest()[:CHECKSUM_BYTES]))

    def open(self, message: bytes) -> memoryview:
        """Return the body of a message that is exactly the one expected, without a copy.

        Raises:
            ProtocolViolation: If it is not; the error does not say why.
        """
        header = self.header()
        end = len(message) - CHECKSUM_BYTES
        if end < len(header) or message[: len(header)] != header:
            raise refusal()
        whole = memoryview(message)
        if not compare_digest(hashlib.sha256(whole[:end]).digest()[:CHECKSUM_BYTES], whole[end:]):
            raise refusal()
        return whole[len(header) : end]


@dataclass(frozen=True)
class Dealing:
    """The server's view of one client's dealt shares.

    Attributes:
        commitment: Hash of the client's self-mask seed, 32 bytes.
        boxes: For each peer, the encrypted shares, 94 bytes.
    """

    commitment: bytes
    boxes: Mapping[int, bytes]


@dataclass(frozen=True)
class Revealed:
    """One share that a client gives to the server: of a survivor's seed or a dropout's key."""

    share_type: ShareType
    share: bytes = field(repr=False)


def refusal() -> ProtocolViolation:
    """Return the one error for every message that a party does not take."""
    return ProtocolViolation("the message was refused")


def encode_advertised_keys(parameters: RoundParameters, client: int, keys: PublicKeys) -> bytes:
    """Encode kind 1, from a client to the server."""
    envelope = Envelope(parameters, Kind.ADVERTISED_KEYS, sender=client)
    return envelope.close(keys.channel, keys.mask)


def decode_advertised_keys(parameters: RoundParameters, client: int, message: bytes) -> PublicKeys:
    """Decode kind 1; raises `ProtocolViolation` as all decoders of this module do."""
    body = Envelope(parameters, Kind.ADVERTISED_KEYS, sender=client).open(message)
    if len(body) != 2 * KEY_BYTES:
        raise refusal()
    return PublicKeys(bytes(body[:KEY_BYTES]), bytes(body[KEY_BYTES:]))


def encode_roster(
    parameters: RoundParameters, client: int, roster: Mapping[int, PublicKeys]
) -> bytes:
    """Encode kind 2, from the server to a client."""
    records = {index: keys.channel + keys.mask for index, keys in roster.items()}
    return Envelope(parameters, Kind.ROSTER, receiver=client).close(pack_records(records))


def decode_roster(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, PublicKeys]:
    """Decode kind 2."""
    body = Envelope(parameters, Kind.ROSTER, receiver=client).open(message)
    records = unpack_records(body, 2 * KEY_BYTES)
    return {i: PublicKeys(keys[:KEY_BYTES], keys[KEY_BYTES:]) for i, keys in records.items()}


def box_context(parameters: RoundParameters, dealer: int, receiver: int) -> bytes:
    """Return the associated data of the box from a dealer to a receiver."""
    return Envelope(parameters, Kind.DEALT_SHARES, sender=dealer, receiver=receiver).header()


def encode_dealt_shares(parameters: RoundParameters, client: int, dealing: Dealing) -> bytes:
    """Encode kind 3, from a client to the server."""
    envelope = Envelope(parameters, Kind.DEALT_SHARES, sender=client)
    return envelope.close(dealing.commitment, pack_records(dealing.boxes))


def decode_dealt_shares(parameters: RoundParameters, client: int, message: bytes) -> Dealing:
    """Decode kind 3."""
    body = Envelope(parameters, Kind.DEALT_SHARES, sender=client).open(message)
    if len(body) < KEY_BYTES:
        raise refusal()
    boxes = unpack_records(body[KEY_BYTES:], BOX_BYTES)
    return Dealing(commitment=bytes(body[:KEY_BYTES]), boxes=boxes)


def encode_forwarded_shares(
    parameters: RoundParameters, client: int, boxes: Mapping[int, bytes]
) -> bytes:
    """Encode kind 4, from the server to a client, boxes by dealer."""
    return Envelope(parameters, Kind.FORWARDED_SHARES, receiver=client).close(pack_records(boxes))


def decode_forwarded_shares(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, bytes]:
    """Decode kind 4."""
    body = Envelope(parameters, Kind.FORWARDED_SHARES, receiver=client).open(message)
    return unpack_records(body, BOX_BYTES)


def encode_masked_input(parameters: RoundParameters, client: int, vector: Words) -> bytes:
    """Encode kind 5, from a client to the server."""
    return Envelope(parameters, Kind.MASKED_INPUT, sender=client).close(vector.data.cast("B"))


def decode_masked_input(parameters: RoundParameters, client: int, message: bytes) -> Words:
    """Decode kind 5 into a read-only view of the message, shape (vector_length,)."""
    body = Envelope(parameters, Kind.MASKED_INPUT, sender=client).open(message)
    if len(body) != parameters.vector_length * parameters.ring_bits // 8:
        raise refusal()
    return np.frombuffer(body, dtype=word_type(parameters.ring_bits))


def encode_survivors(parameters: RoundParameters, client: int, survivors: Sequence[int]) -> bytes:
    """Encode kind 6, from the server to a client."""
    records = dict.fromkeys(survivors, b"")
    return Envelope(parameters, Kind.SURVIVORS, receiver=client).close(pack_records(records))


def decode_survivors(parameters: RoundParameters, client: int, message: bytes) -> tuple[int, ...]:
    """Decode kind 6."""
    body = Envelope(parameters, Kind.SURVIVORS, receiver=client).open(message)
    return tuple(unpack_records(body, 0))


def encode_revealed_shares(
    parameters: RoundParameters, client: int, revealed: Mapping[int, Revealed]
) -> bytes:
    """Encode kind 7, from a client to the server, shares by dealer."""
    records = {dealer: bytes([r.share_type]) + r.share for dealer, r in revealed.items()}
    return Envelope(parameters, Kind.REVEALED_SHARES, sender=client).close(pack_records(records))


def decode_revealed_shares(
    parameters: RoundParameters, client: int, message: bytes
) -> dict[int, Revealed]:
    """Decode kind 7."""
    body = Envelope(parameters, Kind.REVEALED_SHARES, sender=client).open(message)
    records = unpack_records(body, 1 + SHARE_BYTES)
    types = {int(share_type): share_type for share_type in ShareType}
    if any(r[0] not in types or not is_share(r[1:]) for r in records.values()):
        raise refusal()
    return {dealer: Revealed(types[r[0]], r[1:]) for dealer, r in records.items()}


def pack_records(records: Mapping[int, bytes]) -> bytes:
    """Write index and value of every record, in ascending order of index."""
    return b"".join(_INDEX.pack(index) + records[index] for index in sorted(records))


def unpack_records(body: bytes | memoryview, size: int) -> dict[int, bytes]:
    """Read records whose values have `size` bytes, in strictly ascending order of index.

    Raises:
        ProtocolViolation: If the length does not fit or the order is another.
    """
    stride = _INDEX.size + size
    if len(body) % stride:
        raise refusal()
    records: dict[int, bytes] = {}
    last = SERVER
    for start in range(0, len(body), stride):
        (index,) = _INDEX.unpack_from(body, start)
        if index <= last:
            raise refusal()
        records[last := index] = bytes(body[start + _INDEX.size : start + stride])
    return records

"""What all messages have in common: who says what to whom in which round, and the proof of it.

    header    "SA", version 4, kind (1 byte), digest of the parameters (32), round, attempt,
              sender, receiver (4 each; 0 is the server)                            52 bytes
    body      fixed by the kind, see `messages`
    trailer   checksum: the first 16 bytes of SHA-256 over header and body, but for a masked
              vector at its end; or, from a client against an active adversary, its Ed25519
              signature of the SHA-256 over all of both                             16 or 64 bytes

A receiver knows every byte of the header that it may accept, so it compares instead of parsing.
The checksum catches accidents on the way and authenticates nobody. It leaves out masked vectors: to
hash one is most of what taking it in costs, and a changed vector does no more to the sum than its
sender could. The server signs nothing: what a client must not take on its word comes with the
signatures of other clients.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from hmac import compare_digest

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation.identities import SIGNATURE_BYTES, Identity, verify_signature
from privacy.secure_aggregation.parameters import PROTOCOL_VERSION, RoundParameters

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

    @property
    def trailer_bytes(self) -> int:
        """How many bytes follow the body."""
        return SIGNATURE_BYTES if self.is_signed else CHECKSUM_BYTES

    def header(self) -> bytes:
        """Return the 52 bytes that open the message."""
        return header_of(self.parameters, self.kind, self.sender, self.receiver)

    def close(
        self,
        *parts: bytes | memoryview,
        vector: bytes | memoryview = b"",
        identity: Identity | None = None,
    ) -> bytes:
        """Return the whole message around the parts of a body.

        Args:
            parts: The body.
            vector: What ends it and only a signature covers.
            identity: The sender's signing key, needed if the message is signed.

        Raises:
            ValueError: If it is needed and missing or another's.
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

        Args:
            message: The whole message.
            vector_bytes: How much at the end of the body only a signature covers.

        Raises:
            ProtocolViolation: If it is not; the error does not say why.
            Authentication: If its signature does not verify.
        """
        if not isinstance(message, bytes):
            raise refusal()
        header = self.header()
        end = len(message) - self.trailer_bytes
        covered = end if self.is_signed else end - vector_bytes
        if covered < len(header) or message[: len(header)] != header:
            raise refusal()
        whole = memoryview(message)
        self._require_trailer(hashlib.sha256(whole[:covered]).digest(), message[end:])
        return whole[len(header) : end]

    def _require_trailer(self, digest: bytes, trailer: bytes) -> None:
        if self.is_signed:
            self._verify(digest, trailer)
        elif not compare_digest(digest[:CHECKSUM_BYTES], trailer):
            raise refusal()

    def verify(self, body: bytes, signature: bytes) -> None:
        """Check a client's signature on a message of which the server passed on only the parts.

        Raises:
            Authentication: If the sender did not sign exactly this message.
        """
        self._verify(hashlib.sha256(self.header() + body).digest(), signature)

    def _verify(self, digest: bytes, signature: bytes) -> None:
        verify_signature(self.parameters.identity(self.sender), digest, signature)


def signature_of(message: bytes) -> bytes:
    """Return the signature of a signed message that was opened before."""
    return message[-SIGNATURE_BYTES:]

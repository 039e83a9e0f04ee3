"""Which bytes clients have uploaded, for the receipts that tell them so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from platform.errors import ProtocolError
from platform.wire.codec import peek
from platform.wire.receipt_messages import MOST_SENT, UploadDigest
from platform.wire.transport import ClientId, Dropout


@dataclass
class UploadsReceived:
    """What the clients of a run have uploaded, and what they were told of it.

    Kept for the clients, and not beyond this process: where vectors travel in the clear and a pool
    holds the same ones, whoever found digests of uploads in a file could tell whose entry is whose.
    """

    _known: dict[ClientId, tuple[UploadDigest, ...]] = field(default_factory=dict)
    _told: Mapping[ClientId, tuple[UploadDigest, ...]] = field(default_factory=dict)

    def of(self, client: ClientId) -> tuple[UploadDigest, ...]:
        """Return what a client has yet to be told of."""
        return self._known.get(client, ())

    def tell(self, told: Mapping[ClientId, tuple[UploadDigest, ...]]) -> None:
        """Remember what clients are told of now."""
        self._told = told

    def forget(self, client: ClientId) -> None:
        """Forget what a client was told of, as it has shown that it heard."""
        told = self._told.get(client, ())
        self._known[client] = tuple(one for one in self.of(client) if one not in told)

    def remember(self, answers: Mapping[ClientId, bytes | Dropout]) -> None:
        """Remember the uploads among these answers."""
        for client, answer in answers.items():
            if isinstance(answer, Dropout):
                continue
            try:
                kind, envelope = peek(answer)
            except ProtocolError:
                continue
            if kind == "upload":
                digest = hashlib.sha256(answer).digest()
                upload = UploadDigest(envelope.round_number, envelope.attempt, digest)
                self._known[client] = (*self.of(client), upload)[-MOST_SENT:]

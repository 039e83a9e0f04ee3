"""What a client that has left a run for good answers to every further message of that run.

| from -> to            | message | what                                        |
|-----------------------|---------|---------------------------------------------|
| client -> coordinator | `Left`  | that it takes part no more, under its key   |

It names the run, so it says nothing in another, and the client, so it is good for nobody else. It
carries no time and nothing of the message that it answers: it is the same bytes whatever was asked,
and may as well be handed over by another way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from platform.errors import ProtocolError
from platform.wire.codec import MAX_NAME, Frame, encode_frame
from platform.wire.envelopes import Envelope, blob, envelope_fields, opened

KIND: Final = "left"
_SIGNED: Final = b"sotto/leaving/v1\n"
_SIGNATURES: Final = (0, 64)
"""Bytes of a signature, or none where nobody has a key."""


@dataclass(frozen=True)
class Left:
    """Says that a client has left a run for good.

    Attributes:
        run_id: The run.
        client: The client's name in the federation.
        pseudonym: Its name in ledger and audit log.
        signature: Of `digest`, under the client's identity key; empty without one.
    """

    run_id: str
    client: str
    pseudonym: str
    signature: bytes = b""

    @property
    def digest(self) -> bytes:
        """What is signed: SHA-256 of a marker, the run, the client and its pseudonym."""
        text = json.dumps([self.run_id, self.client, self.pseudonym], separators=(",", ":"))
        return hashlib.sha256(_SIGNED + text.encode("ascii")).digest()


def encode_left(message: Left) -> bytes:
    """Serialise a statement of leaving; its envelope is of round 0."""
    fields = {
        **envelope_fields(Envelope(message.run_id, 0, 0)),
        "client": message.client,
        "pseudonym": message.pseudonym,
    }
    return encode_frame(Frame(KIND, fields, {}, {"signature": message.signature}))


def decode_left(data: bytes) -> Left:
    """Read a statement of leaving; whether it is true is another question.

    Raises:
        ProtocolError: If it is none.
    """
    frame, envelope = opened(data, KIND)
    if envelope != Envelope(envelope.run_id, 0, 0) or frame.arrays or len(frame.blobs) > 1:
        raise ProtocolError("message: it carries what it has no room for")
    names: list[str] = []
    for field in ("client", "pseudonym"):
        name = frame.fields.get(field)
        # They end up in logs and on terminals.
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise ProtocolError(f"message: the {field} is missing")
        names.append(name)
    signature = blob(frame, "signature")
    if len(signature) not in _SIGNATURES:
        raise ProtocolError("message: the signature is none")
    return Left(envelope.run_id, names[0], names[1], signature)

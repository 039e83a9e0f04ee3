"""Messages that carry another message, and beside it a receipt or how far a log was seen.

| from -> to            | message    | what                                                        |
|-----------------------|------------|-------------------------------------------------------------|
| coordinator -> client | `Enclosed` | a receipt, and the next round's first message beside it     |
| client -> coordinator | `Answered` | how far the client has seen the log, and the answer to that |

A receipt rides on what is sent anyway, so nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from platform.errors import ProtocolError
from platform.wire.codec import Frame, encode_frame
from platform.wire.envelopes import envelope_fields, integers, opened, peek
from platform.wire.receipts import text_of


@dataclass(frozen=True)
class Witnessed:
    """How far a client has seen the log.

    Attributes:
        size: Of the newest tree that it has found to continue all that it saw before.
        key: The client's public key for that, as text.
        cosignature: The line by which it signs that; empty where it needs a proof from `size`.
    """

    size: int
    key: str
    cosignature: str


def enclose(message: bytes, receipt: bytes) -> bytes:
    """Return a message that carries another and a receipt."""
    # Under the message's own envelope, by which those on the way know what it belongs to.
    fields = envelope_fields(peek(message)[1])
    return encode_frame(Frame("enclosed", fields, {}, {"message": message, "beside": receipt}))


def is_enclosed(message: bytes) -> bool:
    """Return whether a message carries another and a receipt.

    Raises:
        ProtocolError: If it does not parse.
    """
    return peek(message)[0] == "enclosed"


def bare(message: bytes) -> bytes:
    """Return the message that one carries beside a receipt, or one that carries none itself.

    Raises:
        ProtocolError: If it does not parse.
    """
    return unclose(message)[0] if is_enclosed(message) else message


def unclose(data: bytes) -> tuple[bytes, bytes]:
    """Return the message and the receipt that one carries.

    Raises:
        ProtocolError: If it carries none, or they are of different runs.
    """
    frame, message = _unclosed(data, "enclosed", _ENCLOSED)
    receipt = frame.blobs["beside"]
    if peek(receipt)[1].run_id != peek(message)[1].run_id:
        raise ProtocolError("message: what it carries belongs elsewhere")
    return message, receipt


def enclose_answer(reply: bytes, witnessed: Witnessed) -> bytes:
    """Return an answer that carries another, and how far its client has seen the log."""
    fields = {**envelope_fields(peek(reply)[1]), "size": witnessed.size}
    blobs = {
        "message": reply,
        "cosignature": witnessed.cosignature.encode(),
        "key": witnessed.key.encode(),
    }
    return encode_frame(Frame("answered", fields, {}, blobs))


def unclose_answer(data: bytes) -> tuple[bytes, Witnessed | None]:
    """Return an answer, and how far its client has seen the log; None where it does not say so.

    Raises:
        ProtocolError: If it does not parse.
    """
    if peek(data)[0] != "answered":
        return data, None
    frame, reply = _unclosed(data, "answered", _ANSWERED)
    (size,) = integers([frame.fields.get("size")], 1)
    return reply, Witnessed(size, text_of(frame, "key"), text_of(frame, "cosignature"))


def _unclosed(data: bytes, kind: str, names: Set[str]) -> tuple[Frame, bytes]:
    frame, envelope = opened(data, kind)
    if frame.blobs.keys() != names or frame.arrays:
        raise ProtocolError("message: it carries what it has no room for")
    message = frame.blobs["message"]
    inner, its_envelope = peek(message)
    if its_envelope != envelope or inner == kind:
        raise ProtocolError("message: what it carries belongs elsewhere")
    return frame, message


_ENCLOSED: Final = frozenset({"message", "beside"})
_ANSWERED: Final = frozenset({"message", "cosignature", "key"})

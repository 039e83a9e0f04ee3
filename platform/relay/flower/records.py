"""What is inside Flower's messages: one record of bytes, and a secret that an answer repeats.

SuperLink does not compare who sends an answer with whom the answer claims to be from. The secret
is drawn anew for each message and only its addressee can fetch it, so nobody else can answer.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any, Final

from platform.errors import ProtocolError

RECORD: Final = "sotto"
TYPE: Final = "query"
SECRET_BYTES: Final = 32


def asked(node: int, packet: bytes, seconds: float) -> tuple[Any, bytes]:
    """Return a message for a node, and the secret that its answer must repeat.

    Args:
        node: SuperLink's number of the node.
        packet: What the client's process is handed.
        seconds: How long the hub waits; the message is forgotten then.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    secret = secrets.token_bytes(SECRET_BYTES)
    record = ConfigRecord({"packet": packet, "secret": secret, "seconds": seconds})
    content = RecordDict({RECORD: record})
    # A message of an hour ago is of no use; one that has just run out would be an error.
    return Message(content, node, TYPE, ttl=seconds + 10.0), secret


def read(message: Any) -> tuple[bytes, bytes, float]:
    """Return a message's packet, secret and seconds.

    Raises:
        ProtocolError: If it holds anything else.
    """
    record = message.content[RECORD] if message.has_content() and RECORD in message.content else {}
    packet, secret, seconds = (record.get(key) for key in ("packet", "secret", "seconds"))
    if not isinstance(packet, bytes) or not isinstance(secret, bytes):
        raise ProtocolError("message: it holds no packet")
    if not isinstance(seconds, float):
        raise ProtocolError("message: it names no time")
    return packet, secret, seconds


def answered(message: Any, outcome: bytes, secret: bytes) -> Any:
    """Return the answer to a message."""
    from flwr.app import ConfigRecord, Message, RecordDict

    record = ConfigRecord({"packet": outcome, "secret": secret, "seconds": 0.0})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def outcome_of(reply: Any, secret: bytes) -> bytes | None:
    """Return an answer's outcome; None unless it repeats the secret."""
    try:
        outcome, repeated, _ = read(reply)
    except ProtocolError:
        return None
    return outcome if hmac.compare_digest(repeated, secret) else None

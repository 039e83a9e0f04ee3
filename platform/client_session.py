"""How far one attempt has come on a client, as it lies in the client's own store between messages.

A client may be a new process at every message, so nothing of this lives in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from methods import Arrays
from platform.codec import Frame, decode_frame, encode_frame
from platform.errors import ProtocolError
from platform.messages import Attempt, Envelope
from privacy.secure_aggregation import ClientState, decode_client_state, encode_client_state
from storage import SessionRecord

Awaits = Literal["share", "train", "unmask", "nothing"]
KINDS: Mapping[Awaits, str] = {"share": "relay", "train": "assignment", "unmask": "relay"}
"""Kind of the message that each stage begins with."""


@dataclass(frozen=True)
class Session:
    """How far one attempt has come.

    Attributes:
        envelope: The attempt.
        awaits: The stage whose message may come next.
        clipping_norm: Of the round, where it adapts.
        secure: State of the secure aggregation, None without it.
        entry: The pool entry that goes with the unmasking, once trained; empty without one.
    """

    envelope: Envelope
    awaits: Awaits
    clipping_norm: float | None = None
    secure: ClientState | None = field(default=None, repr=False)
    entry: Arrays = field(default_factory=dict, repr=False)


def encode_session(session: Session) -> bytes:
    """A session as bytes; they may hold secrets, so they stay in the client's store."""
    committed, secure = session.envelope.committed, session.secure
    fields = {
        "awaits": session.awaits,
        "clipping_norm": session.clipping_norm,
        "committed": None if committed is None else list(committed),
    }
    blobs = {} if secure is None else {"secure": encode_client_state(secure)}
    return encode_frame(Frame("session", fields, session.entry, blobs))


def decode_session(record: SessionRecord) -> Session | None:
    """The session of a store's record; None once the attempt is committed.

    Raises:
        ProtocolError: If the bytes are none.
    """
    if not record.state:
        return None
    frame = decode_frame(record.state)
    if frame.kind != "session":
        raise ProtocolError("message: the stored session is not valid")
    fields: Mapping[str, Any] = frame.fields
    committed = cast("Attempt | None", fields["committed"] and tuple(fields["committed"]))
    return Session(
        Envelope(record.run_id, record.round_number, record.attempt, committed),
        fields["awaits"],
        fields["clipping_norm"],
        decode_client_state(frame.blobs["secure"]) if "secure" in frame.blobs else None,
        frame.arrays,
    )

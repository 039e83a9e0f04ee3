"""How far one attempt has come on a client, as it lies in the client's own store between messages.

A client may be a new process at every message, so nothing of this lives in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

from methods import Arrays
from platform.errors import CoordinatorBehind, ProtocolError
from platform.protection.uploads import Protection
from platform.wire.codec import Frame, decode_frame, encode_frame
from platform.wire.envelopes import Attempt, Envelope
from platform.wire.messages import Invitation
from platform.wire.receipts import MOST_SENT, UploadDigest, decode_uploads, encode_uploads
from privacy.secure_aggregation import ClientState, decode_client_state, encode_client_state
from storage import SessionRecord

_SENT: Final = "sent"

Awaits = Literal["share", "train", "unmask", "nothing"]
KINDS: Mapping[Awaits, str] = {"share": "relay", "train": "assignment", "unmask": "relay"}
"""Kind of the message that each stage begins with."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """How far one attempt has come.

    Attributes:
        envelope: The attempt.
        awaits: The stage whose message may come next.
        clipping_norm: Of the round, where it adapts.
        secure: State of the secure aggregation, None without it.
        entry: The pool entry that goes with the unmasking, once trained; empty without one.
        ahead: Keys that were made for the next round, None without any. They are in no session but
            that of this attempt, and whatever session takes its place is without them: so they are
            used once, or never.
        sent: Uploads that left the client in this attempt and some before it, oldest first.
    """

    envelope: Envelope
    awaits: Awaits
    clipping_norm: float | None = None
    secure: ClientState | None = field(default=None, repr=False)
    entry: Arrays = field(default_factory=dict, repr=False)
    ahead: ClientState | None = field(default=None, repr=False)
    sent: tuple[UploadDigest, ...] = ()

    def having_sent(self, upload: bytes) -> Session:
        """Return the session once an upload is on its way."""
        attempt = (self.envelope.round_number, self.envelope.attempt)
        digest = UploadDigest(*attempt, hashlib.sha256(upload).digest())
        return replace(self, sent=(*self.sent, digest)[-MOST_SENT:])


def encode_session(session: Session) -> bytes:
    """Return a session as bytes; they may hold secrets, so they stay in the client's store."""
    committed, secure = session.envelope.committed, session.secure
    fields = {
        "awaits": session.awaits,
        "clipping_norm": session.clipping_norm,
        "committed": None if committed is None else list(committed),
    }
    states = {"secure": secure, "ahead": session.ahead}
    blobs = {
        name: encode_client_state(state) for name, state in states.items() if state is not None
    }
    if session.sent:
        blobs[_SENT] = encode_uploads(session.sent)
    return encode_frame(Frame("session", fields, session.entry, blobs))


def decode_session(record: SessionRecord) -> Session | None:
    """Return the session of a store's record; None once the attempt is committed.

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
    states = {n: decode_client_state(blob) for n, blob in frame.blobs.items() if n != _SENT}
    return Session(
        envelope=Envelope(record.run_id, record.round_number, record.attempt, committed),
        awaits=fields["awaits"],
        clipping_norm=fields["clipping_norm"],
        secure=states.get("secure"),
        entry=frame.arrays,
        ahead=states.get("ahead"),
        sent=decode_uploads(frame.blobs.get(_SENT, b"")),
    )


def sent_before(record: SessionRecord | None) -> tuple[UploadDigest, ...]:
    """Return the uploads that a store's record tells of: those of its newest attempts.

    Raises:
        ProtocolError: If the bytes are none.
    """
    if record is None or not record.state:
        return ()
    return decode_uploads(decode_frame(record.state).blobs.get(_SENT, b""))


def begun(invitation: Invitation, known: SessionRecord | None) -> Session:
    """Return the session that an invitation opens after another one."""
    return Session(
        envelope=invitation.envelope,
        awaits="train",
        clipping_norm=invitation.clipping_norm,
        sent=sent_before(known),
    )


def awaited(kind: str, envelope: Envelope, known: SessionRecord | None) -> Session:
    """Return the session that a message goes on with.

    Raises:
        ProtocolError: If the message is not what the client awaits.
    """
    session = None if known is None else decode_session(known)
    if session is None or session.envelope != envelope or KINDS.get(session.awaits) != kind:
        raise ProtocolError(f"message: {kind} is not what this client awaits")
    return session


def require_new(envelope: Envelope, known: SessionRecord | None, protection: Protection) -> None:
    """Refuse an attempt that is not newer than all that this client has answered.

    Raises:
        CoordinatorBehind: If the client has answered a newer one.
        ProtocolError: If it has answered this one, or sent what may leave it once a round.
    """
    number, attempt = envelope.round_number, envelope.attempt
    if known is None:
        return
    newest = (known.round_number, known.attempt)
    if (number, attempt) < newest:
        raise CoordinatorBehind(
            f"a client has answered round {newest[0]}, attempt {newest[1]} of run "
            f"{envelope.run_id} already and is asked for round {number}, attempt {attempt}; the "
            "coordinator's database is older than the client's"
        )
    if (number, attempt) == newest:
        raise ProtocolError("message: another request was answered in this attempt")
    if known.noiseless_round == number and protection.masked and not protection.has_client_noise:
        raise ProtocolError(
            "message: a masked vector without noise leaves a client in one attempt of a round"
        )

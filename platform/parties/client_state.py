"""A client's data in its own store between messages: the session and the personal states.

A session says how far one attempt has come. A client may be a new process at every message, so
no part of a session lives in memory only. Personal states follow the coordinator's commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

from methods import Arrays
from platform.errors import ClientRestored, CoordinatorBehind, ProtocolError
from platform.parties.profile import ClientProfile, PersonalState, first_state
from platform.protection.uploads import Protection
from platform.wire.codec import Attempt, Envelope, Frame, decode_arrays, decode_frame, encode_frame
from platform.wire.layout import decode_experts, handle
from platform.wire.messages import Invitation
from platform.wire.receipt_messages import MOST_SENT, UploadDigest, decode_uploads, encode_uploads
from privacy.secure_aggregation import ClientState, decode_client_state, encode_client_state
from storage import ClientStore, SessionRecord

_SENT: Final = "sent"

Awaits = Literal["share", "train", "unmask", "nothing"]
KINDS: Mapping[Awaits, str] = {"share": "relay", "train": "assignment", "unmask": "relay"}
"""By stage, the kind of its first message."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """How far one attempt has come.

    Attributes:
        envelope: The attempt.
        awaits: The stage whose message may come next.
        clipping_norm: The clipping norm of the round, if it adapts.
        secure: State of the secure aggregation, None without it.
        entry: The pool entry that goes with the unmasking, once trained; empty without one.
        ahead: Keys that the client made for the next round, None without keys. The next session
            does not keep them, so the client uses them at most once.
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
        """Return the session after this upload."""
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
    """Return the session of a store's record; None after the attempt is committed.

    Raises:
        ProtocolError: If the bytes are not a session.
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
    """Return the uploads that a store's record names: those of its newest attempts.

    Raises:
        ProtocolError: If the bytes are not valid.
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
    """Return the session that a message continues.

    Raises:
        ProtocolError: If the client awaits another message.
    """
    session = None if known is None else decode_session(known)
    if session is None or session.envelope != envelope or KINDS.get(session.awaits) != kind:
        raise ProtocolError(f"message: {kind} is not what this client awaits")
    return session


def require_new(envelope: Envelope, known: SessionRecord | None, protection: Protection) -> None:
    """Refuse an attempt that is not newer than all attempts that this client has answered.

    Raises:
        CoordinatorBehind: If the client has answered a newer attempt.
        ProtocolError: If it has answered this attempt, or has sent an upload that may leave it only
            once a round.
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


@dataclass(frozen=True)
class PersonalStates:
    """The personal states of one client.

    Attributes:
        profile: The client.
        store: The client's own store.
    """

    profile: ClientProfile
    store: ClientStore

    def after(self, committed: Attempt | None) -> tuple[PersonalState, Attempt | None]:
        """Return the state that counts after `committed`, and the attempt that made it.

        If the client has gone on from there, it returns its newest state and attempt.
        """
        run = self.profile.run
        found = self._saved(run.run_id, committed) or self._saved(run.source, committed)
        return found or (PersonalState(first_state(self.profile), ()), None)

    def before_parting(self, committed: Attempt | None) -> PersonalState:
        """Return the state from which the client personalises: that of the run with the rounds."""
        found = self._saved(self.profile.run.source, committed)
        return PersonalState(first_state(self.profile), ()) if found is None else found[0]

    def is_kept(self, kept_as: Attempt) -> bool:
        """Return whether the client has already personalised under that attempt."""
        kept = self.store.committed(self.profile.run.run_id)
        return kept is not None and kept[:2] == kept_as

    def require_caught_up(self) -> None:
        """Refuse to use a restored store before the client has caught up.

        Raises:
            ClientRestored: If the store came back from a backup and has not caught up.
        """
        since = self.store.restoring.pending_since()
        if since is not None:
            raise ClientRestored(
                f"the client takes no part: its store was restored from a backup at {since}, and "
                "it has not caught up with what it released since"
            )

    def require_known(self, committed: Attempt | None) -> None:
        """Refuse a commit in which this client took no part.

        Raises:
            CoordinatorBehind: If the client knows of a newer commit.
            ProtocolError: If it took no part in this commit.
        """
        run_id = self.profile.run.source
        last, pending = (slot and slot[:2] for slot in self.store.slots(run_id))
        if last is not None and last > (committed or (0, 0)):
            raise CoordinatorBehind(
                f"client {self.store.identity.pseudonym}: it knows that round {last[0]}, attempt "
                f"{last[1]} of run {run_id} is committed, and the coordinator does not; its "
                "database is older than the client's"
            )
        if committed in (last, pending):
            return
        # A restored store that caught up with an attempt holds only its charge.
        if committed is None or not self.store.restoring.has_taken_over(run_id, committed):
            raise ProtocolError("message: it names a commit that this client took no part in")

    def roll(self, committed: Attempt | None) -> None:
        """Follow the coordinator's commit: personal part, own ledger and session."""
        self.follow(committed)
        sessions, run_id = self.store.sessions, self.profile.run.source
        session = sessions.newest(run_id)
        if session is not None and (session.round_number, session.attempt) == committed:
            sessions.forget(run_id)

    def follow(self, committed: Attempt | None) -> None:
        """Follow the coordinator's commit: personal part and own ledger, not the session."""
        self.store.roll(self.profile.run.source, committed)
        if committed is not None:
            self.store.release(self.profile.run.source, *committed)

    def pool_handle(self, round_number: int) -> bytes:
        """Return the handle by which this client owns its pool entry of that round."""
        return handle(self.store.identity.handle_secret, self.profile.run.source, round_number)

    def _saved(
        self, run_id: str, committed: Attempt | None
    ) -> tuple[PersonalState, Attempt | None] | None:
        saved, pending = self.store.slots(run_id)
        if pending is not None and pending[:2] == committed:
            saved = pending
        if saved is None:
            return None
        state = PersonalState(decode_arrays(saved.personal), decode_experts(saved.experts))
        return state, (saved.round_number, saved.attempt)

"""A client's data in its own store between messages: session, personal states, and own ledger.

A session says how far one attempt has come. A client may be a new process at every message, so
no part of a session lives in memory only. Personal states follow the coordinator's commits.

Reading the whole ledger for every invitation would take longer the longer a run is, so a client
counts on from message to message. It writes a release with a session, in one transaction. So the
count at one session is the whole ledger of the run as long as that session is the newest. At any
other session the client reads the ledger again. A client that is a new process at every message
always reads it again.

A client whose store came back from a backup has lost its record of later releases, so it takes over
the coordinator's. It only adds rows: known charges stay, finished attempts stay finished, and a
coordinator that charges too much makes the client take part in less. The client alone cannot find
out that a coordinator states too little. So only its owner starts this, with charges that the
coordinators' operators handed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, cast

from methods import Arrays
from platform.errors import ClientRestored, ConfigError, CoordinatorBehind, ProtocolError
from platform.parties.profile import ClientProfile, PersonalState, first_state
from platform.protection.charging import Limits, as_releases
from platform.protection.uploads import Protection
from platform.wire.charges import Charges
from platform.wire.codec import Attempt, Envelope, Frame, decode_arrays, decode_frame, encode_frame
from platform.wire.layout import decode_experts, handle
from platform.wire.receipt_messages import MOST_SENT, UploadDigest, decode_uploads, encode_uploads
from privacy import Release, RunningLedger
from privacy.secure_aggregation import ClientState, decode_client_state, encode_client_state
from storage import ClientStore, InvalidRecordError, SessionRecord

_SENT: Final = "sent"

Awaits = Literal["share", "train", "unmask", "nothing"]
KINDS: Mapping[Awaits, str] = {"share": "relay", "train": "assignment", "unmask": "relay"}
"""By stage, the kind of its first message."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """How far one attempt has come.

    Attributes:
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
    """Return the session of a store's record; None after the attempt is committed."""
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
    """Return the uploads that a store's record names: those of its newest attempts."""
    if record is None or not record.state:
        return ()
    return decode_uploads(decode_frame(record.state).blobs.get(_SENT, b""))


def awaited(kind: str, envelope: Envelope, known: SessionRecord | None) -> Session:
    """Return the session that a message continues; `ProtocolError` if it is not the awaited one."""
    session = None if known is None else decode_session(known)
    if session is None or session.envelope != envelope or KINDS.get(session.awaits) != kind:
        raise ProtocolError(f"message: {kind} is not what this client awaits")
    return session


def require_new(envelope: Envelope, known: SessionRecord | None, protection: Protection) -> None:
    """Refuse an attempt that is not newer than all attempts that this client has answered.

    `CoordinatorBehind` if the client has answered a newer one. The round of an upload that may
    leave only once a round is refused as well.
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
    """The personal states of one client."""

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
        kept, _ = self.store.slots(self.profile.run.run_id)
        return kept is not None and kept[:2] == kept_as

    def require_caught_up(self) -> None:
        """Refuse to use a restored store before the client has caught up (`ClientRestored`)."""
        since = self.store.restoring.pending_since()
        if since is not None:
            raise ClientRestored(
                f"the client takes no part: its store was restored from a backup at {since}, and "
                "it has not caught up with what it released since"
            )

    def require_known(self, committed: Attempt | None) -> None:
        """Refuse a commit in which this client took no part, or that is older than it knows."""
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


@dataclass(kw_only=True)
class OwnSpending:
    """One client's spending in one run.

    Attributes:
        limits: The most that the client may be charged.
    """

    store: ClientStore
    run_id: str
    limits: Limits
    _after: SessionRecord | None = field(default=None, init=False, repr=False)
    _counted: RunningLedger | None = field(default=None, init=False, repr=False)
    _others: tuple[SessionRecord, ...] = field(default=(), init=False, repr=False)
    _elsewhere: RunningLedger | None = field(default=None, init=False, repr=False)

    def require(self, newest: SessionRecord | None, planned: Sequence[Release]) -> None:
        """Refuse an attempt that would pass a limit; `BudgetExhausted` names the limit.

        `newest` is the session now. A planned release that is already in the ledger is the same
        release again, and free.
        """
        if not planned:
            return
        place = planned[0].round_number, planned[0].attempt
        known = {row.channel for row in self.store.rows(self.run_id, place)}
        fresh = [release for release in planned if release.channel not in known]
        if self._counted is None or self._after != newest:
            self._counted = RunningLedger(
                as_releases(self.store.rows(self.run_id), self.limits.mechanisms)
            )
            self._after = newest
        self.limits.require(self._counted, self._life(self._counted), fresh)

    def _life(self, spent: RunningLedger) -> RunningLedger:
        """Return the client's spending in all runs, with its spending in this run."""
        if self.limits.lifetime_budget is None:
            return spent
        # Other runs write a release with a session too.
        others = self.store.sessions.of_other_runs(self.run_id)
        if self._elsewhere is None or others != self._others:
            rows = [row for row in self.store.rows() if row.run_id != self.run_id]
            self._elsewhere = RunningLedger(as_releases(rows, self.limits.mechanisms))
            self._others = others
        return RunningLedger.joined((self._elsewhere, spent))

    def require_still(self, newest: SessionRecord | None, planned: Sequence[Release]) -> None:
        """Refuse a release if the limit of all runs has no more room for it (`BudgetExhausted`).

        Several runs may have invited the client, and each could afford one attempt alone. Call this
        in the transaction that writes the release.
        """
        if self.limits.lifetime_budget is not None:
            self.require(newest, planned)

    def follow(
        self, before: SessionRecord | None, after: SessionRecord, added: Sequence[Release]
    ) -> None:
        """Count on from the session that replaced another, with the releases written with it.

        If the transaction is not committed, the newest session is not `after`, and the client reads
        the ledger again.
        """
        if self._counted is not None and self._after == before:
            self._counted.add(added)
            self._after = after


def catch_up(store: ClientStore, handed: Sequence[Charges], now: datetime) -> int:
    """Take over the coordinators' charges, and let the client take part again; return their number.

    The store was restored from a backup. `handed` has the charges of each coordinator in whose runs
    the client has taken part since. If they are another client's, or lack or contradict a row of
    the client's own ledger, nothing changes (`ConfigError`).
    """
    since = store.restoring.pending_since()
    if since is None:
        raise ConfigError("CHARGES: this client's store has nothing to catch up with")
    if not handed:
        raise ConfigError("CHARGES: there are none; valid are those of each coordinator")
    for charges in handed:
        # Older charges would lack what the lost store released until then.
        if charges.made < datetime.fromisoformat(since):
            raise ConfigError(
                f"CHARGES: they were made at {charges.made.isoformat()}, before the store was "
                f"restored at {since}; valid are later ones"
            )
    stated = {run_id for charges in handed for run_id in charges.runs}
    for session in store.sessions.of_other_runs(""):
        if session.run_id not in stated:
            raise ConfigError(
                f"CHARGES: run {session.run_id}, in which this client has taken part, is not in "
                "them; valid are those of each coordinator"
            )
    try:
        with store.atomically():
            added = sum([_take_over(store, charges) for charges in handed])
            store.restoring.settle(now)
    except InvalidRecordError as error:
        raise ConfigError(f"CHARGES: {error}") from error
    return added


def _take_over(store: ClientStore, charges: Charges) -> int:
    own = store.identity.pseudonym
    if charges.pseudonym != own:
        raise ConfigError(f"CHARGES: they are of client {charges.pseudonym!r}; valid: {own!r}")
    for run_id, run in charges.runs.items():
        stated = {(row.round_number, row.attempt, row.channel) for row in run.rows}
        for row in store.rows(run_id):
            if (row.round_number, row.attempt, row.channel) not in stated:
                raise ConfigError(
                    f"CHARGES: they lack round {row.round_number}, attempt {row.attempt} of run "
                    f"{run_id}, which this client's own ledger has; they were made from an older "
                    "copy of the coordinator's database"
                )
    charged = [row for run in charges.runs.values() for row in run.rows]
    newest = {run_id: run.newest for run_id, run in charges.runs.items()}
    return store.restoring.take_over(charged, newest)

"""A client: trains, protects, and answers the coordinator's messages, one stage after the other.

Its personal state, its own ledger, its secrets and how far it has come live in its own store. It
answers each request once: what it answered is durable before it leaves, the same request gets the
same bytes, and no older attempt and no other request under the same header is ever answered.
Before anything leaves it the release is in its ledger; a round that would pass the client's own
limits is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial

from methods import Arrays, ClientView
from platform.errors import ConfigError, CoordinatorBehind, ProtocolError
from platform.parties.expectations import expectations_of, require_assignment, require_invitation
from platform.parties.profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    first_state,
)
from platform.parties.session import Session, awaited, encode_session, require_new
from platform.parties.totality import LocalRound, personalise, work
from platform.protection.ledger_rows import as_row
from platform.protection.seats import parameters_of
from platform.protection.uploads import Prepared, Protection
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.experts import Fetched, decode_experts, encode_experts, handle
from platform.wire.messages import (
    Answer,
    Assignment,
    Attempt,
    Disclosure,
    Envelope,
    Invitation,
    Relay,
    Upload,
    broadcast_digest,
    decode_assignment,
    decode_invitation,
    decode_relay,
    encode_answer,
    encode_disclosure,
    encode_relay,
    encode_upload,
    peek,
)
from privacy import Authentication, ProtocolViolation, Release, ReleaseKey
from privacy.secure_aggregation import (
    ClientState,
    Confirmed,
    Identity,
    ReadyToMask,
    RoundParameters,
)
from privacy.secure_aggregation import client as masking
from storage import ClientStore, ReleaseRefusedError, SessionMovedError, SessionRecord


@dataclass(frozen=True)
class _Asked:
    """A request that was not answered before, and how far the client had come when it came."""

    digest: bytes
    known: SessionRecord | None


class Client:
    """One client of a federation; `handle` is its whole outside."""

    def __init__(
        self, profile: ClientProfile, store: ClientStore, make_trainer: TrainerFactory
    ) -> None:
        """Take what does not change, the client's own store and its trainers.

        Raises:
            ConfigError: If noise would come from a seed where there is somebody to protect.
            StorageError: If the client has used a newer enrolment file before.
        """
        if profile.noise_source == "seeded" and not profile.simulated:
            raise ConfigError(
                "privacy.noise_source: 'seeded' protects nobody and is refused outside a "
                "simulation; valid: os"
            )
        self.profile = profile
        self._store = store
        self._make_trainer = make_trainer
        if profile.credentials is not None:
            store.remember_serial(profile.credentials.enrolment.serial)
        self._expected = profile.expected or expectations_of(profile.method)

    @property
    def pseudonym(self) -> str:
        """The name under which ledgers and the audit log know this client."""
        return self._store.identity.pseudonym

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the coordinator.

        Raises:
            ProtocolError: If the message is neither the next one of the current attempt, nor the
                last one again, nor an invitation to a newer attempt; nothing has changed.
            BudgetExhausted: If the round would pass the client's own limits; nothing has changed.
        """
        with self._store.kept_open():
            try:
                return self._handle(message)
            except ProtocolViolation as error:
                raise ProtocolError("message: it is refused by the secure aggregation") from error
            except (ReleaseRefusedError, SessionMovedError) as error:
                raise ProtocolError("message: something else was answered in its place") from error

    def _handle(self, message: bytes) -> bytes:
        kind, envelope = peek(message)
        if envelope.run_id != self.profile.run_id:
            raise ProtocolError("message: it belongs to another run")
        digest = hashlib.sha256(message).digest()
        answered = self._store.sessions.reply(envelope.run_id, digest)
        if answered is not None:
            return answered
        asked = _Asked(digest, self._store.sessions.newest(envelope.run_id))
        if kind == "invitation":
            return self._join(asked, decode_invitation(message))
        session = awaited(kind, envelope, asked.known)
        if session.awaits == "train":
            return self._train(asked, session, decode_assignment(message))
        if session.awaits == "share":
            return self._share_keys(asked, session, decode_relay(message))
        return self._disclose(asked, session, decode_relay(message))

    def _keep(
        self, asked: _Asked, session: Session, reply: bytes, *, is_noiseless: bool = False
    ) -> None:
        """Make an answer durable, and that there is no way back behind it.

        Raises:
            SessionMovedError: If another process of this client has answered something meanwhile.
        """
        envelope, known = session.envelope, asked.known
        noiseless = 0 if known is None else known.noiseless_round
        record = SessionRecord(
            envelope.run_id,
            envelope.round_number,
            envelope.attempt,
            noiseless_round=envelope.round_number if is_noiseless else noiseless,
            state=encode_session(session),
        )
        self._store.sessions.keep(record, after=known, request_digest=asked.digest, reply=reply)

    def state(self, committed: Attempt | None) -> PersonalState:
        """Return personal state if `committed` is this client's last attempt that counts."""
        with self._store.kept_open():
            own = self._saved(self.profile.run_id, committed)
            return own or self._saved(self.profile.source, committed) or self._first_state()

    def pool_handle(self, round_number: int) -> bytes:
        """Return what this client presents as the owner of its entry of that round."""
        return handle(self._store.identity.handle_secret, self.profile.source, round_number)

    def has_personalised(self, kept_as: Attempt) -> bool:
        """Return whether `personalise` has kept its result under that attempt."""
        kept = self._store.committed(self.profile.run_id)
        return kept is not None and kept[:2] == kept_as

    def personalise(
        self,
        broadcast: Arrays,
        fetched: Fetched | None,
        committed: Attempt | None,
        kept_as: Attempt,
    ) -> bool:
        """Personalise after the last release and keeps the result in the own store.

        Args:
            broadcast: The last broadcast.
            fetched: Experts fetched for this purpose, None to go on with those handed out last.
            committed: The last committed attempt that this client's update is part of.
            kept_as: The attempt under which the result is kept.

        Returns:
            Whether there was anything to do: what an interrupted finish has done stays done.
        """
        with self._store.kept_open():
            return self._personalise(broadcast, fetched, committed, kept_as)

    def _personalise(
        self,
        broadcast: Arrays,
        fetched: Fetched | None,
        committed: Attempt | None,
        kept_as: Attempt,
    ) -> bool:
        profile = self.profile
        if self.has_personalised(kept_as):
            return False
        state = self._saved(profile.source, committed) or self._first_state()
        taken = Fetched(state.experts, None) if fetched is None else fetched
        personal = personalise(
            profile,
            self._make_trainer,
            ClientView(broadcast, taken.experts, state.personal, taken.own),
            kept_as[0],
            partial(self._remember, kept_as),
        )
        self._roll(committed)
        self._store.put_pending(
            profile.run_id,
            *kept_as,
            personal=encode_arrays(personal),
            experts=encode_experts(taken.experts),
        )
        self._store.roll(profile.run_id, kept_as)
        return True

    def _saved(self, run_id: str, committed: Attempt | None) -> PersonalState | None:
        saved = self._store.pending(run_id)
        if saved is None or saved[:2] != committed:
            saved = self._store.committed(run_id)
        if saved is None:
            return None
        return PersonalState(decode_arrays(saved.personal), decode_experts(saved.experts))

    def _first_state(self) -> PersonalState:
        return PersonalState(first_state(self.profile), ())

    def _join(self, asked: _Asked, invitation: Invitation) -> bytes:
        """Check all before anything changes; what is refused costs no more than its size."""
        envelope, seat = invitation.envelope, invitation.secure
        require_invitation(self._expected, self.profile.protection, invitation)
        if self.profile.source_id is not None:
            raise ProtocolError("message: nothing leaves a client in a second phase")
        # What a round is for is a matter of its number, and never of what the coordinator says.
        protection = self.profile.protection.in_round(envelope.round_number)
        require_new(envelope, asked.known, protection)
        self._require_known(envelope.committed)
        if (seat is not None) != protection.masked:
            # Else a coordinator could read an update by leaving the masks out of its invitation.
            raise ProtocolError("message: masks must be used exactly where the run says so")
        protection = protection.at(invitation.clipping_norm)
        parameters = None if seat is None else parameters_of(envelope, seat, protection)
        self._require_within_limits(envelope, protection)
        newest_first = sorted(invitation.generations, reverse=True)
        handles = tuple(self.pool_handle(generation) for generation in newest_first)
        session, payload = Session(envelope, "train", invitation.clipping_norm), b""
        if seat is not None and parameters is not None:
            secure, payload = self._advertise(parameters, seat.index)
            session = replace(session, awaits="share", secure=secure)
        reply = encode_answer(Answer(envelope, handles, payload))
        with self._store.atomically():
            self._keep(asked, session, reply)
            self._roll(envelope.committed)
        return reply

    def _require_known(self, committed: Attempt | None) -> None:
        """Refuse a commit of which this client's update cannot be a part.

        Raises:
            CoordinatorBehind: If the client knows of a newer one.
            ProtocolError: If it took no part in the one that is named.
        """
        run_id = self.profile.source
        kept = [self._store.committed(run_id), self._store.pending(run_id)]
        last, pending = (None if slot is None else slot[:2] for slot in kept)
        if last is not None and last > (committed or (0, 0)):
            raise CoordinatorBehind(
                f"client {self.pseudonym}: it knows that round {last[0]}, attempt {last[1]} of run "
                f"{run_id} is committed, and the coordinator does not; its database is older than "
                "the client's"
            )
        if committed not in (last, pending):
            raise ProtocolError("message: it names a commit that this client took no part in")

    def _roll(self, committed: Attempt | None) -> None:
        """Follow the coordinator's commit: personal part, session and own ledger."""
        run_id = self.profile.source
        self._store.roll(run_id, committed)
        session = self._store.sessions.newest(run_id)
        if session is not None and (session.round_number, session.attempt) == committed:
            self._store.sessions.forget(run_id)
        rows = self._store.rows(run_id)
        open_rows = [(r.round_number, r.attempt) for r in rows if r.status == "reserved"]
        if committed is not None and committed in open_rows:
            self._store.set_status(run_id, *committed, "released")

    def _require_within_limits(self, envelope: Envelope, protection: Protection) -> None:
        limits = self.profile.limits
        # Reading a ledger takes longer the longer a run is.
        if limits is not None and limits.any:
            planned = self._releases(envelope, protection)
            limits.require(self.profile.run_id, self._store.rows(), planned)

    def _share_keys(self, asked: _Asked, session: Session, relay: Relay) -> bytes:
        if session.secure is None:
            raise ProtocolError("message: there is no secure aggregation in this round")
        secure, payload = masking.step(session.secure, relay.payload, identity=self._identity)
        reply = encode_relay(Relay(session.envelope, payload))
        self._keep(asked, replace(session, awaits="train", secure=secure), reply)
        return reply

    def _protection(self, session: Session) -> Protection:
        protection = self.profile.protection.in_round(session.envelope.round_number)
        return protection.at(session.clipping_norm)

    def _train(self, asked: _Asked, session: Session, assignment: Assignment) -> bytes:
        require_assignment(self._expected, assignment)
        envelope, profile, secure = session.envelope, self.profile, session.secure
        if secure is not None:
            secure, _ = masking.step(secure, assignment.payload)
        attempt = (envelope.round_number, envelope.attempt)
        protection = self._protection(session)
        local = LocalRound(
            profile,
            self._make_trainer,
            protection,
            attempt,
            assignment.broadcast,
            assignment.experts,
            self.state(envelope.committed),
        )
        ready = work(local, partial(self._remember, attempt))
        prepared = ready.prepared
        session = replace(session, awaits="unmask", secure=secure, entry=prepared.entry)
        upload, session = self._upload(session, prepared, assignment)
        reply = encode_upload(upload)
        # All of it or nothing: a vector may leave only with its charge, and once.
        with self._store.atomically():
            self._reserve(envelope, protection, prepared)
            self._store.put_pending(
                profile.run_id, *attempt, personal=ready.personal, experts=ready.experts
            )
            is_noiseless = protection.masked and not protection.has_client_noise
            self._keep(asked, session, reply, is_noiseless=is_noiseless)
        return reply

    def _remember(self, attempt: Attempt, failure: str) -> None:
        """Keep what failed in the client's own store, where it stays."""
        self._store.add_failure(self.profile.run_id, *attempt, reason=failure)

    def _upload(
        self, session: Session, prepared: Prepared, assignment: Assignment
    ) -> tuple[Upload, Session]:
        weight, envelope, secure = self.profile.data.num_examples, session.envelope, session.secure
        layout = self._protection(session).layout
        layout.require_weight(weight)
        if secure is None:
            sent = weight if layout.weighted else 1
            return Upload(envelope, b"", prepared.vector, sent), session
        if not isinstance(secure, ReadyToMask) or prepared.levels is None:
            # Else what should be masked would leave in the clear.
            raise ProtocolError("message: there is nothing to mask with")
        masked, payload = masking.mask(
            secure,
            layout.weigh(prepared.levels, weight),
            context=broadcast_digest(assignment.broadcast, session.clipping_norm),
            identity=self._identity,
        )
        return Upload(envelope, payload, None, 0), replace(session, secure=masked)

    def _disclose(self, asked: _Asked, session: Session, relay: Relay) -> bytes:
        secure, payload, envelope = session.secure, b"", session.envelope
        if secure is not None:
            secure, payload = masking.step(secure, relay.payload, identity=self._identity)
        if isinstance(secure, Confirmed):
            # What happened is signed; shares come once enough others signed the same.
            reply = encode_relay(Relay(envelope, payload))
            self._keep(asked, replace(session, secure=secure), reply)
            return reply
        name = self.pool_handle(envelope.round_number) if session.entry else b""
        reply = encode_disclosure(Disclosure(envelope, payload, name, session.entry))
        self._keep(asked, replace(session, awaits="nothing", secure=secure, entry={}), reply)
        return reply

    def _advertise(self, parameters: RoundParameters, index: int) -> tuple[ClientState, bytes]:
        try:
            return masking.advertise(parameters, index, credentials=self.profile.credentials)
        except (Authentication, ValueError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    @property
    def _identity(self) -> Identity | None:
        credentials = self.profile.credentials
        return None if credentials is None else credentials.identity

    def _reserve(self, envelope: Envelope, protection: Protection, prepared: Prepared) -> None:
        payload = b"".join((prepared.vector.data, encode_arrays(prepared.entry)))
        for release in self._releases(envelope, protection):
            self._store.reserve_release(as_row(release), payload=payload)

    def _releases(self, envelope: Envelope, protection: Protection) -> tuple[Release, ...]:
        return protection.releases(
            ReleaseKey(
                run_id=self.profile.run_id,
                round_number=envelope.round_number,
                attempt=envelope.attempt,
                pseudonym=self.pseudonym,
            )
        )

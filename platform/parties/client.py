"""A client: trains, protects, and answers the coordinator's messages, one stage after the other.

Its personal state, its own ledger, its secrets and how far it has come live in its own store. It
answers each request once: what it answered is durable before it leaves, the same request gets the
same bytes, and no older attempt and no other request under the same header is ever answered.
Before anything leaves it the release is in its ledger; a round that would pass the client's own
limits is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from platform.errors import ConfigError, ProtocolError
from platform.parties.expectations import (
    expectations_of,
    require_ahead,
    require_assignment,
    require_invitation,
)
from platform.parties.outside_rounds import KINDS, OutsideRounds
from platform.parties.own_spending import OwnSpending
from platform.parties.personal_states import PersonalStates
from platform.parties.profile import ClientProfile, PersonalState, TrainerFactory
from platform.parties.receipts import receipts_of
from platform.parties.session import (
    Session,
    awaited,
    begun,
    decode_session,
    encode_session,
    require_new,
)
from platform.parties.totality import LocalRound, work
from platform.protection.ledger_rows import as_row
from platform.protection.seats import parameters_of
from platform.protection.uploads import Prepared, Protection
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.enclosing import is_enclosed
from platform.wire.envelopes import Attempt, Envelope, peek
from platform.wire.messages import (
    Answer,
    Assignment,
    Disclosure,
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
)
from platform.wire.secure_round import SecureRound
from privacy import (
    NO_STATE,
    Authentication,
    NoiseState,
    ProtocolViolation,
    Release,
    ReleaseKey,
)
from privacy.secure_aggregation import (
    Advertised,
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
        safeguards = profile.safeguards
        if profile.randomness.noise_source == "seeded" and not safeguards.simulated:
            raise ConfigError(
                "privacy.noise_source: 'seeded' protects nobody and is refused outside a "
                "simulation; valid: os"
            )
        self.profile = profile
        self._store = store
        self._make_trainer = make_trainer
        limits, run_id = safeguards.limits, profile.run.run_id
        self._spending = (
            OwnSpending(store=store, run_id=run_id, limits=limits)
            if limits is not None and limits.any
            else None
        )
        if safeguards.credentials is not None:
            store.remember_serial(safeguards.credentials.enrolment.serial)
        self._expected = safeguards.expected or expectations_of(profile.method)
        self._states = PersonalStates(profile, store)
        self._outside = OutsideRounds(self._states, make_trainer, self._expected, self._remember)
        self._receipts = receipts_of(store, run_id, safeguards, self._remember)

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
                if is_enclosed(message):
                    return self._receipts.answering(message, self._handle)
                return self._handle(message)
            except ProtocolViolation as error:
                raise ProtocolError("message: it is refused by the secure aggregation") from error
            except (ReleaseRefusedError, SessionMovedError) as error:
                raise ProtocolError("message: something else was answered in its place") from error

    def _handle(self, message: bytes) -> bytes:
        kind, envelope = peek(message)
        if envelope.run_id != self.profile.run.run_id:
            raise ProtocolError("message: it belongs to another run")
        if kind in KINDS:
            return self._outside.answer(kind, message)
        digest = hashlib.sha256(message).digest()
        asked = _Asked(digest, self._store.sessions.newest(envelope.run_id))
        answered = self._answered(asked, envelope)
        if answered is not None:
            return answered
        if kind == "invitation":
            return self._join(asked, decode_invitation(message))
        session = awaited(kind, envelope, asked.known)
        if session.awaits == "train":
            return self._train(asked, session, decode_assignment(message))
        if session.awaits == "share":
            return self._share_keys(asked, session, decode_relay(message))
        return self._disclose(asked, session, decode_relay(message))

    def _answered(self, asked: _Asked, envelope: Envelope) -> bytes | None:
        """Return what was answered to the same request; replies are of the newest attempt only."""
        known, attempt = asked.known, (envelope.round_number, envelope.attempt)
        if known is None or (known.round_number, known.attempt) != attempt:
            return None
        return self._store.sessions.reply(envelope.run_id, asked.digest)

    def _keep(
        self,
        asked: _Asked,
        session: Session,
        reply: bytes,
        *,
        is_noiseless: bool = False,
        added: Sequence[Release] = (),
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
        if self._spending is not None:
            self._spending.follow(known, record, added)

    def state(self, committed: Attempt | None) -> PersonalState:
        """Return personal state if `committed` is this client's last attempt that counts."""
        with self._store.kept_open():
            return self._states.after(committed)[0]

    def _join(self, asked: _Asked, invitation: Invitation) -> bytes:
        """Check all before anything changes; what is refused costs no more than its size."""
        envelope, seat = invitation.envelope, invitation.secure
        require_invitation(self._expected, self.profile.protection, invitation)
        if self.profile.run.source_id is not None:
            raise ProtocolError("message: nothing leaves a client in a second phase")
        self._states.require_caught_up()
        # What a round is for is a matter of its number, and never of what the coordinator says.
        protection = self.profile.protection.in_round(envelope.round_number)
        require_new(envelope, asked.known, protection)
        self._states.require_known(envelope.committed)
        if (seat is not None) != protection.masked:
            # Else a coordinator could read an update by leaving the masks out of its invitation.
            raise ProtocolError("message: masks must be used exactly where the run says so")
        protection = protection.at(invitation.clipping_norm)
        parameters = None if seat is None else parameters_of(envelope, seat, protection)
        if self._spending is not None:
            self._spending.require(asked.known, self._releases(envelope, protection))
        newest_first = sorted(invitation.generations, reverse=True)
        handles = tuple(self._states.pool_handle(generation) for generation in newest_first)
        session, payload = self._begin(asked, invitation, parameters)
        reply = encode_answer(Answer(envelope, handles, payload))
        with self._store.atomically():
            # Takes the place of the session of what was committed, and erases its replies and the
            # keys that were made in it ahead.
            self._keep(asked, session, reply)
            self._states.follow(envelope.committed)
        return reply

    def _begin(
        self, asked: _Asked, invitation: Invitation, parameters: RoundParameters | None
    ) -> tuple[Session, bytes]:
        """Return the session that an invitation opens, and its keys, or shares if it has a roster.

        Raises:
            ProtocolError: If the secure aggregation has no such beginning.
        """
        seat = invitation.secure
        session = begun(invitation, asked.known)
        if seat is None or parameters is None:
            return session, b""
        if not seat.roster:
            advertised, payload = self._advertise(parameters, seat.index)
            return replace(session, awaits="share", secure=advertised), payload
        ahead = self._keys_ahead(asked, parameters, seat.index)
        shared, payload = masking.step(ahead, seat.roster, identity=self._identity)
        return replace(session, secure=shared), payload

    def _keys_ahead(self, asked: _Asked, parameters: RoundParameters, index: int) -> Advertised:
        """Return the keys that were made for this very attempt in the session before it."""
        before = None if asked.known is None else decode_session(asked.known)
        try:
            return masking.take_up(
                None if before is None else before.ahead,
                parameters,
                index,
                credentials=self.profile.safeguards.credentials,
            )
        except (Authentication, ValueError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    def _share_keys(self, asked: _Asked, session: Session, relay: Relay) -> bytes:
        if session.secure is None:
            raise ProtocolError("message: there is no secure aggregation in this round")
        _require_none_ahead(relay)
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
            profile=profile,
            make_trainer=self._make_trainer,
            protection=protection,
            attempt=attempt,
            broadcast=assignment.broadcast,
            experts=assignment.experts,
            state=self._states.after(envelope.committed)[0],
            noise_state=self._noise_state(protection),
        )
        ready = work(local, partial(self._remember, attempt))
        prepared = ready.prepared
        session = replace(session, awaits="unmask", secure=secure, entry=prepared.entry)
        upload, session = self._upload(session, prepared, assignment)
        reply = encode_upload(upload)
        session = session.having_sent(reply)
        releases = self._releases(envelope, protection)
        # All of it or nothing: a vector may leave only with its charge, and once.
        with self._store.atomically():
            if self._spending is not None:
                self._spending.require_still(asked.known, releases)
            added = self._reserve(releases, prepared)
            self._store.put_pending(
                profile.run.run_id, *attempt, personal=ready.personal, experts=ready.experts
            )
            if prepared.state:
                self._store.put_noise(profile.run.run_id, encode_arrays(prepared.state))
            is_noiseless = protection.masked and not protection.has_client_noise
            self._keep(asked, session, reply, is_noiseless=is_noiseless, added=added)
        return reply

    def _noise_state(self, protection: Protection) -> NoiseState:
        """Return what the noise goes on from; an attempt that is lost has moved it all the same."""
        run_id = self.profile.run.run_id
        kept = self._store.noise(run_id) if protection.keeps_state else b""
        return decode_arrays(kept) if kept else NO_STATE

    def _remember(self, attempt: Attempt, failure: str) -> None:
        """Keep what failed in the client's own store, where it stays."""
        self._store.add_failure(self.profile.run.run_id, *attempt, reason=failure)

    def _upload(
        self, session: Session, prepared: Prepared, assignment: Assignment
    ) -> tuple[Upload, Session]:
        weight, envelope, secure = self.profile.data.num_examples, session.envelope, session.secure
        layout = self._protection(session).layout
        layout.require_weight(weight)
        if secure is None:
            sent = weight if layout.weighted else 1
            vector = prepared.vector if prepared.levels is None else prepared.levels
            return Upload(envelope, b"", vector, sent), session
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
            _require_none_ahead(relay)
            # What happened is signed; shares come once enough others signed the same.
            reply = encode_relay(Relay(envelope, payload))
            self._keep(asked, replace(session, secure=secure), reply)
            return reply
        name = self._states.pool_handle(envelope.round_number) if session.entry else b""
        ahead, told = self._make_ahead(session, relay.ahead)
        reply = encode_disclosure(
            Disclosure(
                envelope=envelope, payload=payload, handle=name, entry=session.entry, ahead=told
            )
        )
        session = replace(session, awaits="nothing", secure=secure, entry={}, ahead=ahead)
        self._keep(asked, session, reply)
        return reply

    def _make_ahead(
        self, session: Session, seat: SecureRound | None
    ) -> tuple[ClientState | None, bytes]:
        """Return keys for the first attempt at the next round, and what announces them.

        They tell nothing of any data, so nothing is priced: all that stands before a release is
        checked by the invitation that uses them.
        """
        if seat is None:
            return None, b""
        here = session.envelope
        envelope = Envelope(here.run_id, here.round_number + 1, 1)
        protection = require_ahead(self._expected, self.profile.protection, envelope, seat)
        parameters = parameters_of(envelope, seat, protection.at(session.clipping_norm))
        return self._advertise(parameters, seat.index)

    def _advertise(self, parameters: RoundParameters, index: int) -> tuple[ClientState, bytes]:
        try:
            return masking.advertise(
                parameters, index, credentials=self.profile.safeguards.credentials
            )
        except (Authentication, ValueError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    @property
    def _identity(self) -> Identity | None:
        credentials = self.profile.safeguards.credentials
        return None if credentials is None else credentials.identity

    def _reserve(self, releases: Sequence[Release], prepared: Prepared) -> list[Release]:
        payload = b"".join((prepared.vector.data, encode_arrays(prepared.entry)))
        reserve = partial(self._store.reserve_release, payload=payload)
        return [release for release in releases if reserve(as_row(release)) == "reserved"]

    def _releases(self, envelope: Envelope, protection: Protection) -> tuple[Release, ...]:
        return protection.releases(
            ReleaseKey(
                run_id=self.profile.run.run_id,
                round_number=envelope.round_number,
                attempt=envelope.attempt,
                pseudonym=self.pseudonym,
            )
        )


def _require_none_ahead(relay: Relay) -> None:
    """Keys may be asked for ahead once in an attempt, so that there are no two sets of them."""
    if relay.ahead is not None:
        raise ProtocolError("message: keys are asked for ahead with the last message of a round")

"""A client: it trains, protects, and answers the coordinator's messages, one stage after the other.

The client keeps its personal state, its ledger, its secrets and its session in its own store. It
answers each request once: an answer is durable before it leaves, and the same request gets the same
bytes. The client refuses older attempts, and a different request for a stage that it has answered.
A release is in the client's ledger before it leaves, and the client refuses a round that would
pass its own limits.

Before the first round and after the last round an answer is no release: it has neither noise nor a
charge. So no answer may tell anything of the client's data, even if the coordinator asks in bad
faith, at any time and in any order:

- *Roll call*: the client says its name, its public key, and the newest attempt that it answered.
  None of these depends on the data. The attempt shows a coordinator that its database is an old
  copy.
- *Notice*: the client names its own entry in a pool that is made once. The name is a keyed hash
  that the coordinator received with the entry. A client that gave no entry says a name that no
  entry has.
- *Parting*: the client says whether it had anything to do. The personalised part and failures stay
  with the client. Afterwards it takes part in no round, because its personal part then follows from
  data and experts without noise, and no release may start from it.
- *Examination*: the client gives exact counts. It refuses unless all clients are in the
  coordinator's own process.

These requests can be repeated and get the same answer, so the client keeps none of the answers.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from methods import Arrays, ClientView
from platform.errors import ConfigError, ProtocolError
from platform.parties.client_state import (
    OwnSpending,
    PersonalStates,
    Session,
    awaited,
    decode_session,
    encode_session,
    require_new,
    sent_before,
)
from platform.parties.profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    as_sent,
    expectations_of,
    require_ahead,
    require_assignment,
    require_broadcast,
    require_invitation,
    require_last_round_over,
    require_parting,
    view_of,
)
from platform.parties.receipt_checks import Receipts, witness_of
from platform.parties.scoring import LOCAL, mean_weights
from platform.parties.totality import LocalRound, Ready, Remember, personalise, work
from platform.protection.charging import as_row
from platform.protection.uploads import Prepared, Protection
from platform.wire.codec import Attempt, Envelope, decode_arrays, encode_arrays, peek
from platform.wire.layout import Fetched, encode_experts
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
from platform.wire.outside_rounds import (
    Claim,
    Examination,
    Introduction,
    Parting,
    Personalised,
    Scores,
    decode_bare,
    decode_examination,
    decode_parting,
    encode_claim,
    encode_introduction,
    encode_personalised,
    encode_scores,
)
from platform.wire.receipt_messages import bare, is_enclosed
from platform.wire.transport import ClientId
from privacy import NO_STATE, Authentication, ProtocolViolation, Release, ReleaseKey
from privacy.secure_aggregation import (
    ClientState,
    Confirmed,
    Identity,
    ReadyToMask,
    RoundParameters,
)
from privacy.secure_aggregation import client as secure_client
from privacy.training import side_by_side
from storage import ClientStore, ReleaseRefusedError, SessionMovedError, SessionRecord


@dataclass(frozen=True)
class _Asked:
    """A new request's digest, and the client's newest session when it came."""

    digest: bytes
    known: SessionRecord | None


@dataclass(frozen=True)
class Done:
    """The local work of a message with this digest: its result or error, and hidden failures."""

    digest: bytes
    outcome: object
    failures: Sequence[str]


class Client:
    """One client of a federation. All messages go through `handle`."""

    def __init__(
        self, profile: ClientProfile, store: ClientStore, make_trainer: TrainerFactory
    ) -> None:
        """Take the client's profile, its own store and its trainers."""
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
        self._done: Done | None = None
        self._expected = safeguards.expected or expectations_of(profile.method)
        self._states = PersonalStates(profile, store)
        self._receipts = Receipts(
            store=store,
            run_id=run_id,
            witness=witness_of(safeguards.credentials, store.identity),
            seconds=lambda: int(time.time()),
            trusted=safeguards.log_key,
            remember=self._remember,
        )

    def local_work(self, message: bytes) -> Callable[[Remember], Any] | None:
        """Return the training that an assignment or a parting asks for; None for others.

        Nothing is written, and nothing is refused: `handle` does both.
        """
        with self._store.kept_open(), suppress(ProtocolError):
            message = bare(message)
            kind, envelope = peek(message)
            if kind == "parting":
                parting = decode_parting(message)
                require_parting(self._expected, parting)
                return self._personalising(parting)[1]
            if kind == "assignment":
                known = self._store.sessions.newest(envelope.run_id)
                session = awaited(kind, envelope, known)
                return partial(work, self._local_round(session, decode_assignment(message)))
        return None

    def take(self, done: Done) -> None:
        """Take the result of a message's local work, for when the message is handled."""
        self._done = done

    @property
    def pseudonym(self) -> str:
        """The name under which ledgers and the audit log know this client."""
        return self._store.identity.pseudonym

    def handle(self, message: bytes) -> bytes:
        """Answer one message of the coordinator.

        It is the next message of the current attempt, a repeated one, or an invitation to a newer
        attempt. Others are refused (`ProtocolError`), as are rounds beyond the client's own limits
        (`BudgetExhausted`); then nothing has changed.
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
            if kind == "roll_call":
                return self._introduce(decode_bare(message, "roll_call"))
            if kind == "pool_notice":
                return self._claim(decode_bare(message, "pool_notice"))
            if kind == "parting":
                return self._part(decode_parting(message), hashlib.sha256(message).digest())
            return self._examine(decode_examination(message))
        known = self._store.sessions.newest(envelope.run_id)
        asked = _Asked(hashlib.sha256(message).digest(), known)
        attempt = (envelope.round_number, envelope.attempt)
        # The store has replies of the newest attempt only.
        if known is not None and (known.round_number, known.attempt) == attempt:
            answered = self._store.sessions.reply(envelope.run_id, asked.digest)
            if answered is not None:
                return answered
        if kind == "invitation":
            return self._join(asked, decode_invitation(message))
        session = awaited(kind, envelope, known)
        if session.awaits == "train":
            return self._train(asked, session, decode_assignment(message))
        if session.awaits == "share":
            return self._share_keys(asked, session, decode_relay(message))
        return self._disclose(asked, session, decode_relay(message))

    def _keep(
        self,
        asked: _Asked,
        session: Session,
        reply: bytes,
        *,
        is_noiseless: bool = False,
        added: Sequence[Release] = (),
    ) -> None:
        """Make an answer and the session after it durable; the client never goes back."""
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
        """Return the personal state after `committed`, this client's last attempt that counts."""
        with self._store.kept_open():
            return self._states.after(committed)[0]

    def _join(self, asked: _Asked, invitation: Invitation) -> bytes:
        """Check everything before anything changes, so that a refusal costs only a message."""
        envelope, seat = invitation.envelope, invitation.secure
        require_invitation(self._expected, self.profile.protection, invitation)
        if self.profile.run.source_id is not None:
            raise ProtocolError("message: nothing leaves a client in a second phase")
        self._states.require_caught_up()
        # The round's number decides its purpose; the coordinator cannot.
        protection = self.profile.protection.in_round(envelope.round_number)
        require_new(envelope, asked.known, protection)
        self._states.require_known(envelope.committed)
        if (seat is not None) != protection.masked:
            # A coordinator that left the masks out could read an update.
            raise ProtocolError("message: masks must be used exactly where the run says so")
        protection = protection.at(invitation.clipping_norm)
        parameters = None if seat is None else protection.sums.parameters(envelope, seat)
        if self._spending is not None:
            self._spending.require(asked.known, self._releases(envelope, protection))
        newest_first = sorted(invitation.generations, reverse=True)
        handles = tuple(self._states.pool_handle(generation) for generation in newest_first)
        session, payload = self._begin(asked, invitation, parameters)
        reply = encode_answer(Answer(envelope, handles, payload))
        with self._store.atomically():
            # The new session replaces the committed one, whose replies and keys ahead are erased.
            self._keep(asked, session, reply)
            self._states.follow(envelope.committed)
        return reply

    def _begin(
        self, asked: _Asked, invitation: Invitation, parameters: RoundParameters | None
    ) -> tuple[Session, bytes]:
        """Return the session that an invitation opens, and its keys, or shares with a roster."""
        seat = invitation.secure
        session = Session(
            envelope=invitation.envelope,
            awaits="train",
            clipping_norm=invitation.clipping_norm,
            sent=sent_before(asked.known),
        )
        if seat is None or parameters is None:
            return session, b""
        if not seat.roster:
            advertised, payload = self._advertise(parameters, seat.index)
            return replace(session, awaits="share", secure=advertised), payload
        # The session before this one has the keys that were made for this very attempt.
        before = None if asked.known is None else decode_session(asked.known)
        made = None if before is None else before.ahead
        credentials = self.profile.safeguards.credentials
        try:
            ahead = secure_client.take_up(made, parameters, seat.index, credentials=credentials)
        except (Authentication, ValueError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error
        shared, payload = secure_client.step(ahead, seat.roster, identity=self._identity)
        return replace(session, secure=shared), payload

    def _share_keys(self, asked: _Asked, session: Session, relay: Relay) -> bytes:
        if session.secure is None:
            raise ProtocolError("message: there is no secure aggregation in this round")
        _require_none_ahead(relay)
        secure, payload = secure_client.step(session.secure, relay.payload, identity=self._identity)
        reply = encode_relay(Relay(session.envelope, payload))
        self._keep(asked, replace(session, awaits="train", secure=secure), reply)
        return reply

    def _train(self, asked: _Asked, session: Session, assignment: Assignment) -> bytes:
        envelope, profile, secure = session.envelope, self.profile, session.secure
        local = self._local_round(session, assignment)
        attempt, protection = local.attempt, local.protection
        if secure is not None:
            secure, _ = secure_client.step(secure, assignment.payload)
        ready: Ready = self._worked(asked.digest, partial(work, local), attempt)
        prepared = ready.prepared
        session = replace(session, awaits="unmask", secure=secure, entry=prepared.entry)
        upload, session = self._upload(session, protection, prepared, assignment)
        reply = encode_upload(upload)
        session = session.having_sent(reply)
        releases = self._releases(envelope, protection)
        # One transaction: a vector may leave only with its charge, and once.
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

    def _local_round(self, session: Session, assignment: Assignment) -> LocalRound:
        require_assignment(self._expected, assignment)
        envelope, profile = session.envelope, self.profile
        protection = profile.protection.in_round(envelope.round_number).at(session.clipping_norm)
        # A lost attempt has moved the state of the noise as well.
        kept = self._store.noise(profile.run.run_id) if protection.keeps_state else b""
        return LocalRound(
            profile=profile,
            make_trainer=self._make_trainer,
            protection=protection,
            attempt=(envelope.round_number, envelope.attempt),
            broadcast=assignment.broadcast,
            experts=assignment.experts,
            state=self._states.after(envelope.committed)[0],
            noise_state=decode_arrays(kept) if kept else NO_STATE,
        )

    def _worked(self, digest: bytes, compute: Callable[[Remember], Any], attempt: Attempt) -> Any:
        """Return the result of a message's local work, which may be done already."""
        done, self._done = self._done, None
        if done is None or done.digest != digest:
            return compute(partial(self._remember, attempt))
        for failure in done.failures:
            self._remember(attempt, failure)
        if isinstance(done.outcome, Exception):
            raise done.outcome
        return done.outcome

    def _remember(self, attempt: Attempt, failure: str) -> None:
        """Keep a failure in the client's own store, which it never leaves."""
        self._store.add_failure(self.profile.run.run_id, *attempt, reason=failure)

    def _upload(
        self, session: Session, protection: Protection, prepared: Prepared, assignment: Assignment
    ) -> tuple[Upload, Session]:
        weight, envelope, secure = self.profile.data.num_examples, session.envelope, session.secure
        layout = protection.layout
        layout.require_weight(weight)
        if secure is None:
            sent = weight if layout.weighted else 1
            vector = prepared.vector if prepared.levels is None else prepared.levels
            return Upload(envelope, b"", vector, sent), session
        if not isinstance(secure, ReadyToMask) or prepared.levels is None:
            # The vector would leave without a mask.
            raise ProtocolError("message: there is nothing to mask with")
        masked, payload = secure_client.mask(
            secure,
            layout.weigh(prepared.levels, weight),
            context=broadcast_digest(assignment.broadcast, session.clipping_norm),
            identity=self._identity,
        )
        return Upload(envelope, payload, None, 0), replace(session, secure=masked)

    def _disclose(self, asked: _Asked, session: Session, relay: Relay) -> bytes:
        secure, payload, envelope = session.secure, b"", session.envelope
        if secure is not None:
            secure, payload = secure_client.step(secure, relay.payload, identity=self._identity)
        if isinstance(secure, Confirmed):
            _require_none_ahead(relay)
            # The client signs the list first; its shares follow after enough others signed it.
            reply = encode_relay(Relay(envelope, payload))
            self._keep(asked, replace(session, secure=secure), reply)
            return reply
        name = self._states.pool_handle(envelope.round_number) if session.entry else b""
        ahead, told, seat = None, b"", relay.ahead
        if seat is not None:
            # Keys for the first attempt at the next round. They do not depend on data, so they have
            # no price: the invitation that uses them makes all checks before a release.
            following = Envelope(envelope.run_id, envelope.round_number + 1, 1)
            protection = require_ahead(self._expected, self.profile.protection, following, seat)
            parameters = protection.at(session.clipping_norm).sums.parameters(following, seat)
            ahead, told = self._advertise(parameters, seat.index)
        reply = encode_disclosure(
            Disclosure(
                envelope=envelope, payload=payload, handle=name, entry=session.entry, ahead=told
            )
        )
        session = replace(session, awaits="nothing", secure=secure, entry={}, ahead=ahead)
        self._keep(asked, session, reply)
        return reply

    def _introduce(self, envelope: Envelope) -> bytes:
        if (envelope.round_number, envelope.attempt, envelope.committed) != (0, 0, None):
            raise ProtocolError("message: the roll is called before the first round")
        credentials, store = self.profile.safeguards.credentials, self._store
        key = b"" if credentials is None else credentials.identity.public
        known = store.sessions.newest(envelope.run_id)
        newest = None if known is None else (known.round_number, known.attempt)
        return encode_introduction(Introduction(envelope, store.identity.pseudonym, key, newest))

    def _claim(self, envelope: Envelope) -> bytes:
        require_last_round_over(self._expected, envelope)
        if self._expected.fetched is None:
            raise ProtocolError("message: no pool is made once in this run")
        # The collection is the last round: the coordinator cannot choose another.
        return encode_claim(Claim(envelope, self._states.pool_handle(self._expected.rounds)))

    def _part(self, parting: Parting, digest: bytes) -> bytes:
        require_parting(self._expected, parting)
        envelope, states = parting.envelope, self._states
        kept_as = (envelope.round_number, envelope.attempt)
        if states.is_kept(kept_as):
            return encode_personalised(Personalised(envelope, is_new=False))
        taken, compute = self._personalising(parting)
        personal = self._worked(digest, compute, kept_as)
        run_id, store = self.profile.run.run_id, self._store
        kept, experts = encode_arrays(personal), encode_experts(taken.experts)
        with store.atomically():
            states.roll(envelope.committed)
            store.put_pending(run_id, *kept_as, personal=kept, experts=experts)
            store.roll(run_id, kept_as)
            # An open attempt ends here: the client releases nothing more.
            store.sessions.forget(run_id)
        return encode_personalised(Personalised(envelope, is_new=True))

    def _personalising(self, parting: Parting) -> tuple[Fetched, Callable[[Remember], Arrays]]:
        """Return the experts that a client takes with it, and the work that is left to do."""
        envelope, states = parting.envelope, self._states
        states.require_caught_up()
        states.require_known(envelope.committed)
        before = states.before_parting(envelope.committed)
        taken = parting.fetched or Fetched(before.experts, None)
        view = ClientView(parting.broadcast, taken.experts, before.personal, taken.own)

        def compute(remember: Remember) -> Arrays:
            return personalise(
                self.profile,
                self._make_trainer,
                as_sent(self.profile, view),
                round_number=envelope.round_number,
                remember=remember,
            )

        return taken, compute

    def _examine(self, examination: Examination) -> bytes:
        profile, states, envelope = self.profile, self._states, examination.envelope
        if not profile.safeguards.simulated:
            raise ProtocolError("message: only the client itself measures its model")
        if not profile.measured.names.issuperset(examination.sets):
            raise ProtocolError("message: there is no such set of images")
        require_broadcast(self._expected, examination.broadcast)
        state, after = states.after(envelope.committed)
        view, method = as_sent(profile, view_of(examination.broadcast, state)), profile.method
        tallies = {name: profile.measured.tally(method, view, name) for name in examination.sets}
        weights = None
        if examination.weighs:
            weights = mean_weights(method, view, profile.measured.named(LOCAL))
        return encode_scores(Scores(envelope, tallies, weights, after))

    def _advertise(self, parameters: RoundParameters, index: int) -> tuple[ClientState, bytes]:
        try:
            return secure_client.advertise(
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
    """Refuse a second request for keys ahead in one attempt: a client never has two sets."""
    if relay.ahead is not None:
        raise ProtocolError("message: keys are asked for ahead with the last message of a round")


def work_side_by_side(
    clients: Mapping[ClientId, Client], messages: Mapping[ClientId, bytes]
) -> None:
    """Do the local work of these clients' messages side by side, before they are handled.

    For clients of a simulation, which are in one process.
    """
    works: dict[ClientId, Callable[[], object]] = {}
    failures: dict[ClientId, list[str]] = {}
    for name, message in messages.items():
        compute = clients[name].local_work(message) if name in clients else None
        if compute is not None:
            works[name] = partial(compute, failures.setdefault(name, []).append)
    for name, outcome in zip(works, side_by_side(list(works.values())), strict=True):
        digest = hashlib.sha256(bare(messages[name])).digest()
        clients[name].take(Done(digest, outcome, failures[name]))


KINDS: Final = frozenset({"roll_call", "pool_notice", "parting", "examination"})
"""Kinds of the messages outside rounds."""

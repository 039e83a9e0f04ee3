"""A client: trains, protects, and answers the coordinator's messages, one stage after the other.

Its personal state, its own ledger and its secrets live in its own store. Before anything leaves it
the release is in that ledger; a second, different release for the same attempt is refused whatever
the coordinator asks, and so is a round that would pass the client's own limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from methods import Arrays, ClientView
from platform.client_profile import (
    ClientProfile,
    PersonalState,
    TrainerFactory,
    first_state,
)
from platform.codec import decode_arrays, encode_arrays
from platform.errors import ConfigError, ProtocolError
from platform.expectations import expectations_of, require_assignment, require_invitation
from platform.ledger import as_row
from platform.messages import (
    Answer,
    Assignment,
    Attempt,
    Disclosure,
    Envelope,
    Invitation,
    Relay,
    SecureRound,
    Upload,
    decode_assignment,
    decode_invitation,
    decode_relay,
    encode_answer,
    encode_disclosure,
    encode_relay,
    encode_upload,
    peek,
)
from platform.pool import Fetched, decode_experts, encode_experts, handle
from platform.protection import Prepared, Protection
from platform.secure_terms import meets
from platform.totality import LocalRound, personalise, work
from privacy import Authentication, CalibrationError, Release
from privacy.secure_aggregation import (
    Adversary,
    ClientState,
    Confirmed,
    Identity,
    ReadyToMask,
    RoundParameters,
)
from privacy.secure_aggregation import client as masking
from storage import ClientStore

LARGEST_COHORT = 1 << 17
"""Most clients of one round that an invitation may name, so that a number costs no memory."""


@dataclass(frozen=True)
class _Session:
    """How far one attempt has come.

    Attributes:
        envelope: The attempt.
        awaits: Kind of the message that may come next.
        protection: How uploads are protected in this round.
        secure: State of the secure aggregation, None without it.
        prepared: What may leave the client, once trained.
    """

    envelope: Envelope
    awaits: str
    protection: Protection
    secure: ClientState | None = None
    prepared: Prepared | None = None


class Client:
    """One client of a federation; `handle` is its whole outside."""

    def __init__(
        self, profile: ClientProfile, store: ClientStore, make_trainer: TrainerFactory
    ) -> None:
        """Takes what does not change, the client's own store and its trainers.

        Raises:
            ConfigError: If noise would come from a seed where there is somebody to protect.
        """
        if profile.noise_source == "seeded" and not profile.simulated:
            raise ConfigError(
                "privacy.noise_source: 'seeded' protects nobody and is refused outside a "
                "simulation; valid: os"
            )
        self.profile = profile
        self._store = store
        self._make_trainer = make_trainer
        self._session: _Session | None = None
        self._expected = profile.expected or expectations_of(profile.method)

    @property
    def pseudonym(self) -> str:
        """The name under which ledgers and the audit log know this client."""
        return self._store.identity.pseudonym

    def handle(self, message: bytes) -> bytes:
        """Answers one message of the coordinator.

        Raises:
            ProtocolError: If the message is not the next one of the current attempt; the client's
                state is unchanged.
        """
        with self._store.kept_open():
            return self._handle(message)

    def _handle(self, message: bytes) -> bytes:
        kind, envelope = peek(message)
        if envelope.run_id != self.profile.run_id:
            raise ProtocolError("message: it belongs to another run")
        if kind == "invitation":
            return self._join(decode_invitation(message))
        session = self._expect(kind, envelope)
        if kind == "assignment":
            return self._train(session, decode_assignment(message))
        if session.prepared is None:
            return self._share_keys(session, decode_relay(message))
        return self._disclose(session, session.prepared, decode_relay(message))

    def state(self, committed: Attempt | None) -> PersonalState:
        """Personal state as it is if `committed` is the last attempt of this client that counts."""
        with self._store.kept_open():
            own = self._saved(self.profile.run_id, committed)
            return own or self._saved(self.profile.source, committed) or self._first_state()

    def pool_handle(self, round_number: int) -> bytes:
        """What this client presents to be told apart as the owner of its entry of that round."""
        return handle(self._store.identity.handle_secret, self.profile.source, round_number)

    def has_personalised(self, kept_as: Attempt) -> bool:
        """Whether `personalise` has kept its result under that attempt."""
        kept = self._store.committed(self.profile.run_id)
        return kept is not None and kept[:2] == kept_as

    def personalise(
        self,
        broadcast: Arrays,
        fetched: Fetched | None,
        committed: Attempt | None,
        kept_as: Attempt,
    ) -> bool:
        """Personalises after the last release and keeps the result in the own store.

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

    def _join(self, invitation: Invitation) -> bytes:
        envelope, seat = invitation.envelope, invitation.secure
        require_invitation(self._expected, self.profile.protection, invitation)
        self._require_open(envelope.round_number)
        # What a round is for is a matter of its number, and never of what the coordinator says.
        protection = self.profile.protection.in_round(envelope.round_number)
        self._roll(envelope.committed)
        newest_first = sorted(invitation.generations, reverse=True)
        handles = tuple(self.pool_handle(generation) for generation in newest_first)
        if (seat is not None) != protection.masked:
            # Else a coordinator could read an update by leaving the masks out of its invitation.
            raise ProtocolError("message: masks must be used exactly where the run says so")
        protection = protection.at(invitation.clipping_norm)
        self._require_within_limits(envelope, protection)
        if seat is None:
            self._session = _Session(envelope, "assignment", protection)
            return encode_answer(Answer(envelope, handles, b""))
        parameters = _parameters(envelope, seat, protection)
        secure, payload = self._advertise(parameters, seat.index)
        self._session = _Session(envelope, "relay", protection, secure)
        return encode_answer(Answer(envelope, handles, payload))

    def _require_open(self, round_number: int) -> None:
        """Refuses what comes after the pool, which the number of a round alone does not tell."""
        profile = self.profile
        if profile.source_id is not None:
            raise ProtocolError("message: nothing leaves a client in a second phase")
        number = profile.protection.collects_at
        if number is None or round_number >= number:
            return
        if any(row.round_number >= number for row in self._store.rows(profile.run_id)):
            raise ProtocolError("message: this client's rounds ended when it gave its pool entry")

    def _roll(self, committed: Attempt | None) -> None:
        """Follows the coordinator's commit: personal part and own ledger."""
        run_id = self.profile.source
        self._store.roll(run_id, committed)
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

    def _share_keys(self, session: _Session, relay: Relay) -> bytes:
        if session.secure is None:
            raise ProtocolError("message: there is no secure aggregation in this round")
        secure, payload = masking.step(session.secure, relay.payload, identity=self._identity)
        self._session = _Session(session.envelope, "assignment", session.protection, secure)
        return encode_relay(Relay(session.envelope, payload))

    def _train(self, session: _Session, assignment: Assignment) -> bytes:
        require_assignment(self._expected, assignment)
        secure = session.secure
        if secure is not None:
            secure, _ = masking.step(secure, assignment.payload)
        envelope, profile = session.envelope, self.profile
        local = LocalRound(
            profile,
            self._make_trainer,
            session.protection,
            envelope.round_number,
            assignment.broadcast,
            assignment.experts,
            self.state(envelope.committed),
        )
        ready = work(local, partial(self._remember, (envelope.round_number, envelope.attempt)))
        prepared = ready.prepared
        self._reserve(session, prepared)
        self._store.put_pending(
            profile.run_id,
            envelope.round_number,
            envelope.attempt,
            personal=ready.personal,
            experts=ready.experts,
        )
        upload, secure = self._upload(session, prepared, secure)
        self._session = _Session(envelope, "relay", session.protection, secure, prepared)
        return encode_upload(upload)

    def _remember(self, attempt: Attempt, failure: str) -> None:
        """Keeps what failed in the client's own store, where it stays."""
        self._store.add_failure(self.profile.run_id, *attempt, reason=failure)

    def _upload(
        self, session: _Session, prepared: Prepared, secure: ClientState | None
    ) -> tuple[Upload, ClientState | None]:
        weight, envelope = self.profile.data.num_examples, session.envelope
        layout = session.protection.layout
        if isinstance(secure, ReadyToMask) and prepared.levels is not None:
            vector = layout.weigh(prepared.levels, weight)
            masked, payload = masking.mask(secure, vector, identity=self._identity)
            return Upload(envelope, payload, None, 0), masked
        return Upload(envelope, b"", prepared.vector, weight if layout.weighted else 1), None

    def _disclose(self, session: _Session, prepared: Prepared, relay: Relay) -> bytes:
        secure, payload = session.secure, b""
        if secure is not None:
            secure, payload = masking.step(secure, relay.payload, identity=self._identity)
        envelope = session.envelope
        if isinstance(secure, Confirmed):
            # The list of survivors is signed; shares come once enough others signed the same.
            self._session = replace(session, secure=secure)
            return encode_relay(Relay(envelope, payload))
        name = b""
        if prepared.entry:
            name = self.pool_handle(envelope.round_number)
        self._session = _Session(envelope, "nothing", session.protection)
        return encode_disclosure(Disclosure(envelope, payload, name, prepared.entry))

    def _expect(self, kind: str, envelope: Envelope) -> _Session:
        session = self._session
        if session is None or session.envelope != envelope or session.awaits != kind:
            raise ProtocolError(f"message: {kind} is not what this client awaits")
        return session

    def _advertise(self, parameters: RoundParameters, index: int) -> tuple[ClientState, bytes]:
        try:
            return masking.advertise(parameters, index, credentials=self.profile.credentials)
        except (Authentication, ValueError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    @property
    def _identity(self) -> Identity | None:
        credentials = self.profile.credentials
        return None if credentials is None else credentials.identity

    def _reserve(self, session: _Session, prepared: Prepared) -> None:
        payload = b"".join((prepared.vector.data, encode_arrays(prepared.entry)))
        for release in self._releases(session.envelope, session.protection):
            self._store.reserve_release(as_row(release), payload=payload)

    def _releases(self, envelope: Envelope, protection: Protection) -> tuple[Release, ...]:
        return protection.releases(
            run_id=self.profile.run_id,
            round_number=envelope.round_number,
            attempt=envelope.attempt,
            pseudonym=self.pseudonym,
        )


def _parameters(envelope: Envelope, seat: SecureRound, protection: Protection) -> RoundParameters:
    """The protocol's parameters, if they are possible and those of this run's vector."""
    layout = protection.layout
    try:
        if not 1 <= seat.index <= seat.clients <= LARGEST_COHORT:
            raise ValueError("the seat is not one of the cohort's")
        ring_bits = layout.ring_bits(protection.grid(), seat.clients)
        if (seat.vector_length, seat.ring_bits) != (layout.length, ring_bits):
            raise ValueError("the vector is not this run's")
        parameters = round_parameters(envelope, seat)
        if protection.terms is not None and not meets(parameters, protection.terms):
            raise ValueError("the terms of the secure sum are not this run's")
        return parameters
    except (ValueError, CalibrationError) as error:
        raise ProtocolError(f"message: the invitation is not valid: {error}") from error


def round_parameters(envelope: Envelope, secure: SecureRound) -> RoundParameters:
    """The secure aggregation's parameters as a message states them."""
    return RoundParameters(
        run_id=envelope.run_id,
        round_number=envelope.round_number,
        attempt=envelope.attempt,
        clients=tuple(range(1, secure.clients + 1)),
        threshold=secure.threshold,
        vector_length=secure.vector_length,
        ring_bits=secure.ring_bits,
        corrupt=secure.corrupt,
        adversary=Adversary.ACTIVE if secure.identities else Adversary.SEMI_HONEST,
        identities=secure.identities,
        degree=secure.degree,
        graph_seed=secure.graph_seed,
        smallest_sum=secure.smallest_sum,
    )

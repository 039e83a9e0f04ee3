"""A client: trains, protects, and answers the coordinator's messages, one stage after the other.

Its personal state, its own ledger and its secrets live in its own store. Before anything leaves it
the release is in that ledger; a second, different release for the same attempt is refused whatever
the coordinator asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from methods import Arrays, Examples, Method, Trainer
from platform.codec import decode_arrays, encode_arrays
from platform.errors import ProtocolError
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
from platform.pool import handle
from platform.protection import Prepared, Protection
from platform.randomness import stream
from platform.transport import ClientId
from privacy import NoiseSource, SeededNoise, SystemNoise
from privacy.secure_aggregation import ClientState, ReadyToMask, RoundParameters
from privacy.secure_aggregation import client as masking
from storage import ClientStore

LARGEST_COHORT = 1 << 17
"""Most clients of one round that an invitation may name, so that a number costs no memory."""


@dataclass(frozen=True)
class ClientSeeds:
    """Seeds of a simulated client's streams."""

    initialisation: int
    batches: int
    noise: int


@dataclass(frozen=True)
class ClientProfile:
    """Everything about a client that does not change within a run.

    Attributes:
        name: The client's name on the transport.
        run_id: The run.
        method: The method, alike on all clients.
        data: The client's examples.
        protection: How uploads are protected.
        noise_source: Where noise comes from.
        seeds: Seeds of the simulation's streams.
    """

    name: ClientId
    run_id: str
    method: Method
    data: Examples
    protection: Protection
    noise_source: Literal["os", "seeded"]
    seeds: ClientSeeds


@dataclass(frozen=True)
class PersonalState:
    """A client's personal arrays and the experts that it was handed last."""

    personal: Arrays
    experts: tuple[Arrays, ...]


@dataclass(frozen=True)
class _Session:
    """How far one attempt has come.

    Attributes:
        envelope: The attempt.
        awaits: Kind of the message that may come next.
        secure: State of the secure aggregation, None without it.
        prepared: What may leave the client, once trained.
    """

    envelope: Envelope
    awaits: str
    secure: ClientState | None = None
    prepared: Prepared | None = None


class Client:
    """One client of a federation; `handle` is its whole outside."""

    def __init__(self, profile: ClientProfile, store: ClientStore, trainer: Trainer) -> None:
        """Takes what does not change, the client's own store and its trainer."""
        self.profile = profile
        self._store = store
        self._trainer = trainer
        self._session: _Session | None = None

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
        saved = self._store.pending(self.profile.run_id)
        if saved is None or saved[:2] != committed:
            saved = self._store.committed(self.profile.run_id)
        if saved is None:
            return PersonalState(first_state(self.profile), ())
        return PersonalState(decode_arrays(saved.personal), decode_experts(saved.experts))

    def personalise(
        self,
        broadcast: Arrays,
        fetched: tuple[Arrays, ...] | None,
        committed: Attempt | None,
        kept_as: Attempt,
    ) -> None:
        """Personalises after the last release and keeps the result in the own store.

        Args:
            broadcast: The last broadcast.
            fetched: Experts fetched for this purpose, None to go on with those handed out last.
            committed: The last committed attempt that this client's update is part of.
            kept_as: The attempt under which the result is kept.
        """
        profile = self.profile
        kept = self._store.committed(profile.run_id)
        if kept is not None and kept[:2] == kept_as:
            # An interrupted finish is repeated; what is done stays done.
            return
        state = self.state(committed)
        experts = state.experts if fetched is None else fetched
        personal = profile.method.personalise(
            broadcast,
            experts,
            state.personal,
            profile.data,
            self._trainer,
            batches_of(profile, kept_as[0]),
        )
        self._roll(committed)
        self._store.put_pending(
            profile.run_id,
            *kept_as,
            personal=encode_arrays(personal),
            experts=encode_experts(experts),
        )
        self._store.roll(profile.run_id, kept_as)

    def _join(self, invitation: Invitation) -> bytes:
        envelope, run_id = invitation.envelope, self.profile.run_id
        self._roll(envelope.committed)
        secret = self._store.identity.handle_secret
        handles = tuple(
            handle(secret, run_id, generation)
            for generation in sorted(invitation.generations, reverse=True)
        )
        seat = invitation.secure
        if (seat is not None) != self.profile.protection.masked:
            # Else a coordinator could read an update by leaving the masks out of its invitation.
            raise ProtocolError("message: masks must be used exactly where the run says so")
        if seat is None:
            self._session = _Session(envelope, "assignment")
            return encode_answer(Answer(envelope, handles, b""))
        secure, payload = masking.advertise(self._parameters(envelope, seat), seat.index)
        self._session = _Session(envelope, "relay", secure)
        return encode_answer(Answer(envelope, handles, payload))

    def _roll(self, committed: Attempt | None) -> None:
        """Follows the coordinator's commit: personal part and own ledger."""
        run_id = self.profile.run_id
        self._store.roll(run_id, committed)
        rows = self._store.rows(run_id)
        open_rows = [(r.round_number, r.attempt) for r in rows if r.status == "reserved"]
        if committed is not None and committed in open_rows:
            self._store.set_status(run_id, *committed, "released")

    def _parameters(self, envelope: Envelope, seat: SecureRound) -> RoundParameters:
        """The protocol's parameters, if they are possible and those of this run's vector."""
        protection = self.profile.protection
        layout = protection.layout
        try:
            if not 1 <= seat.index <= seat.clients <= LARGEST_COHORT:
                raise ValueError("the seat is not one of the cohort's")
            ring_bits = layout.ring_bits(protection.quantiser(layout.coordinates), seat.clients)
            if (seat.vector_length, seat.ring_bits) != (layout.length, ring_bits):
                raise ValueError("the vector is not this run's")
            return round_parameters(envelope, seat)
        except ValueError as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    def _share_keys(self, session: _Session, relay: Relay) -> bytes:
        if session.secure is None:
            raise ProtocolError("message: there is no secure aggregation in this round")
        secure, payload = masking.step(session.secure, relay.payload)
        self._session = _Session(session.envelope, "assignment", secure)
        return encode_relay(Relay(session.envelope, payload))

    def _train(self, session: _Session, assignment: Assignment) -> bytes:
        secure = session.secure
        if secure is not None:
            secure, _ = masking.step(secure, assignment.payload)
        envelope, profile = session.envelope, self.profile
        result = profile.method.client_update(
            assignment.broadcast,
            assignment.experts,
            self.state(envelope.committed).personal,
            profile.data,
            self._trainer,
            batches_of(profile, envelope.round_number),
        )
        noise = self._noise(envelope.round_number)
        prepared = profile.protection.prepare(result, assignment.broadcast, noise)
        self._reserve(envelope, prepared)
        self._store.put_pending(
            profile.run_id,
            envelope.round_number,
            envelope.attempt,
            personal=encode_arrays(result.personal),
            experts=encode_experts(assignment.experts),
        )
        upload, secure = self._upload(envelope, prepared, secure)
        self._session = _Session(envelope, "relay", secure, prepared)
        return encode_upload(upload)

    def _upload(
        self, envelope: Envelope, prepared: Prepared, secure: ClientState | None
    ) -> tuple[Upload, ClientState | None]:
        weight = self.profile.data.num_examples
        layout = self.profile.protection.layout
        if isinstance(secure, ReadyToMask) and prepared.levels is not None:
            masked, payload = masking.mask(secure, layout.weigh(prepared.levels, weight))
            return Upload(envelope, payload, None, 0), masked
        return Upload(envelope, b"", prepared.vector, weight if layout.weighted else 1), None

    def _disclose(self, session: _Session, prepared: Prepared, relay: Relay) -> bytes:
        secure, payload = session.secure, b""
        if secure is not None:
            secure, payload = masking.step(secure, relay.payload)
        envelope = session.envelope
        name = b""
        if prepared.entry:
            secret = self._store.identity.handle_secret
            name = handle(secret, self.profile.run_id, envelope.round_number)
        self._session = _Session(envelope, "nothing")
        return encode_disclosure(Disclosure(envelope, payload, name, prepared.entry))

    def _expect(self, kind: str, envelope: Envelope) -> _Session:
        session = self._session
        if session is None or session.envelope != envelope or session.awaits != kind:
            raise ProtocolError(f"message: {kind} is not what this client awaits")
        return session

    def _reserve(self, envelope: Envelope, prepared: Prepared) -> None:
        releases = self.profile.protection.releases(
            run_id=self.profile.run_id,
            round_number=envelope.round_number,
            attempt=envelope.attempt,
            pseudonym=self.pseudonym,
        )
        payload = prepared.vector.tobytes() + encode_arrays(prepared.entry)
        for release in releases:
            self._store.reserve_release(as_row(release), payload=payload)

    def _noise(self, round_number: int) -> NoiseSource | None:
        if self.profile.noise_source == "os":
            return SystemNoise()
        seeds = self.profile.seeds
        return SeededNoise(stream(seeds.noise, "noise", self.profile.name, round_number))


def first_state(profile: ClientProfile) -> Arrays:
    """Personal state before a client's first round."""
    seed = profile.seeds.initialisation
    return profile.method.init_client(
        stream(seed, "client, alike for all"), stream(seed, "client", profile.name)
    )


def batches_of(profile: ClientProfile, round_number: int) -> np.random.Generator:
    """The stream of a client's batches in one round, alike for its local twin."""
    return stream(profile.seeds.batches, "batches", profile.name, round_number)


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
    )


def encode_experts(experts: Sequence[Arrays]) -> bytes:
    """Experts in their order, for the client's store."""
    arrays = {
        f"{i:04d}/{n}": value for i, entry in enumerate(experts) for n, value in entry.items()
    }
    return encode_arrays(arrays)


def decode_experts(data: bytes) -> tuple[Arrays, ...]:
    """The inverse of `encode_experts`."""
    experts: dict[str, dict[str, np.ndarray]] = {}
    for name, value in decode_arrays(data).items():
        position, _, tensor = name.partition("/")
        experts.setdefault(position, {})[tensor] = value
    return tuple(experts[position] for position in sorted(experts))

"""Clients that do only a round's cryptography, so that one process can simulate 10^5 of them.

They talk to a real coordinator process through its hub, in the real encodings. In the secure sum
each client is the client's own state machine, but masks only zeros, because no client trains. The
traffic and the uses of primitives are counted here, and not computed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from platform.protection.sums import round_parameters
from platform.relay.links import HubLink, Parcel
from platform.relay.packets import Outcome, decode_request, encode_packet
from platform.wire.codec import peek
from platform.wire.messages import (
    Answer,
    Disclosure,
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
    Acceptance,
    Introduction,
    Personalised,
    encode_acceptance,
    encode_introduction,
    encode_personalised,
)
from platform.wire.receipt_messages import bare
from privacy.secure_aggregation import (
    ClientState,
    Confirmed,
    Credentials,
    Enrolment,
    Identity,
    Masked,
    RoundParameters,
    client,
    keys,
    masking,
    shamir,
)


@dataclass
class Counted:
    """The counts of one round.

    Attributes:
        down: Bytes of messages to clients, by stage.
        up: Bytes of their answers, by stage.
        used: How often clients used each primitive.
    """

    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)


@dataclass
class Crowd:
    """All clients.

    Attributes:
        names: Names of the clients.
        lost: Clients that do not answer when they are asked to train.
        identities: Signing keys by name; empty if clients do not sign.
        enrolment: The enrolment of these keys.
        counted: Counts by round.
        length: Coordinates of an upload in the clear, once the coordinator asked for one.
        at_stage: Called before the crowd answers the first message of a stage of a round.
    """

    names: tuple[str, ...]
    lost: frozenset[str]
    identities: dict[str, Identity] = field(default_factory=dict)
    enrolment: Enrolment = field(default_factory=Enrolment)
    counted: dict[int, Counted] = field(default_factory=dict)
    length: int = 0
    at_stage: Callable[[int, str], None] = lambda number, stage: None
    _states: dict[str, ClientState] = field(default_factory=dict)
    _parameters: tuple[tuple[int, int], RoundParameters] | None = None
    _stage: tuple[int, str] = (0, "")

    @property
    def parameters(self) -> RoundParameters | None:
        """The parameters of the newest secure sum, None before any."""
        return None if self._parameters is None else self._parameters[1]

    def until_parted(self, hub: Path) -> None:
        """Answer all requests until every client has left."""
        parted = 0
        with HubLink.to(hub, self.names) as link, self._counting():
            while parted < len(self.names):
                for parcel in link.waiting(1.0):
                    kind, outcome = self._outcome(parcel)
                    link.answer(outcome)
                    parted += kind == "parting"

    def _outcome(self, parcel: Parcel) -> tuple[str, bytes]:
        message = bare(decode_request(parcel.packet).body)
        kind, envelope = peek(message)
        number, stage = envelope.round_number, self._stage_of(kind, parcel.client)
        if (number, stage) != self._stage:
            self._stage = number, stage
            self.at_stage(number, stage)
        if kind == "assignment" and parcel.client in self.lost:
            self._round(number).down[stage] += len(message)
            return kind, encode_packet(Outcome(parcel.number, "lost", "lost"))
        reply = getattr(self, f"_{kind}")(parcel.client, message, envelope)
        self._round(number).down[stage] += len(message)
        self._round(number).up[stage] += len(reply)
        return kind, encode_packet(Outcome(parcel.number, "answer", "", reply))

    def _round(self, number: int) -> Counted:
        return self.counted.setdefault(number, Counted())

    def _stage_of(self, kind: str, name: str) -> str:
        if kind != "relay":
            return {"invitation": "advertise", "assignment": "train"}.get(kind, kind)
        state = self._states.get(name)
        if isinstance(state, Masked) and state.parameters.is_active:
            return "confirm"
        return "unmask" if isinstance(state, Masked | Confirmed | None) else "share"

    def _offer(self, name: str, message: bytes, envelope: Any) -> bytes:
        return encode_acceptance(Acceptance(envelope, ()))

    def _roll_call(self, name: str, message: bytes, envelope: Any) -> bytes:
        pseudonym = hashlib.sha256(name.encode()).hexdigest()[:32]
        key = self.identities[name].public if self.identities else b""
        return encode_introduction(Introduction(envelope, pseudonym, key))

    def _invitation(self, name: str, message: bytes, envelope: Any) -> bytes:
        invitation, payload = decode_invitation(message), b""
        seat = invitation.secure
        if seat is not None:
            attempt = envelope.round_number, envelope.attempt
            if self._parameters is None or self._parameters[0] != attempt:
                # The same for all; each real client makes its own.
                self._parameters = attempt, round_parameters(envelope, seat)
            own = None
            if self.identities:
                own = Credentials(self.identities[name], self.enrolment)
            state, payload = client.advertise(self._parameters[1], seat.index, credentials=own)
            self._states[name] = state
        return encode_answer(Answer(envelope, (), payload))

    def _relay(self, name: str, message: bytes, envelope: Any) -> bytes:
        relay, before = decode_relay(message), self._states.get(name)
        if before is None:
            return _opening(envelope, b"")
        state, payload = client.step(before, relay.payload, identity=self.identities.get(name))
        self._states[name] = state
        if isinstance(before, Confirmed) or (
            isinstance(before, Masked) and not isinstance(state, Confirmed)
        ):
            del self._states[name]
            return _opening(envelope, payload)
        return encode_relay(Relay(envelope, payload))

    def _assignment(self, name: str, message: bytes, envelope: Any) -> bytes:
        assignment, before = decode_assignment(message), self._states.get(name)
        if before is None:
            self.length = sum(array.size for array in assignment.broadcast.values())
            return encode_upload(Upload(envelope, b"", np.zeros(self.length), 1))
        ready, _ = client.step(before, assignment.payload)
        state, payload = client.mask(
            ready,
            np.zeros(ready.parameters.vector_length, np.uint64),
            context=broadcast_digest(assignment.broadcast, None),
            identity=self.identities.get(name),
        )
        self._states[name] = state
        return encode_upload(Upload(envelope, payload, None, 0))

    def _parting(self, name: str, message: bytes, envelope: Any) -> bytes:
        return encode_personalised(Personalised(envelope, True))

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count what clients use, at the places where the protocol's own code calls it."""

        def counted(where: Any, name: str, what: str, of: Callable[..., int]) -> Any:
            real = getattr(where, name)

            def call(*given: Any, **named: Any) -> Any:
                self._round(self._stage[0]).used[what] += of(*given, **named)
                return real(*given, **named)

            return mock.patch.object(where, name, call)

        def one(*given: Any, **named: Any) -> int:
            return 1

        with ExitStack() as stack:
            for patch in (
                counted(keys.PrivateKey, "_derive", "agreements", one),
                counted(client, "seal", "boxes sealed", one),
                counted(client, "unseal", "boxes opened", one),
                counted(shamir, "deal", "share values", _evaluated),
                counted(masking, "_add_all", "mask values", _expanded),
            ):
                stack.enter_context(patch)
            yield


def _opening(envelope: Any, payload: bytes) -> bytes:
    """Return a client's last message of a round, which opens the sum."""
    return encode_disclosure(Disclosure(envelope=envelope, payload=payload, handle=b"", entry={}))


def _evaluated(*_: Any, coefficients: Any, indices: Any) -> int:
    return len(indices)


def _expanded(total: Any, masks: Any) -> int:
    return len(total) * len(masks)


def identities_of(names: tuple[str, ...]) -> tuple[dict[str, Identity], Enrolment]:
    """Return a signing key for each client, and their enrolment."""
    made = {name: Identity(secrets.token_bytes(32)) for name in names}
    enrolment = Enrolment()
    for name, identity in made.items():
        enrolment = enrolment.enrol(name, identity.public)
    return made, enrolment

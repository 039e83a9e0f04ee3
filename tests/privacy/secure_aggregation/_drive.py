"""Whole rounds in one process, with every state and message kept for the tests to look at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation import (
    NO_CONTEXT,
    Adversary,
    ClientState,
    Credentials,
    Enrolment,
    Finished,
    Identity,
    Phase,
    RoundParameters,
    ServerState,
    client,
    default_threshold,
    server,
)
from privacy.secure_aggregation.messages import decode_dealt_shares, encode_dealt_shares

# Without the consistency check, which only an active adversary makes necessary.
PHASES = tuple(phase for phase in Phase if phase is not Phase.CONSISTENCY_CHECK)

Vectors = Mapping[int, NDArray[np.uint64]]
Tamper = Callable[[Phase, int, bytes], bytes | None]


class FixedEntropy:
    """SHA-256 in counter mode over a label: the same bytes for the same label, always."""

    def __init__(self, label: str) -> None:
        self._label = label.encode()
        self._count = 0

    def __call__(self, size: int) -> bytes:
        blocks = b""
        while len(blocks) < size:
            blocks += hashlib.sha256(self._label + self._count.to_bytes(8, "little")).digest()
            self._count += 1
        return blocks[:size]


@dataclass
class Trace:
    """What happened in one round.

    Attributes:
        parameters: The round.
        states: By phase and client, the state from which the client's message was made.
        after: By phase and client, the state after it.
        sent: By phase and client, the client's message, before any tampering.
        arrived: By phase and client, the messages that were tampered with, as they arrived.
        answers: By phase and client, the server's message after that phase.
        server_states: By phase, the server's state that waited for the phase's messages.
        finished: The last state of the server.
    """

    parameters: RoundParameters
    states: dict[Phase, dict[int, ClientState]] = field(default_factory=dict)
    after: dict[Phase, dict[int, ClientState]] = field(default_factory=dict)
    sent: dict[Phase, dict[int, bytes]] = field(default_factory=dict)
    arrived: dict[Phase, dict[int, bytes]] = field(default_factory=dict)
    answers: dict[Phase, Mapping[int, bytes]] = field(default_factory=dict)
    server_states: dict[Phase, ServerState] = field(default_factory=dict)
    finished: Finished | None = None


def make_parameters(count: int = 5, **changes: object) -> RoundParameters:
    """Small parameters with the default threshold."""
    fields = {
        "run_id": "run",
        "round_number": 3,
        "attempt": 0,
        "clients": tuple(range(1, count + 1)),
        "threshold": default_threshold(count),
        "vector_length": 8,
        "ring_bits": 32,
    }
    return RoundParameters(**(fields | changes))


def identity_of(index: int) -> Identity:
    """The signing key of the client that sits at an index."""
    return Identity(hashlib.sha256(b"identity/%d" % index).digest())


def enrolment_of(indices) -> Enrolment:
    """Everybody at these indices, enrolled."""
    enrolment = Enrolment()
    for index in indices:
        enrolment = enrolment.enrol(f"client-{index}", identity_of(index).public)
    return enrolment


def credentials_of(parameters: RoundParameters, index: int) -> Credentials | None:
    """What a client knows out of band, where the round is active."""
    if not parameters.is_active:
        return None
    return Credentials(identity_of(index), enrolment_of(parameters.clients))


def signer(parameters: RoundParameters, index: int) -> Identity | None:
    """The key that a client signs with, where the round is active."""
    return identity_of(index) if parameters.is_active else None


def misdealt(
    parameters: RoundParameters, dealer: int, message: bytes, holders: Iterable[int]
) -> bytes:
    """Dealt shares in which these holders find rubbish in their boxes."""
    dealing = decode_dealt_shares(parameters, dealer, message)
    boxes = dict(dealing.boxes) | dict.fromkeys(holders, bytes(94))
    changed = replace(dealing, boxes=boxes)
    return encode_dealt_shares(parameters, dealer, changed, identity=signer(parameters, dealer))


def make_active(count: int = 5, **changes: object) -> RoundParameters:
    """Small parameters against an active adversary."""
    clients = changes.get("clients", tuple(range(1, count + 1)))
    identities = tuple(identity_of(index).public for index in clients)
    active = {
        "adversary": Adversary.ACTIVE,
        "identities": identities,
        "enrolment_serial": len(clients),
    }
    return make_parameters(count, **(active | changes))


def make_regular(count: int = 12, **changes: object) -> RoundParameters:
    """Small parameters on a 6-regular graph that is safe for certain: 2 lost, 2 corrupt."""
    regular = {
        "degree": 6,
        "graph_seed": bytes(range(32)),
        "threshold": 4,
        "smallest_sum": count - 2,
    }
    return make_parameters(count, **(regular | changes))


def make_vectors(parameters: RoundParameters, seed: int = 0) -> dict[int, NDArray[np.uint64]]:
    """Vectors that are uniform over the whole ring, so that sums wrap around."""
    rng = np.random.default_rng(seed)
    top = 2**parameters.ring_bits - 1
    return {
        index: rng.integers(0, top, parameters.vector_length, np.uint64, endpoint=True)
        for index in parameters.clients
    }


def plain_sum(parameters: RoundParameters, vectors: Vectors, survivors: tuple[int, ...]):
    """The oracle: Python integers, one coordinate at a time."""
    columns = zip(*(vectors[index].tolist() for index in survivors), strict=True)
    return [sum(column) % 2**parameters.ring_bits for column in columns]


def play(parameters: RoundParameters, vectors: Vectors, **events) -> Trace:
    """Run a round to its end or its error, with the events of `fill`."""
    trace = Trace(parameters)
    fill(trace, vectors, **events)
    return trace


def fill(
    trace: Trace,
    vectors: Vectors,
    *,
    lost: Mapping[Phase, Set[int]] | None = None,
    tamper: Tamper = lambda phase, sender, message: message,
    label: str = "",
    entropy: Mapping[int, Callable[[int], bytes]] | None = None,
    context: bytes = NO_CONTEXT,
) -> None:
    """Run the round of an empty trace, so that a trace of an aborted round can be read too.

    Args:
        trace: The round.
        vectors: For every client its vector.
        lost: By phase, the clients that fall silent before they send that phase's message.
        tamper: What becomes of a client's message on the way to the server; None loses it.
        label: Gives another fixed entropy.
        entropy: For every client its source of bytes, in place of the label's.
        context: Digest of what was broadcast to all.
    """
    lost = lost or {}
    parameters = trace.parameters
    entropy = entropy or {i: FixedEntropy(f"{label}/{i}") for i in parameters.clients}
    server_state: ServerState = server.start(parameters, context=context)
    states: dict[int, ClientState] = {}
    inbox: Mapping[int, bytes] = dict.fromkeys(parameters.clients, b"")
    silent: set[int] = set()
    for phase in parameters.phases:
        silent |= lost.get(phase, set())
        before, outbox = {}, {}
        for index, message in inbox.items():
            if index in silent:
                continue
            before[index], states[index], outbox[index] = _answer(
                phase,
                states.get(index),
                message,
                parameters,
                index,
                vectors,
                entropy[index],
                context,
            )
        trace.states[phase], trace.sent[phase] = before, dict(outbox)
        trace.after[phase] = {index: states[index] for index in outbox}
        trace.server_states[phase] = server_state
        arrived = {i: tamper(phase, i, message) for i, message in outbox.items()}
        received = {i: message for i, message in arrived.items() if message is not None}
        trace.arrived[phase] = {i: m for i, m in received.items() if m != outbox[i]}
        server_state, inbox = server.step(server_state, received)
        trace.answers[phase] = inbox
    assert isinstance(server_state, Finished)
    trace.finished = server_state


def _answer(phase, state, message, parameters, index, vectors, entropy, context):
    identity = signer(parameters, index)
    if phase is Phase.ADVERTISE_KEYS:
        credentials = credentials_of(parameters, index)
        return None, *client.advertise(parameters, index, entropy=entropy, credentials=credentials)
    if phase is Phase.MASKED_INPUT:
        ready, nothing = client.step(state, message, entropy=entropy, identity=identity)
        assert nothing == b""
        return ready, *client.mask(ready, vectors[index], context=context, identity=identity)
    return state, *client.step(state, message, entropy=entropy, identity=identity)

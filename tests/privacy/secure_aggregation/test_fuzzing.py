"""Every decoder, fed with garbage, damaged bytes and what is no bytes at all: one opaque error.

The damage is chosen so that it often passes the outer layers: a checksum or signature is made
anew around a damaged body, and lengths and counts are what a valid message has.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from privacy.errors import Authentication, ProtocolViolation
from privacy.secure_aggregation import (
    Phase,
    Refusal,
    client,
    decode_client_state,
    decode_enrolment,
    decode_server_state,
    server,
)
from privacy.secure_aggregation.masking import packed_bytes
from privacy.secure_aggregation.messages import HEADER_BYTES, Envelope, Kind
from privacy.secure_aggregation.parameters import decode_parameters
from tests.privacy.secure_aggregation._drive import (
    make_active,
    make_parameters,
    make_vectors,
    play,
    signer,
)

OPAQUE = {
    "the message was refused",
    "a signature does not verify",
    "an encrypted share does not verify",
    "a public key is not a usable point",
}
ROUNDS = {
    "semi-honest": make_parameters(4, ring_bits=21, threshold=3),
    "active": make_active(4, ring_bits=32, threshold=3),
}
FROM_SERVER = {
    Kind.ROSTER: Phase.ADVERTISE_KEYS,
    Kind.FORWARDED_SHARES: Phase.SHARE_KEYS,
    Kind.SURVIVORS: Phase.MASKED_INPUT,
    Kind.CONFIRMATIONS: Phase.CONSISTENCY_CHECK,
}
FROM_CLIENT = {
    Kind.ADVERTISED_KEYS: Phase.ADVERTISE_KEYS,
    Kind.DEALT_SHARES: Phase.SHARE_KEYS,
    Kind.MASKED_INPUT: Phase.MASKED_INPUT,
    Kind.CONFIRMED_TRANSCRIPT: Phase.CONSISTENCY_CHECK,
    Kind.REVEALED_SHARES: Phase.UNMASKING,
}


@functools.cache
def traced(kind):
    parameters = ROUNDS[kind]
    return play(parameters, make_vectors(parameters), lost={Phase.MASKED_INPUT: {4}})


def damaged(rng, data):
    """One of many ways to damage bytes; sometimes garbage altogether."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 36)))
            case 2:
                del data[at : at + rng.choice((1, 4, 36))]
            case 3 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 4:
                data[at : at + 4] = rng.choice((b"\0" * 4, b"\xff" * 4, b"\1\0\0\0"))
            case 5:
                data[at:at] = data[: rng.randrange(len(data) + 1)]
            case _:
                data = bytearray(rng.randbytes(rng.choice((0, 1, 20, len(data)))))
    return bytes(data)


def rewrap(parameters, kind, sender, receiver, body):
    """A message whose envelope is right around a damaged body."""
    identity = signer(parameters, sender) if sender else None
    size = packed_bytes(parameters.vector_length, parameters.ring_bits)
    at = max(0, len(body) - size) if kind is Kind.MASKED_INPUT else len(body)
    envelope = Envelope(parameters, kind, sender, receiver)
    return envelope.close(body[:at], vector=body[at:], identity=identity)


def trailer(parameters, sender):
    return 64 if parameters.is_active and sender else 16


def feed_client(rng, name):
    trace = traced(name)
    parameters = trace.parameters
    kind = rng.choice([k for k in FROM_SERVER if FROM_SERVER[k] in trace.answers])
    phase = FROM_SERVER[kind]
    body = trace.answers[phase][1][HEADER_BYTES : -trailer(parameters, 0)]
    message = rewrap(parameters, kind, 0, 1, damaged(rng, body))
    client.step(trace.after[phase][1], message, identity=signer(parameters, 1))


def feed_server(rng, name):
    trace = traced(name)
    parameters = trace.parameters
    kind = rng.choice([k for k in FROM_CLIENT if FROM_CLIENT[k] in trace.sent])
    phase = FROM_CLIENT[kind]
    body = trace.sent[phase][1][HEADER_BYTES : -trailer(parameters, 1)]
    message = rewrap(parameters, kind, 1, 0, damaged(rng, body))
    server.step(trace.server_states[phase], trace.sent[phase] | {1: message})


THOROUGH = pytest.param(200_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("count", [300, THOROUGH])
@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("feed", [feed_client, feed_server], ids=lambda feed: feed.__name__)
def test_nothing_but_the_one_error(feed, name, count):
    rng, refused = random.Random(f"{feed.__name__}/{name}"), 0
    for _ in range(count):
        try:
            feed(rng, name)
        except (ProtocolViolation, Authentication) as error:
            refused += 1
            # The server's aborts carry a phase; whatever a peer sends is refused without a reason.
            assert str(error) in OPAQUE or "at phase" in str(error)
    # A server takes a damaged message as a dropout, so it raises only below the threshold.
    assert refused > (0 if feed is feed_server else count // 2)


WRONG = ["text", 0, None, [1, 2], {1: b""}, object(), bytes]


@pytest.fixture(scope="module", params=[make_parameters, make_active])
def trace(request):
    parameters = request.param(5, corrupt=0, threshold=3)
    return play(parameters, make_vectors(parameters))


def of_other_kinds(message):
    """The right bytes in other wrappings, and other things altogether."""
    return [*WRONG, bytearray(message), memoryview(message), np.frombuffer(message, np.uint8)]


def test_messages_and_states_are_refused_in_every_phase(trace):
    parameters = trace.parameters
    identity = signer(parameters, 2)
    for phase in parameters.phases:
        state, sent = trace.server_states[phase], trace.sent[phase]
        for wrong in of_other_kinds(trace.answers[phase].get(2, b"\0")):
            with pytest.raises(ProtocolViolation, match="was refused"):
                client.step(trace.after[phase][2], wrong, identity=identity)
        for wrong in of_other_kinds(sent[4]):
            following, _ = server.step(state, sent | {4: wrong})
            assert following.refused == (Refusal(4, phase),)
        # Without 1 and 4, because `True` and `4.0` would be taken for keys that are there.
        rest = {i: message for i, message in sent.items() if i not in (1, 4)}
        keys = ("4", None, 4.0, True, (4,), np.int64(4), 2**70, -(2**70))
        for messages in (*({key: sent[4]} | rest for key in keys), None, "text", [*sent.items()]):
            with pytest.raises(ProtocolViolation, match="was refused"):
                server.step(state, messages)
    for wrong in WRONG:
        with pytest.raises(ProtocolViolation):
            client.step(wrong, trace.answers[Phase.ADVERTISE_KEYS][2])
        with pytest.raises(ProtocolViolation):
            client.mask(wrong, np.zeros(8, np.uint64))
        with pytest.raises(ProtocolViolation):
            server.step(wrong, {})


def test_stored_bytes_of_another_type_are_refused():
    for wrong in WRONG:
        for decode in (decode_client_state, decode_server_state):
            with pytest.raises(ProtocolViolation):
                decode(wrong)
        with pytest.raises(Authentication):
            decode_enrolment(wrong)
        with pytest.raises(ValueError, match="encoded parameters"):
            decode_parameters(wrong)


def test_what_a_caller_gives_is_a_value_error(trace):
    ready = trace.states[Phase.MASKED_INPUT][2]
    for wrong in (*WRONG, b"vector"):
        with pytest.raises(ValueError, match="vector"):
            client.mask(ready, wrong)
    for wrong in (*WRONG, b"", bytes(31), bytes(33), bytearray(32)):
        with pytest.raises(ValueError, match="context"):
            client.mask(ready, np.zeros(8, np.uint64), context=wrong)
        with pytest.raises(ValueError, match="context"):
            server.start(trace.parameters, context=wrong)

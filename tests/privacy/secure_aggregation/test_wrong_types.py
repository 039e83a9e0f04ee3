"""Whatever a transport hands over, bytes or not: the one error, or one client's refused message."""

from __future__ import annotations

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
from privacy.secure_aggregation.parameters import decode_parameters
from tests.privacy.secure_aggregation._drive import (
    identity_of,
    make_active,
    make_parameters,
    make_vectors,
    play,
)

WRONG = ["text", 0, None, [1, 2], {1: b""}, object(), bytes]


@pytest.fixture(
    scope="module",
    params=[make_parameters(5, threshold=3), make_active(5, corrupt=0, threshold=3)],
    ids=["semi-honest", "active"],
)
def trace(request):
    return play(request.param, make_vectors(request.param))


def of_other_kinds(message):
    """The right bytes in other wrappings, and other things altogether."""
    return [*WRONG, bytearray(message), memoryview(message), np.frombuffer(message, np.uint8)]


def test_messages_and_states_are_refused_in_every_phase(trace):
    parameters = trace.parameters
    identity = identity_of(2) if parameters.is_active else None
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

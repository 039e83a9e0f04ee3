"""A client may be a new process at every message: its states survive as bytes, without pickle."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import Phase, client, decode_client_state, encode_client_state
from privacy.secure_aggregation.messages import decode_dealt_shares, encode_dealt_shares
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    FixedEntropy,
    identity_of,
    make_active,
    make_parameters,
    make_vectors,
    play,
)

PARAMETERS = make_parameters(5, ring_bits=64)
TRACE = play(PARAMETERS, make_vectors(PARAMETERS), lost={Phase.MASKED_INPUT: {4}})
ACTIVE = make_active(5, corrupt=1, threshold=4)


def without_a_box(phase, sender, message):
    """Client 3 seals rubbish for client 2."""
    if (phase, sender) != (Phase.SHARE_KEYS, 3):
        return message
    dealing = decode_dealt_shares(ACTIVE, 3, message)
    changed = dataclasses.replace(dealing, boxes=dict(dealing.boxes) | {2: bytes(94)})
    return encode_dealt_shares(ACTIVE, 3, changed, identity=identity_of(3))


CONFIRMED = play(ACTIVE, make_vectors(ACTIVE), tamper=without_a_box, context=bytes(range(32)))
STATES = [
    *(TRACE.after[phase][2] for phase in PHASES),
    TRACE.states[Phase.MASKED_INPUT][2],
    *(CONFIRMED.after[phase][2] for phase in Phase),
    CONFIRMED.states[Phase.MASKED_INPUT][2],
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_state_reads_back(state):
    data = encode_client_state(state)
    again = decode_client_state(data)
    assert again == state
    assert type(again) is type(state)
    assert encode_client_state(again) == data


def test_what_the_transcript_needs_survives():
    ready, masked, confirmed = (
        decode_client_state(encode_client_state(state))
        for state in (
            CONFIRMED.states[Phase.MASKED_INPUT][2],
            CONFIRMED.after[Phase.MASKED_INPUT][2],
            CONFIRMED.after[Phase.CONSISTENCY_CHECK][2],
        )
    )
    assert ready.withheld == masked.withheld == (3,)
    assert masked.dealers == {1, 2, 3, 4, 5}
    assert masked.roster == ready.roster
    assert masked.context == bytes(range(32))
    others = CONFIRMED.after[Phase.CONSISTENCY_CHECK].values()
    assert {each.transcript for each in others} == {confirmed.transcript}


def test_a_client_that_restarts_at_every_message_says_the_same():
    entropy = FixedEntropy("/2")
    state, message = client.advertise(PARAMETERS, 2, entropy=entropy)
    assert message == TRACE.sent[Phase.ADVERTISE_KEYS][2]
    for phase, following in (
        (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS),
        (Phase.SHARE_KEYS, Phase.MASKED_INPUT),
        (Phase.MASKED_INPUT, Phase.UNMASKING),
    ):
        state = decode_client_state(encode_client_state(state))
        state, message = client.step(state, TRACE.answers[phase][2], entropy=entropy)
        if following is Phase.MASKED_INPUT:
            state = decode_client_state(encode_client_state(state))
            state, message = client.mask(state, make_vectors(PARAMETERS)[2])
        assert message == TRACE.sent[following][2]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_truncated_and_longer_states_are_refused(state):
    data = encode_client_state(state)
    for size in range(len(data)):
        with pytest.raises(ProtocolViolation):
            decode_client_state(data[:size])
    for more in (b"\0", b"\0\0\0\0", data):
        with pytest.raises(ProtocolViolation):
            decode_client_state(data + more)


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_flipped_byte_is_refused_or_gives_another_state(state):
    data = encode_client_state(state)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x80
        try:
            again = decode_client_state(bytes(changed))
        except ProtocolViolation as error:
            assert str(error) == "the message was refused"
            continue
        assert again != state
        assert encode_client_state(again) == bytes(changed)


def test_states_of_strangers_are_refused():
    data = encode_client_state(STATES[0])
    own = (2).to_bytes(4, "little")
    for index in (0, 6):
        changed = data.replace(b"\4\0\0\0" + own, b"\4\0\0\0" + index.to_bytes(4, "little"))
        assert changed != data
        with pytest.raises(ProtocolViolation):
            decode_client_state(changed)


def test_short_secrets_are_refused():
    data = encode_client_state(dataclasses.replace(STATES[0], mask_private=bytes(31)))
    with pytest.raises(ProtocolViolation):
        decode_client_state(data)


@settings(derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 6))
def test_garbage_is_refused(garbage, tag):
    for data in (garbage, b"SC\4" + bytes([tag]) + garbage):
        with pytest.raises(ProtocolViolation):
            decode_client_state(data)

"""A server may stop between any two phases: its states survive as bytes, without pickle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import (
    Adversary,
    Finished,
    Phase,
    client,
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
    server,
)
from privacy.secure_aggregation.messages import decode_dealt_shares, encode_dealt_shares
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    credentials_of,
    identity_of,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    plain_sum,
    play,
)

CONTEXT = bytes(range(32))
ROUNDS = {
    "complete-21": make_parameters(6, threshold=3, ring_bits=21),
    "complete-64": make_parameters(6, threshold=3, ring_bits=64),
    "regular-32": make_regular(12),
    "active-16": make_active(6, threshold=4, corrupt=1, ring_bits=16),
}
by_round = pytest.mark.parametrize("name", ROUNDS)
LOST = 5


def spoil(parameters):
    """Client 3 seals rubbish for one holder, which then complains."""
    holder = next(i for i in parameters.holders(3) if i != 3)

    def tamper(phase, sender, message):
        if (phase, sender) == (Phase.MASKED_INPUT, 2):
            return None if parameters.is_active else message[:-1]
        if (phase, sender) != (Phase.SHARE_KEYS, 3):
            return message
        dealing = decode_dealt_shares(parameters, 3, message)
        changed = dataclasses.replace(dealing, boxes=dict(dealing.boxes) | {holder: bytes(94)})
        identity = identity_of(3) if parameters.is_active else None
        return encode_dealt_shares(parameters, 3, changed, identity=identity)

    return tamper


def traced(name):
    """A round in which something was lost, refused and complained of."""
    parameters = ROUNDS[name]
    lost = {} if parameters.is_active else {Phase.SHARE_KEYS: {LOST}}
    return play(parameters, make_vectors(parameters), lost=lost, tamper=spoil(parameters))


def states_of(name):
    return list(traced(name).server_states.values())


def same(one, other):
    """Equal field by field; arrays are compared as such."""
    if type(one) is not type(other):
        return False
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        equal = np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right
        if not equal:
            return False
    return True


@by_round
def test_a_state_reads_back(name):
    for state in states_of(name):
        data = encode_server_state(state)
        again = decode_server_state(data)
        assert same(again, state)
        assert encode_server_state(again) == data


def test_what_is_worth_reading_back_is_in_these_states():
    for name in ROUNDS:
        last = states_of(name)[-1]
        assert last.complaints
        assert last.masked_sum.any()
        assert not decode_server_state(encode_server_state(last)).masked_sum.flags.writeable
        if name != "active-16":
            assert last.refused


@by_round
def test_everybody_is_a_new_process_after_every_message(name):
    parameters = ROUNDS[name]
    vectors = make_vectors(parameters)
    stored = {}
    entropy = {i: FixedEntropy(f"restarts/{i}") for i in parameters.clients}
    kept, inbox = encode_server_state(server.start(parameters, context=CONTEXT)), None

    def answer(index, message):
        identity = identity_of(index) if parameters.is_active else None
        if message is None:
            credentials = credentials_of(parameters, index)
            following, said = client.advertise(
                parameters, index, entropy=entropy[index], credentials=credentials
            )
        else:
            state = decode_client_state(stored[index])
            following, said = client.step(state, message, entropy=entropy[index], identity=identity)
        stored[index] = encode_client_state(following)
        if not said:
            ready = decode_client_state(stored[index])
            following, said = client.mask(ready, vectors[index], context=CONTEXT, identity=identity)
            stored[index] = encode_client_state(following)
        return said

    for phase in parameters.phases:
        asked = dict.fromkeys(parameters.clients) if inbox is None else inbox
        # One client is gone before it sends its masked vector.
        present = [i for i in asked if i != LOST or phase not in list(Phase)[2:]]
        sent = {i: answer(i, asked[i]) for i in present}
        state, inbox = server.step(decode_server_state(kept), sent)
        kept = None if isinstance(state, Finished) else encode_server_state(state)
    survivors = tuple(i for i in parameters.clients if i != LOST)
    assert state.survivors == survivors
    assert state.total.tolist() == plain_sum(parameters, vectors, survivors)


def test_a_state_holds_no_clients_secret():
    trace = traced("complete-21")
    secrets = []
    for ready in trace.states[Phase.MASKED_INPUT].values():
        secrets += [ready.seed, *ready.mask_keys.values()]
        secrets += [s for held in ready.shares.values() for s in (held.key, held.seed)]
    for state in trace.server_states.values():
        assert not any(secret in encode_server_state(state) for secret in secrets)


def test_a_finished_round_is_no_state_to_go_on_from():
    with pytest.raises(ValueError, match="state must wait for messages"):
        encode_server_state(traced("complete-21").finished)


@by_round
def test_cut_and_longer_states_are_refused(name):
    for state in states_of(name):
        data = encode_server_state(state)
        for size in {*range(0, len(data), 7), *range(min(len(data), 200)), len(data) - 1}:
            with pytest.raises(ProtocolViolation):
                decode_server_state(data[:size])
        for more in (b"\0", b"\0\0\0\0", data):
            with pytest.raises(ProtocolViolation):
                decode_server_state(data + more)


@by_round
def test_a_flipped_bit_is_refused_or_gives_another_state(name):
    for state in states_of(name):
        data = encode_server_state(state)
        for position in range(0, len(data), 1 + len(data) // 400):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            try:
                again = decode_server_state(bytes(changed))
            except ProtocolViolation as error:
                assert str(error) == "the message was refused"
                continue
            assert encode_server_state(again) == bytes(changed)


def test_clients_states_are_none_of_the_servers_and_back():
    trace = traced("complete-21")
    of_client = encode_client_state(trace.after[Phase.ADVERTISE_KEYS][2])
    of_server = encode_server_state(trace.server_states[Phase.SHARE_KEYS])
    with pytest.raises(ProtocolViolation):
        decode_server_state(of_client)
    with pytest.raises(ProtocolViolation):
        decode_client_state(of_server)


@by_round
def test_states_that_do_not_hang_together_are_refused(name):
    """Fields that are well-formed one by one, of clients that have nothing to do with the round."""
    *_, last = states_of(name)
    dealt = last.dealt
    (one, keys), *_ = dealt.roster.items()
    (complains, of), *_ = last.complaints.items()
    stranger = 2**32 - 1
    wrong = [
        {"dealt": dataclasses.replace(dealt, roster=dict(dealt.roster) | {stranger: keys})},
        {"dealt": dataclasses.replace(dealt, commitments={one: bytes(32)})},
        {"dealt": dataclasses.replace(dealt, share_commitments={one: {}})},
        {"survivors": (*last.survivors, stranger)},
        {"survivors": (complains,)},
        {"complaints": {stranger: of}},
        {"complaints": {complains: (stranger,)}},
        {"complaints": {complains: ()}},
    ]
    for change in wrong:
        data = encode_server_state(dataclasses.replace(last, **change))
        with pytest.raises(ProtocolViolation):
            decode_server_state(data)


def test_a_semi_honest_round_never_waits_for_signatures():
    active = traced("active-16").server_states[Phase.CONSISTENCY_CHECK]
    semi_honest = dataclasses.replace(
        active.parameters, adversary=Adversary.SEMI_HONEST, identities=(), enrolment_serial=0
    )
    roster = {i: dataclasses.replace(k, signature=b"") for i, k in active.dealt.roster.items()}
    dealt = dataclasses.replace(active.dealt, roster=roster)
    state = dataclasses.replace(active, parameters=semi_honest, dealt=dealt)
    with pytest.raises(ProtocolViolation):
        decode_server_state(encode_server_state(state))


@settings(derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 6))
def test_garbage_is_refused(garbage, tag):
    for data in (garbage, b"SS\4" + bytes([tag]) + garbage):
        with pytest.raises(ProtocolViolation):
            decode_server_state(data)

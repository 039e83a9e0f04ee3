"""Stored states of clients and of the server: read back, and anything else is refused."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import (
    Adversary,
    Phase,
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_server_state,
)
from tests.privacy.secure_aggregation._drive import (
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    misdealt,
    play,
)

ROUNDS = {
    "complete-21": make_parameters(6, threshold=3, ring_bits=21),
    "regular-64": make_regular(12, ring_bits=64),
    "active-16": make_active(6, threshold=4, corrupt=1, ring_bits=16),
}
by_round = pytest.mark.parametrize("name", ROUNDS)


@functools.cache
def traced(name):
    """A round in which something was lost, refused and complained of."""
    parameters = ROUNDS[name]
    # Client 3 seals rubbish for one holder, which then complains.
    holder = next(i for i in parameters.holders(3) if i != 3)

    def tamper(phase, sender, message):
        if (phase, sender) == (Phase.MASKED_INPUT, 2):
            return None if parameters.is_active else message[:-1]
        dealt = (phase, sender) == (Phase.SHARE_KEYS, 3)
        return misdealt(parameters, 3, message, [holder]) if dealt else message

    lost, context = {} if parameters.is_active else {Phase.SHARE_KEYS: {5}}, bytes(range(32))
    return play(parameters, make_vectors(parameters), lost=lost, tamper=tamper, context=context)


def states_of(name):
    """Each state of the server and of the client that complains, with its two functions."""
    trace = traced(name)
    holder = next(i for i in trace.parameters.holders(3) if i != 3)
    clients = [states[holder] for states in trace.after.values() if holder in states]
    clients.append(trace.states[Phase.MASKED_INPUT][holder])
    yield from ((state, encode_client_state, decode_client_state) for state in clients)
    server = trace.server_states.values()
    yield from ((state, encode_server_state, decode_server_state) for state in server)


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
    for state, encode, decode in states_of(name):
        data = encode(state)
        again = decode(data)
        assert same(again, state)
        assert encode(again) == data
    assert state.complaints
    assert state.masked_sum.any()
    assert not again.masked_sum.flags.writeable
    assert state.refused or state.parameters.is_active


@by_round
def test_cut_and_longer_states_are_refused(name):
    for state, encode, decode in states_of(name):
        data = encode(state)
        for size in {*range(0, len(data), 29), *range(min(len(data), 60)), len(data) - 1}:
            with pytest.raises(ProtocolViolation):
                decode(data[:size])
        for more in (b"\0", b"\0\0\0\0", data):
            with pytest.raises(ProtocolViolation):
                decode(data + more)


@by_round
def test_a_flipped_bit_is_refused_or_gives_another_state(name):
    for state, encode, decode in states_of(name):
        data = encode(state)
        for position in range(0, len(data), 1 + len(data) // 100):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            try:
                again = decode(bytes(changed))
            except ProtocolViolation as error:
                assert str(error) == "the message was refused"
                continue
            assert encode(again) == bytes(changed)
            assert not same(again, state)


def test_a_servers_state_holds_no_clients_secret():
    trace = traced("complete-21")
    secrets = []
    for ready in trace.states[Phase.MASKED_INPUT].values():
        secrets += [ready.seed, *ready.mask_keys.values()]
        secrets += [s for held in ready.shares.values() for s in (held.key, held.seed)]
    for state in trace.server_states.values():
        assert not any(secret in encode_server_state(state) for secret in secrets)


def test_a_finished_round_or_the_others_state_is_no_state_to_go_on_from():
    trace = traced("complete-21")
    with pytest.raises(ValueError, match="wait for messages"):
        encode_server_state(trace.finished)
    of_client = encode_client_state(trace.after[Phase.ADVERTISE_KEYS][2])
    of_server = encode_server_state(trace.server_states[Phase.SHARE_KEYS])
    with pytest.raises(ProtocolViolation):
        decode_server_state(of_client)
    with pytest.raises(ProtocolViolation):
        decode_client_state(of_server)


def test_states_of_strangers_and_with_short_secrets_are_refused():
    state = traced("complete-21").after[Phase.ADVERTISE_KEYS][2]
    data = encode_client_state(state)
    own = (2).to_bytes(4, "little")
    short = encode_client_state(dataclasses.replace(state, mask_private=bytes(31)))
    strangers = [
        data.replace(b"\4\0\0\0" + own, b"\4\0\0\0" + index.to_bytes(4, "little"))
        for index in (0, 7)
    ]
    for changed in (short, *strangers):
        assert changed != data
        with pytest.raises(ProtocolViolation):
            decode_client_state(changed)


@by_round
def test_states_that_do_not_hang_together_are_refused(name):
    """Fields that are well-formed one by one, of clients that have nothing to do with the round."""
    *_, last = traced(name).server_states.values()
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

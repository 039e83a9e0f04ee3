"""What the server refuses, and that wrong shares never become a wrong sum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from privacy.errors import InvalidShare, ProtocolViolation
from privacy.secure_aggregation import Finished, Phase, Refusal, server
from privacy.secure_aggregation.messages import (
    CHECKSUM_BYTES,
    Dealing,
    Envelope,
    Kind,
    Revealed,
    ShareType,
    decode_advertised_keys,
    decode_dealt_shares,
    decode_revealed_shares,
    encode_advertised_keys,
    encode_dealt_shares,
    encode_revealed_shares,
)
from privacy.secure_aggregation.shamir import PRIME, combine, lagrange_at_zero
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    make_parameters,
    make_vectors,
    plain_sum,
    play,
)

PARAMETERS = make_parameters(5)
VECTORS = make_vectors(PARAMETERS)


@pytest.fixture(scope="module")
def trace():
    return play(PARAMETERS, VECTORS, lost={Phase.MASKED_INPUT: {4}})


def with_message(trace, phase, sender, message):
    """The step of one phase with one client's message replaced."""
    return server.step(trace.server_states[phase], trace.sent[phase] | {sender: message})[0]


def test_messages_of_strangers_are_refused_and_change_nothing(trace):
    for phase in PHASES:
        state = trace.server_states[phase]
        honest = trace.sent[phase]
        known, _ = server.step(state, honest)
        more, outgoing = server.step(state, honest | {99: honest[1], 0: honest[1], -1: b""})
        refused = [r for r in more.refused if r.client in (99, 0, -1)] if phase else []
        assert refused == [Refusal(index, phase) for index in (-1, 0, 99)]
        assert set(outgoing) <= set(PARAMETERS.clients)
        assert type(more) is type(known)


def test_a_client_that_dropped_out_stays_out(trace):
    # Client 4 was lost at the masked input; its late answer at unmasking is refused.
    sent = trace.sent[Phase.UNMASKING]
    assert 4 not in sent
    finished = with_message(trace, Phase.UNMASKING, 4, sent[1])
    assert finished.refused == (Refusal(4, Phase.UNMASKING),)
    assert np.array_equal(finished.total, trace.finished.total)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda keys, other: dataclasses.replace(keys, channel=bytes(32)),
        lambda keys, other: dataclasses.replace(keys, mask=b"\1" + bytes(31)),
        lambda keys, other: dataclasses.replace(keys, mask=keys.channel),
        lambda keys, other: dataclasses.replace(keys, mask=other.mask),
        lambda keys, other: other,
    ],
)
def test_bad_public_keys_are_their_owners_dropout(trace, spoil):
    first, third = (
        decode_advertised_keys(PARAMETERS, i, trace.sent[Phase.ADVERTISE_KEYS][i]) for i in (1, 3)
    )
    message = encode_advertised_keys(PARAMETERS, 3, spoil(third, first))
    state = with_message(trace, Phase.ADVERTISE_KEYS, 3, message)
    assert state.refused == (Refusal(3, Phase.ADVERTISE_KEYS),)
    assert sorted(state.roster) == [1, 2, 4, 5]


def test_dealings_for_other_peers_are_refused(trace):
    message = trace.sent[Phase.SHARE_KEYS][3]
    dealing = decode_dealt_shares(PARAMETERS, 3, message)
    box = dealing.boxes[1]
    missing = {index: b for index, b in dealing.boxes.items() if index != 1}
    for boxes in (missing, missing | {3: box}, dict(dealing.boxes) | {9: box}):
        bad = encode_dealt_shares(PARAMETERS, 3, Dealing(dealing.commitment, boxes))
        state = with_message(trace, Phase.SHARE_KEYS, 3, bad)
        assert state.refused == (Refusal(3, Phase.SHARE_KEYS),)
        assert sorted(state.roster) == [1, 2, 4, 5]


def revealed_by(trace, holder):
    return decode_revealed_shares(PARAMETERS, holder, trace.sent[Phase.UNMASKING][holder])


def test_answers_that_do_not_fit_the_survivor_list_are_refused():
    trace = play(PARAMETERS, VECTORS)
    good = revealed_by(trace, 3)
    missing = {dealer: r for dealer, r in good.items() if dealer != 1}
    other_type = Revealed(ShareType.KEY, good[1].share)
    for bad in (missing, good | {1: other_type}, good | {7: good[1]}, {}):
        message = encode_revealed_shares(PARAMETERS, 3, bad)
        finished = with_message(trace, Phase.UNMASKING, 3, message)
        assert finished.refused == (Refusal(3, Phase.UNMASKING),)
        assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, (1, 2, 3, 4, 5))


@pytest.mark.parametrize("record", [b"\x00" + bytes(33), b"\x01" + PRIME.to_bytes(33, "little")])
def test_misshapen_shares_are_refused(record):
    trace = play(PARAMETERS, VECTORS)
    body = bytearray(trace.sent[Phase.UNMASKING][3][52:-CHECKSUM_BYTES])
    body[4:38] = record
    message = Envelope(PARAMETERS, Kind.REVEALED_SHARES, sender=3).close(bytes(body))
    finished = with_message(trace, Phase.UNMASKING, 3, message)
    assert finished.refused == (Refusal(3, Phase.UNMASKING),)


@pytest.mark.parametrize(("dealer", "what"), [(1, "seed"), (4, "mask key")])
def test_a_wrong_share_aborts_instead_of_changing_the_sum(trace, dealer, what):
    # Client 4 dropped out, so its mask key is rebuilt; of client 1 the seed is. The share is
    # changed so that the rebuilt secret is a well-formed one: the right one plus 2^128.
    good = revealed_by(trace, 1)[dealer]
    weight = lagrange_at_zero((1, 2, 3, 5))[0]
    wrong = (int.from_bytes(good.share, "little") + pow(weight, -1, PRIME) * 2**128) % PRIME
    with pytest.raises(InvalidShare, match=f"client {dealer} .* its {what}"):
        reveal_instead(trace, dealer, wrong.to_bytes(33, "little"))


def test_shares_that_combine_to_no_secret_abort(trace):
    # Adding -1 / weight times (secret + 1) to a share makes the secret -1, which is PRIME - 1.
    holders = (1, 2, 3, 5)
    weights = lagrange_at_zero(holders)
    shares = [revealed_by(trace, holder)[1].share for holder in holders]
    secret = int.from_bytes(combine(shares, weights), "little")
    shift = -pow(weights[0], -1, PRIME) * (secret + 1)
    wrong = ((int.from_bytes(shares[0], "little") + shift) % PRIME).to_bytes(33, "little")
    with pytest.raises(InvalidShare, match="client 1 do not"):
        reveal_instead(trace, 1, wrong)


def reveal_instead(trace, dealer, share):
    """Let client 1 reveal another share of one dealer, in a message that is otherwise right."""
    good = revealed_by(trace, 1)
    bad = good | {dealer: dataclasses.replace(good[dealer], share=share)}
    message = encode_revealed_shares(PARAMETERS, 1, bad)
    try:
        with_message(trace, Phase.UNMASKING, 1, message)
    except InvalidShare as error:
        assert share.hex() not in str(error)
        raise


def test_a_finished_round_takes_nothing(trace):
    assert isinstance(trace.finished, Finished)
    with pytest.raises(ProtocolViolation):
        server.step(trace.finished, {})


def test_a_step_changes_neither_its_state_nor_its_messages(trace):
    for phase in PHASES:
        state, sent = trace.server_states[phase], dict(trace.sent[phase])
        once, first = server.step(state, sent)
        twice, second = server.step(state, sent)
        assert first == second
        assert sent == trace.sent[phase]
        assert once.refused == twice.refused if phase else True
    assert np.array_equal(once.total, twice.total)
    assert not once.total.flags.writeable
    assert not trace.server_states[Phase.UNMASKING].masked_sum.flags.writeable


def flip_bit(message, bit):
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("ring_bits", [21, 32])
def test_a_masked_vector_changed_on_its_way_changes_the_sum_by_as_much(ring_bits):
    # What the sender itself could have done, and no more: one element, nobody else's, no mask.
    parameters = make_parameters(5, ring_bits=ring_bits)
    vectors = make_vectors(parameters)
    honest = play(parameters, vectors).finished
    for bit in (0, ring_bits - 1, 3 * ring_bits, 8 * ring_bits - 1):
        finished = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, b=bit: (
                flip_bit(m, 8 * 52 + b) if (at, sender) == (Phase.MASKED_INPUT, 2) else m
            ),
        ).finished
        assert finished.refused == ()
        assert finished.survivors == parameters.clients
        off = (finished.total - honest.total) & np.uint64(2**ring_bits - 1)
        assert np.flatnonzero(off).tolist() == [bit // ring_bits]
        changed = int(off[bit // ring_bits])
        assert changed in (2 ** (bit % ring_bits), 2**ring_bits - 2 ** (bit % ring_bits))


@pytest.mark.parametrize("phase", PHASES)
def test_a_foreign_or_replayed_message_is_its_senders_dropout(phase):
    parameters = make_parameters(5)
    vectors = make_vectors(parameters)
    changes = [{"round_number": 4}, {"attempt": 1}, {"run_id": "other"}, {"threshold": 3}]
    others = [play(make_parameters(5, **change), vectors).sent[phase][3] for change in changes]
    honest = play(parameters, vectors).sent
    others += [honest[phase][4], *(honest[at][3] for at in PHASES if at is not phase)]
    for other in others:
        finished = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, o=other: o if (at, sender) == (phase, 3) else m,
        ).finished
        assert finished.refused == (Refusal(3, phase),)
        assert finished.total.tolist() == plain_sum(parameters, vectors, finished.survivors)

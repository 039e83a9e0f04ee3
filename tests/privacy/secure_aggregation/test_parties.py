"""What client and server refuse: states stay as they were, and no sum becomes a wrong one."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from privacy.errors import Authentication, InvalidShare, ProtocolViolation
from privacy.secure_aggregation import Phase, Refusal, client, encode_client_state, server
from privacy.secure_aggregation.keys import seal
from privacy.secure_aggregation.messages import (
    CHECKSUM_BYTES,
    Dealing,
    Envelope,
    ForwardedShares,
    Kind,
    Revealed,
    ShareType,
    box_context,
    decode_advertised_keys,
    decode_dealt_shares,
    decode_forwarded_shares,
    decode_revealed_shares,
    decode_roster,
    encode_advertised_keys,
    encode_dealt_shares,
    encode_forwarded_shares,
    encode_revealed_shares,
    encode_roster,
    encode_survivors,
)
from privacy.secure_aggregation.shamir import PRIME, combine, lagrange_at_zero
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    FixedEntropy,
    make_parameters,
    make_vectors,
    plain_sum,
    play,
)

PARAMETERS = make_parameters(5)
VECTORS = make_vectors(PARAMETERS)
OWN = 2
# The phase whose message a client makes out of the server's previous answer.
NEXT = {
    Phase.ADVERTISE_KEYS: Phase.SHARE_KEYS,
    Phase.SHARE_KEYS: Phase.MASKED_INPUT,
    Phase.MASKED_INPUT: Phase.UNMASKING,
}


@pytest.fixture(scope="module")
def trace():
    return play(PARAMETERS, VECTORS, lost={Phase.MASKED_INPUT: {4}})


@pytest.fixture(scope="module")
def whole():
    """A round in which nobody is lost."""
    return play(PARAMETERS, VECTORS)


@pytest.fixture(scope="module")
def foreign():
    """Rounds that differ in one parameter."""
    changes = [{"round_number": 4}, {"attempt": 1}, {"run_id": "x"}, {"threshold": 3}]
    return [play(make_parameters(5, **change), VECTORS) for change in changes]


def waiting(trace, phase):
    """The state of our client that waits for the server's answer to a phase."""
    return trace.after[phase][OWN]


def refuses(state, message):
    """Assert that a message is refused with the opaque error and nothing has changed."""
    before = encode_client_state(state)
    with pytest.raises(ProtocolViolation) as caught:
        client.step(state, message, entropy=FixedEntropy("never"))
    assert encode_client_state(state) == before
    assert str(caught.value) in {
        "the message was refused",
        "an encrypted share does not verify",
        "a public key is not a usable point",
    }
    return caught.value


def roster_of(trace):
    return decode_roster(PARAMETERS, OWN, trace.answers[Phase.ADVERTISE_KEYS][OWN])


def boxes_of(trace):
    return decode_forwarded_shares(PARAMETERS, OWN, trace.answers[Phase.SHARE_KEYS][OWN])


def survivors(*indices):
    return encode_survivors(PARAMETERS, OWN, indices)


@pytest.mark.parametrize("phase", NEXT)
def test_every_flipped_byte_and_truncation_is_refused(trace, phase):
    state, message = waiting(trace, phase), trace.answers[phase][OWN]
    for position in range(len(message)):
        changed = bytearray(message)
        changed[position] ^= 0x40
        refuses(state, bytes(changed))
    for size in range(0, len(message), 5):
        refuses(state, message[:size])
    refuses(state, message + b"\0")
    refuses(state, message + message)
    # The right message is still taken.
    following, outgoing = client.step(state, message, entropy=FixedEntropy("again"))
    assert type(following) is not type(state)
    assert bool(outgoing) is (phase is not Phase.SHARE_KEYS)


@pytest.mark.parametrize("phase", NEXT)
def test_messages_of_other_phases_clients_and_rounds_are_refused(trace, foreign, phase):
    state = waiting(trace, phase)
    for other in NEXT:
        for receiver, message in trace.answers[other].items():
            if (other, receiver) != (phase, OWN):
                refuses(state, message)
    for sent in trace.sent.values():
        for message in sent.values():
            refuses(state, message)
    for other in foreign:
        refuses(state, other.answers[phase][OWN])


def test_a_finished_or_ready_client_takes_no_message(trace):
    done = trace.after[Phase.UNMASKING][OWN]
    assert done.survivors == (1, 2, 3, 5)
    refuses(done, survivors(1, 2, 3, 4, 5))
    for state in (trace.states[Phase.MASKED_INPUT][OWN], trace.after[Phase.UNMASKING][OWN]):
        for phase in NEXT:
            refuses(state, trace.answers[phase][OWN])
        refuses(state, b"")


def test_survivor_lists_that_open_too_much_are_refused(trace):
    state = waiting(trace, Phase.MASKED_INPUT)
    assert PARAMETERS.threshold == 4
    refuses(state, survivors(1, 2, 3))
    refuses(state, survivors())
    refuses(state, survivors(1, 3, 4, 5))
    refuses(state, survivors(1, 2, 3, 4, 6))
    refuses(state, survivors(1, 2, 3, 5, 77))
    client.step(state, survivors(1, 2, 3, 5))


def test_a_list_with_a_client_whose_shares_never_came_is_refused():
    trace = play(PARAMETERS, VECTORS, lost={Phase.SHARE_KEYS: {4}})
    state = waiting(trace, Phase.MASKED_INPUT)
    refuses(state, survivors(1, 2, 3, 4, 5))
    refuses(state, survivors(1, 2, 3, 4))
    client.step(state, survivors(1, 2, 3, 5))


def test_one_kind_of_share_is_revealed_for_every_possible_list(trace):
    state = waiting(trace, Phase.MASKED_INPUT)
    others = set(PARAMETERS.clients) - {OWN}
    for size in (3, 4):
        for chosen in itertools.combinations(sorted(others), size):
            alive = {OWN, *chosen}
            _, message = client.step(state, survivors(*sorted(alive)))
            revealed = decode_revealed_shares(PARAMETERS, OWN, message)
            assert revealed == {
                dealer: Revealed(ShareType.SEED, held.seed)
                if dealer in alive
                else Revealed(ShareType.KEY, held.key)
                for dealer, held in state.shares.items()
            }
            for dealer, held in state.shares.items():
                assert (held.seed in message) is (dealer in alive)
                assert (held.key in message) is (dealer not in alive)


def test_rosters_that_weaken_the_round_are_refused(trace):
    state, roster = waiting(trace, Phase.ADVERTISE_KEYS), roster_of(trace)
    swapped = dataclasses.replace(roster[OWN], mask=roster[1].mask)
    crossed = dataclasses.replace(roster[1], mask=roster[1].channel)
    unusable = dataclasses.replace(roster[1], channel=bytes(32))
    for bad in (
        {index: roster[index] for index in (1, 2, 3)},
        {index: roster[index] for index in (1, 3, 4, 5)},
        roster | {6: dataclasses.replace(roster[1], channel=b"\5" * 32, mask=b"\6" * 32)},
        roster | {OWN: swapped},
        roster | {3: roster[1]},
        roster | {1: crossed},
        {},
    ):
        refuses(state, encode_roster(PARAMETERS, OWN, bad))
    error = refuses(state, encode_roster(PARAMETERS, OWN, roster | {1: unusable}))
    assert isinstance(error, Authentication)


def test_a_mask_key_that_is_no_usable_point_stops_the_client(trace):
    roster = roster_of(trace)
    roster[1] = dataclasses.replace(roster[1], mask=bytes(32))
    state = waiting(trace, Phase.ADVERTISE_KEYS)
    shared, _ = client.step(
        state, encode_roster(PARAMETERS, OWN, roster), entropy=FixedEntropy("any")
    )
    shared = dataclasses.replace(
        shared, receiving_keys=waiting(trace, Phase.SHARE_KEYS).receiving_keys
    )
    error = refuses(shared, trace.answers[Phase.SHARE_KEYS][OWN])
    assert isinstance(error, Authentication)


def test_forwarded_shares_that_weaken_the_round_are_refused(trace):
    state, boxes = waiting(trace, Phase.SHARE_KEYS), boxes_of(trace)
    assert sorted(boxes) == [1, 3, 4, 5]
    refuses(state, encode_forwarded_shares(PARAMETERS, OWN, {1: boxes[1], 3: boxes[3]}))
    refuses(state, encode_forwarded_shares(PARAMETERS, OWN, boxes | {OWN: boxes[1]}))
    refuses(state, encode_forwarded_shares(PARAMETERS, OWN, boxes | {6: boxes[1]}))
    refuses(state, encode_forwarded_shares(PARAMETERS, OWN, {}))


def test_a_box_of_another_dealer_or_receiver_or_with_a_bad_share_is_withheld(trace):
    state, boxes = waiting(trace, Phase.SHARE_KEYS), boxes_of(trace)
    key = state.receiving_keys[1]
    context = box_context(PARAMETERS, 1, OWN)

    def withheld(box):
        message = encode_forwarded_shares(PARAMETERS, OWN, boxes | {1: box})
        ready, outgoing = client.step(state, message)
        assert outgoing == b""
        # Masked with all the same: whoever else got a readable box can help to take it off.
        assert ready.mask_keys.keys() == {1, 3, 4, 5}
        assert ready.shares.keys() | set(ready.withheld) == {1, 2, 3, 4, 5}
        return ready.withheld

    def sealed(plain, associated=context):
        return ForwardedShares(seal(key, plain, nonce=bytes(12), associated=associated))

    assert withheld(boxes[1]) == ()
    assert withheld(sealed(bytes(66))) == ()
    assert withheld(boxes[3]) == (1,)
    assert withheld(sealed(b"\xff" * 66)) == (1,)
    assert withheld(sealed(bytes(33) + b"\xff" * 33)) == (1,)
    assert withheld(sealed(bytes(66), box_context(PARAMETERS, OWN, 1))) == (1,)


def test_vectors_outside_the_ring_are_refused(trace):
    state = trace.states[Phase.MASKED_INPUT][OWN]
    outside = np.full(8, 2**32, np.uint64)
    for vector in (np.zeros(7, np.uint64), np.zeros((8, 1), np.uint64), np.zeros(8), outside):
        with pytest.raises(ValueError, match="vector"):
            client.mask(state, vector)


def test_only_a_ready_client_masks_and_leaves_the_vector_as_it_was(trace):
    for phase in (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.MASKED_INPUT, Phase.UNMASKING):
        with pytest.raises(ProtocolViolation):
            client.mask(trace.after[phase][OWN], VECTORS[OWN])
    vector = VECTORS[OWN].copy()
    client.mask(trace.states[Phase.MASKED_INPUT][OWN], vector)
    assert np.array_equal(vector, VECTORS[OWN])


def test_a_client_that_is_not_invited_cannot_start():
    with pytest.raises(ValueError, match="client 6"):
        client.advertise(PARAMETERS, 6)


def test_secrets_are_forgotten_and_never_shown(trace):
    ready = trace.states[Phase.MASKED_INPUT][OWN]
    advertised = trace.states[Phase.SHARE_KEYS][OWN]
    shared = trace.after[Phase.SHARE_KEYS][OWN]
    secrets = [advertised.channel_private, advertised.mask_private, ready.seed]
    secrets += [*shared.receiving_keys.values(), *ready.mask_keys.values()]
    secrets += [s for held in ready.shares.values() for s in (held.key, held.seed)]
    forms = [form for s in secrets for form in (repr(s)[2:-1], s.hex(), str(list(s)))]
    by_phase = [*trace.states.values(), *trace.after.values()]
    states = [state for by_client in by_phase for state in by_client.values()]
    shown = "".join(f"{state!r}{state!s}" for state in states)
    shown += repr(trace.server_states) + repr(trace.finished)
    shown += repr(decode_revealed_shares(PARAMETERS, OWN, trace.sent[Phase.UNMASKING][OWN]))
    assert not any(form in shown for form in forms)
    assert advertised.channel_private not in encode_client_state(shared)
    for private in (advertised.channel_private, advertised.mask_private):
        assert private not in encode_client_state(ready)
    masked = encode_client_state(trace.after[Phase.MASKED_INPUT][OWN])
    assert not any(key in masked for key in (ready.seed, *ready.mask_keys.values()))
    done = encode_client_state(trace.after[Phase.UNMASKING][OWN])
    assert not any(secret in done for secret in secrets)


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


def test_answers_that_do_not_fit_the_survivor_list_are_refused(whole):
    good = revealed_by(whole, 3)
    missing = {dealer: r for dealer, r in good.items() if dealer != 1}
    other_type = Revealed(ShareType.KEY, good[1].share)
    for bad in (missing, good | {1: other_type}, good | {7: good[1]}, {}):
        message = encode_revealed_shares(PARAMETERS, 3, bad)
        finished = with_message(whole, Phase.UNMASKING, 3, message)
        assert finished.refused == (Refusal(3, Phase.UNMASKING),)
        assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, (1, 2, 3, 4, 5))


@pytest.mark.parametrize("record", [b"\x00" + bytes(33), b"\x01" + PRIME.to_bytes(33, "little")])
def test_misshapen_shares_are_refused(whole, record):
    body = bytearray(whole.sent[Phase.UNMASKING][3][52:-CHECKSUM_BYTES])
    body[4:38] = record
    message = Envelope(PARAMETERS, Kind.REVEALED_SHARES, sender=3).close(bytes(body))
    finished = with_message(whole, Phase.UNMASKING, 3, message)
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
def test_a_foreign_or_replayed_message_is_its_senders_dropout(whole, foreign, phase):
    others = [other.sent[phase][3] for other in foreign]
    others += [whole.sent[phase][4], *(whole.sent[at][3] for at in PHASES if at is not phase)]
    for other in others:
        finished = play(
            PARAMETERS,
            VECTORS,
            tamper=lambda at, sender, m, o=other: o if (at, sender) == (phase, 3) else m,
        ).finished
        assert finished.refused == (Refusal(3, phase),)
        assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, finished.survivors)

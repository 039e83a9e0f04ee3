"""What a client refuses, and that a refusal leaves its state as it was."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from privacy.errors import Authentication, ProtocolViolation
from privacy.secure_aggregation import Phase, client, encode_client_state
from privacy.secure_aggregation.keys import seal
from privacy.secure_aggregation.messages import (
    ForwardedShares,
    Revealed,
    ShareType,
    box_context,
    decode_forwarded_shares,
    decode_revealed_shares,
    decode_roster,
    encode_forwarded_shares,
    encode_roster,
    encode_survivors,
)
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    make_parameters,
    make_vectors,
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
def test_messages_of_other_phases_clients_and_rounds_are_refused(trace, phase):
    state = waiting(trace, phase)
    for other in NEXT:
        for receiver, message in trace.answers[other].items():
            if (other, receiver) != (phase, OWN):
                refuses(state, message)
    for sent in trace.sent.values():
        for message in sent.values():
            refuses(state, message)
    changes = [{"round_number": 4}, {"attempt": 1}, {"run_id": "x"}, {"threshold": 3}]
    for change in changes:
        foreign = play(make_parameters(5, **change), VECTORS)
        refuses(state, foreign.answers[phase][OWN])


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

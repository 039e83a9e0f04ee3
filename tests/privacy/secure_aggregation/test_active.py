"""Rounds against an active adversary: lying servers are noticed, lying clients are named."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from privacy.errors import Authentication, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import (
    CollectingConfirmations,
    Confirmed,
    Done,
    FaultyShares,
    Phase,
    Refusal,
    TooFewLeft,
    client,
    encode_client_state,
    server,
)
from privacy.secure_aggregation.messages import (
    ForwardedShares,
    decode_confirmations,
    decode_dealt_shares,
    decode_forwarded_shares,
    decode_revealed_shares,
    decode_roster,
    encode_advertised_keys,
    encode_confirmations,
    encode_confirmed_transcript,
    encode_dealt_shares,
    encode_forwarded_shares,
    encode_roster,
    encode_survivors,
)
from tests.privacy.secure_aggregation._drive import (
    FixedEntropy,
    identity_of,
    make_active,
    make_vectors,
    plain_sum,
    play,
)

# 2t > n + c: five of six, so that two lists of survivors cannot both be confirmed.
PARAMETERS = make_active(6, threshold=4, corrupt=1)
VECTORS = make_vectors(PARAMETERS)
OWN = 2


@pytest.fixture(scope="module")
def trace():
    return play(PARAMETERS, VECTORS, lost={Phase.MASKED_INPUT: {5}})


def step(state, message):
    """One step of a client that has its signing key."""
    return client.step(
        state, message, entropy=FixedEntropy("again"), identity=identity_of(state.client)
    )


def refuses(state, message):
    before = encode_client_state(state)
    with pytest.raises(ProtocolViolation) as caught:
        step(state, message)
    assert encode_client_state(state) == before
    return caught.value


@pytest.mark.parametrize("phase", [None, *Phase])
def test_the_sum_is_exact_with_clients_lost_at_any_phase(phase):
    finished = play(PARAMETERS, VECTORS, lost={phase: {3, 6}} if phase else {}).finished
    early = phase in (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.MASKED_INPUT)
    survivors = (1, 2, 4, 5) if early else PARAMETERS.clients
    assert finished.survivors == survivors
    assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, survivors)


@pytest.mark.parametrize("phase", Phase)
def test_too_few_abort_with_phase_and_culprits(phase):
    def tamper(at, sender, message):
        return message[:-1] if at is phase and sender in (1, 4, 6) else message

    with pytest.raises(TooFewLeft, match="refused or faulty: 1, 4, 6") as caught:
        play(PARAMETERS, VECTORS, tamper=tamper)
    assert caught.value.phase == phase
    assert caught.value.culprits == (1, 4, 6)


@pytest.mark.parametrize("phase", Phase)
def test_every_flipped_byte_of_a_clients_message_is_noticed(trace, phase):
    sender = 4
    message = trace.sent[phase][sender]
    state = trace.server_states[phase]
    # Signatures take time, so every seventh position of long messages, and all of the trailer.
    positions = {*range(0, len(message), 7), *range(len(message) - 64, len(message))}
    for position in positions:
        changed = bytearray(message)
        changed[position] ^= 1
        honest = {i: trace.sent[phase][i] for i in trace.sent[phase] if i != sender}
        try:
            following, _ = server.step(state, honest | {sender: bytes(changed)})
        except ThresholdNotMet:
            pytest.fail("one refused message of six must not stop the round")
        assert Refusal(sender, phase) in following.refused


def test_a_message_signed_by_another_client_is_refused(trace):
    keys = decode_roster(PARAMETERS, 1, trace.answers[Phase.ADVERTISE_KEYS][1])[3]
    with pytest.raises(ValueError, match="signing key"):
        encode_advertised_keys(PARAMETERS, 3, keys, identity=identity_of(4))
    with pytest.raises(ValueError, match="signing key"):
        encode_advertised_keys(PARAMETERS, 3, keys)


class TestLyingServer:
    """What the clients notice."""

    def test_swapped_keys(self, trace):
        state = trace.after[Phase.ADVERTISE_KEYS][OWN]
        roster = decode_roster(PARAMETERS, OWN, trace.answers[Phase.ADVERTISE_KEYS][OWN])
        own_keys = dataclasses.replace(roster[3], channel=b"\7" * 32)
        for bad in (
            roster | {3: own_keys},
            roster | {3: dataclasses.replace(roster[4], signature=roster[3].signature)},
            roster | {3: dataclasses.replace(roster[3], signature=bytes(64))},
            roster | {3: roster[4], 4: roster[3]},
        ):
            error = refuses(state, encode_roster(PARAMETERS, OWN, bad))
            assert isinstance(error, Authentication)
        step(state, encode_roster(PARAMETERS, OWN, roster))

    def test_keys_of_an_older_attempt(self, trace):
        older = make_active(6, threshold=4, corrupt=1, attempt=7)
        other = play(older, VECTORS, label="older")
        stale = decode_roster(older, OWN, other.answers[Phase.ADVERTISE_KEYS][OWN])
        roster = decode_roster(PARAMETERS, OWN, trace.answers[Phase.ADVERTISE_KEYS][OWN])
        state = trace.after[Phase.ADVERTISE_KEYS][OWN]
        refuses(state, encode_roster(PARAMETERS, OWN, roster | {3: stale[3]}))
        for phase, at in (
            (Phase.ADVERTISE_KEYS, state),
            (Phase.SHARE_KEYS, trace.after[Phase.SHARE_KEYS][OWN]),
            (Phase.MASKED_INPUT, trace.after[Phase.MASKED_INPUT][OWN]),
            (Phase.CONSISTENCY_CHECK, trace.after[Phase.CONSISTENCY_CHECK][OWN]),
        ):
            refuses(at, other.answers[phase][OWN])

    def confirmations(self, trace, survivors, signers):
        """Signatures of clients on the transcript that ends with a list that they were shown."""
        states = trace.after[Phase.MASKED_INPUT]
        return {
            index: step(states[index], encode_survivors(PARAMETERS, index, survivors))[1][-64:]
            for index in signers
        }

    def confirmed(self, trace, index, survivors):
        state = trace.after[Phase.MASKED_INPUT][index]
        message = encode_survivors(PARAMETERS, index, survivors)
        following, _ = step(state, message)
        assert isinstance(following, Confirmed)
        return following

    def test_split_survivor_lists(self):
        trace = play(PARAMETERS, VECTORS)
        left, right = (1, 2, 3, 4), (1, 2, 3, 4, 5)
        # Half of the honest clients are shown one list and half the other; 6 signs both.
        shown = {1: left, 2: left, 3: right, 4: right}
        states = {i: self.confirmed(trace, i, each) for i, each in shown.items()}
        for index, state in states.items():
            signers = {i for i, each in shown.items() if each == shown[index]}
            proof = self.confirmations(trace, shown[index], signers)
            refuses(state, encode_confirmations(PARAMETERS, index, proof))
            # Signatures on the other list are no help.
            others = shown.keys() - signers
            wrong = self.confirmations(trace, shown[min(others)], others)
            refuses(state, encode_confirmations(PARAMETERS, index, proof | wrong))

    def test_no_two_lists_can_both_be_confirmed(self):
        trace = play(PARAMETERS, VECTORS)
        liars = {6}
        honest = set(PARAMETERS.clients) - liars
        first, second = (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)
        states = trace.after[Phase.MASKED_INPUT]
        for size in range(len(honest) + 1):
            for signed_first in itertools.combinations(sorted(honest), size):
                opened = []
                for chosen, signers in (
                    (first, set(signed_first)),
                    (second, honest - set(signed_first)),
                ):
                    proof = self.confirmations(trace, chosen, (signers | liars) & set(chosen))
                    if not signers or len(proof) < PARAMETERS.threshold:
                        continue
                    asked = min(signers)
                    message = encode_survivors(PARAMETERS, asked, chosen)
                    state, _ = step(states[asked], message)
                    step(state, encode_confirmations(PARAMETERS, asked, proof))
                    opened.append(chosen)
                assert len(opened) <= 1

    def test_both_shares_of_one_client(self, trace):
        # A client that confirmed one list answers for no other, whatever it is shown.
        state = self.confirmed(trace, OWN, (1, 2, 3, 4, 6))
        refuses(state, encode_survivors(PARAMETERS, OWN, (1, 2, 3, 4)))
        proof = self.confirmations(trace, (1, 2, 3, 4), (1, 2, 3, 4))
        refuses(state, encode_confirmations(PARAMETERS, OWN, proof))
        good = self.confirmations(trace, (1, 2, 3, 4, 6), (1, 2, 3, 4, 6))
        done, message = step(state, encode_confirmations(PARAMETERS, OWN, good))
        assert isinstance(done, Done)
        revealed = decode_revealed_shares(PARAMETERS, OWN, message)
        for dealer, held in state.shares.items():
            assert (held.seed in message) != (held.key in message)
            assert (revealed[dealer].share == held.seed) is (dealer in done.survivors)
        refuses(done, encode_confirmations(PARAMETERS, OWN, good))
        refuses(done, encode_survivors(PARAMETERS, OWN, (1, 2, 3, 4)))

    def test_too_few_or_forged_confirmations(self, trace):
        survivors = (1, 2, 3, 4, 6)
        state = self.confirmed(trace, OWN, survivors)
        good = self.confirmations(trace, survivors, survivors)
        few = {i: good[i] for i in (1, 2, 3)}
        refuses(state, encode_confirmations(PARAMETERS, OWN, few))
        refuses(state, encode_confirmations(PARAMETERS, OWN, few | {4: good[3]}))
        refuses(state, encode_confirmations(PARAMETERS, OWN, few | {4: bytes(64)}))
        refuses(state, encode_confirmations(PARAMETERS, OWN, few | {5: good[4]}))
        refuses(state, encode_confirmations(PARAMETERS, OWN, few | {9: good[4]}))
        # A liar that is not on the list may sign the same digest; it does not count.
        liar = encode_confirmed_transcript(PARAMETERS, 5, state.transcript, identity=identity_of(5))
        refuses(state, encode_confirmations(PARAMETERS, OWN, few | {5: liar[-64:]}))
        step(state, encode_confirmations(PARAMETERS, OWN, few | {4: good[4]}))

    def test_a_confirmation_before_the_list_or_without_it(self, trace):
        message = trace.answers[Phase.CONSISTENCY_CHECK][OWN]
        for phase in (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.MASKED_INPUT):
            refuses(trace.after[phase][OWN], message)

    def test_a_client_without_its_key_sends_nothing(self, trace):
        for phase, following in itertools.pairwise(Phase):
            if following in (Phase.SHARE_KEYS, Phase.CONSISTENCY_CHECK, Phase.UNMASKING):
                with pytest.raises(ValueError, match="identity"):
                    client.step(trace.after[phase][OWN], trace.answers[phase][OWN])
        with pytest.raises(ValueError, match="identity"):
            client.mask(trace.states[Phase.MASKED_INPUT][OWN], VECTORS[OWN])


class TestLyingClient:
    """What the server notices, whom it names, and what it replaces."""

    def deal(self, spoil):
        """Play a round in which client 3 deals as `spoil` says."""

        def tamper(phase, sender, message):
            if phase is not Phase.SHARE_KEYS or sender != 3:
                return message
            dealing = spoil(decode_dealt_shares(PARAMETERS, 3, message))
            return encode_dealt_shares(PARAMETERS, 3, dealing, identity=identity_of(3))

        return play(PARAMETERS, VECTORS, tamper=tamper)

    def test_a_wrong_commitment_is_noticed_by_its_holder(self):
        def spoil(dealing):
            wrong = dict(dealing.share_commitments) | {1: bytes(64)}
            return dataclasses.replace(dealing, share_commitments=wrong)

        trace = self.deal(spoil)
        assert trace.after[Phase.MASKED_INPUT][1].withheld == (3,)
        assert trace.finished.refused == ()
        assert trace.finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, range(1, 7))

    def test_a_wrong_commitment_to_the_seed_names_the_dealer(self):
        def spoil(dealing):
            return dataclasses.replace(dealing, commitment=bytes(32))

        with pytest.raises(FaultyShares, match="client 3 do not") as caught:
            self.deal(spoil)
        assert caught.value.culprits == (3,)

    def test_a_confirmation_of_another_list_is_refused(self, trace):
        state = trace.server_states[Phase.CONSISTENCY_CHECK]
        assert isinstance(state, CollectingConfirmations)
        shown = encode_survivors(PARAMETERS, 3, (1, 2, 3, 4))
        _, message = step(trace.after[Phase.MASKED_INPUT][3], shown)
        following, answers = server.step(state, trace.sent[Phase.CONSISTENCY_CHECK] | {3: message})
        assert following.refused == (Refusal(3, Phase.CONSISTENCY_CHECK),)
        assert 3 not in answers
        proof = decode_confirmations(PARAMETERS, 1, state.transcript, answers[1])
        assert proof == (1, 2, 4, 6)


def test_a_server_that_forwards_garbage_costs_shares_only(trace):
    state = trace.after[Phase.SHARE_KEYS][OWN]
    forwarded = decode_forwarded_shares(PARAMETERS, OWN, trace.answers[Phase.SHARE_KEYS][OWN])
    message = encode_forwarded_shares(
        PARAMETERS, OWN, {dealer: ForwardedShares(bytes(94), bytes(64)) for dealer in forwarded}
    )
    following, _ = step(state, message)
    assert following.withheld == (1, 3, 4, 5, 6)
    assert following.mask_keys.keys() == {1, 3, 4, 5, 6}
    assert tuple(following.shares) == (OWN,)

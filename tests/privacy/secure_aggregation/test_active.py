"""Rounds against an active adversary: lying servers are noticed, lying clients are named."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from privacy.errors import Authentication, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import (
    CollectingConfirmations,
    CollectingUnmasking,
    Confirmed,
    Done,
    FaultyShares,
    Phase,
    Refusal,
    TooFewAnswers,
    client,
    encode_client_state,
    server,
)
from privacy.secure_aggregation.messages import (
    ForwardedShares,
    ShareType,
    decode_confirmations,
    decode_dealt_shares,
    decode_forwarded_shares,
    decode_masked_input,
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
from privacy.secure_aggregation.recovery import open_sum
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
    signer,
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

    with pytest.raises(TooFewAnswers, match="refused or faulty: 1, 4, 6") as caught:
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


class Execution:
    """One execution up to the masked vectors, by clients that have not met in another one."""

    def __init__(self, parameters, vectors, label):
        self.parameters = parameters
        self.states, self.masked = {}, {}
        entropy = {i: FixedEntropy(f"{label}/{i}") for i in parameters.clients}
        state, sent = server.start(parameters), {}
        for i in parameters.clients:
            self.states[i], sent[i] = client.advertise(
                parameters, i, entropy=entropy[i], credentials=credentials_of(parameters, i)
            )
        state, answers = server.step(state, sent)
        for i, message in answers.items():
            self.states[i], sent[i] = client.step(
                self.states[i], message, entropy=entropy[i], identity=signer(self.parameters, i)
            )
        state, answers = server.step(state, sent)
        self.dealt = state.dealt
        for i, message in answers.items():
            ready, _ = client.step(self.states[i], message)
            self.states[i], sent[i] = client.mask(
                ready, vectors[i], identity=signer(self.parameters, i)
            )
            self.masked[i] = decode_masked_input(parameters, i, sent[i]).vector

    def take(self, i, message):
        """What a client says to a message, after which its state goes forward."""
        identity = signer(self.parameters, i)
        self.states[i], said = client.step(self.states[i], message, identity=identity)
        return said

    def show(self, i, survivors):
        return self.take(i, encode_survivors(self.parameters, i, survivors))

    def prove(self, i, signatures):
        return self.take(i, encode_confirmations(self.parameters, i, signatures))

    def open(self, survivors, answers):
        """The sum of some vectors, out of whatever shares were revealed."""
        wanted = {
            dealer: ShareType.SEED if dealer in survivors else ShareType.KEY
            for dealer in self.dealt.roster
        }
        revealed = {
            holder: {
                dealer: each
                for dealer, each in decode_revealed_shares(self.parameters, holder, said).items()
                if each.share_type is wanted[dealer]
            }
            for holder, said in answers.items()
        }
        masked_sum = sum(self.masked[i] for i in survivors)
        state = CollectingUnmasking(
            self.parameters, self.dealt, survivors=tuple(survivors), masked_sum=masked_sum
        )
        return open_sum(state, revealed)[0].tolist()


# Nine clients, of whom five must sign and answer, none of them corrupt: 2t > n + c.
NINE = make_active(9, threshold=5, corrupt=0)
NINE_VECTORS = make_vectors(NINE, seed=9)
# To each client another list. Nobody but 1 and 2 stands on more than four of the nine, so at least
# five clients count everybody else among the lost and reveal shares of their mask keys.
SHOWN = {1: {1, 2, 3, 4, 5}, 2: {1, 2, 6, 7, 8}}
SHOWN |= {i: {1, 2, *(3 + (i - 3 + step) % 7 for step in range(3))} for i in range(3, 10)}


def open_two_of_nine():
    """Sign each list in as many executions as it takes, then use all signatures in the first."""
    executions = [Execution(NINE, NINE_VECTORS, f"execution-{at}") for at in range(9)]
    signatures = {own: {} for own in SHOWN}
    for i in NINE.clients:
        others = [own for own in SHOWN if own != i and i in SHOWN[own]]
        for execution, own in zip(executions, [i, *others], strict=False):
            said = execution.show(i, sorted(SHOWN[own]))
            signatures[own][i] = said[-64:]
    target = executions[0]
    try:
        answers = {i: target.prove(i, signatures[i]) for i in NINE.clients}
    except ProtocolViolation:
        return None
    return target.open((1, 2), answers)


def test_nine_executions_do_not_open_a_sum_of_two():
    assert max(sum(i in shown for shown in SHOWN.values()) for i in range(3, 10)) == 4
    assert open_two_of_nine() is None


def test_one_execution_opens_what_all_have_signed():
    # The same steps with one list in one execution: it is not the attack's own fault if it fails.
    alone = Execution(NINE, NINE_VECTORS, "alone")
    signatures = {i: alone.show(i, NINE.clients)[-64:] for i in NINE.clients}
    answers = {i: alone.prove(i, signatures) for i in NINE.clients}
    assert alone.open(NINE.clients, answers) == plain_sum(NINE, NINE_VECTORS, NINE.clients)


class TestWhatIsSigned:
    """Signatures by clients that saw one thing differently are worth nothing to the others."""

    parameters = make_active(6, threshold=5, corrupt=1)
    vectors = make_vectors(parameters)
    survivors = (1, 2, 3, 4, 5)

    def state(self, i, *, label="", lost=None, context=bytes(32)):
        """A client after masking, having seen a whole honest execution."""
        trace = play(self.parameters, self.vectors, label=label, lost=lost)
        ready = trace.states[Phase.MASKED_INPUT][i]
        return client.mask(ready, self.vectors[i], context=context, identity=identity_of(i))[0]

    def sign(self, state, survivors):
        message = encode_survivors(self.parameters, state.client, survivors)
        return client.step(state, message, identity=identity_of(state.client))

    def answer(self, **seen):
        """Let client 1 meet the signatures of four clients that have seen something else."""
        state, own = self.sign(self.state(1), self.survivors)
        others = {i: self.sign(self.state(i, **seen), self.survivors)[1] for i in (2, 3, 4, 5)}
        signatures = {1: own[-64:]} | {i: said[-64:] for i, said in others.items()}
        message = encode_confirmations(self.parameters, 1, signatures)
        return client.step(state, message, identity=identity_of(1))

    def test_the_same_of_everything_is_answered(self):
        assert self.answer()[1]

    @pytest.mark.parametrize(
        "seen",
        [
            {"label": "other keys"},
            {"lost": {Phase.ADVERTISE_KEYS: {6}}},
            {"lost": {Phase.SHARE_KEYS: {6}}},
            {"context": b"another broadcast".ljust(32)},
        ],
        ids=["keys", "roster", "dealers", "context"],
    )
    def test_anything_else_is_refused(self, seen):
        with pytest.raises(ProtocolViolation):
            self.answer(**seen)


def open_six_of_ten(parameters):
    """Show six of the ten a list of themselves, which a `smallest_sum` of ten forbids."""
    vectors, six = make_vectors(parameters), parameters.clients[:6]
    execution = Execution(parameters, vectors, "six")
    try:
        answers = {i: execution.show(i, six) for i in six}
        if parameters.is_active:
            signatures = {i: said[-64:] for i, said in answers.items()}
            answers = {i: execution.prove(i, signatures) for i in six}
    except ProtocolViolation:
        return None
    return execution.open(six, answers)


@pytest.mark.parametrize(
    "parameters",
    [
        make_active(10, threshold=6, corrupt=1, smallest_sum=10),
        make_parameters(10, threshold=6, smallest_sum=10),
        make_active(10, threshold=6, corrupt=1, smallest_sum=7),
    ],
    ids=["active", "semi-honest", "one-less"],
)
def test_a_sum_of_fewer_than_the_smallest_is_not_opened(parameters):
    assert open_six_of_ten(parameters) is None


def test_a_sum_of_as_many_as_the_smallest_is_opened():
    # Again the same steps, which open the sum where it is allowed.
    parameters = make_active(10, threshold=6, corrupt=1, smallest_sum=6)
    expected = plain_sum(parameters, make_vectors(parameters), parameters.clients[:6])
    assert open_six_of_ten(parameters) == expected


def test_on_a_graph_a_client_sees_the_whole_list_and_counts_it():
    parameters = make_regular(12)
    execution = Execution(parameters, make_vectors(parameters), "graph")
    around = parameters.holders(1)
    far = [i for i in parameters.clients if i not in around]
    assert (len(around), parameters.smallest_sum) == (7, 10)
    state = execution.states[1]
    for few in (around, (*around, *far[:2])):
        with pytest.raises(ProtocolViolation):
            execution.show(1, sorted(few))
    with pytest.raises(ProtocolViolation):
        execution.show(1, sorted((*around, *far[:2], 77)))
    said = execution.show(1, sorted((*around, *far[:3])))
    # It answers for those around it only; of the others it holds nothing.
    assert decode_revealed_shares(parameters, 1, said).keys() == set(around)
    assert state.dealers == set(around)

"""Servers that put messages together as no honest server would, to open what nobody agreed to.

Each attack is carried to its end through the functions that clients and servers use: it returns
the sum that it opened, or None where a client refused.
"""

from __future__ import annotations

import pytest

from privacy.errors import ProtocolViolation
from privacy.secure_aggregation import CollectingUnmasking, Phase, client, server
from privacy.secure_aggregation.messages import (
    ShareType,
    decode_masked_input,
    decode_revealed_shares,
    encode_confirmations,
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
)


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
                self.states[i], message, entropy=entropy[i], identity=self.identity(i)
            )
        state, answers = server.step(state, sent)
        self.dealt = state.dealt
        for i, message in answers.items():
            ready, _ = client.step(self.states[i], message)
            self.states[i], sent[i] = client.mask(ready, vectors[i], identity=self.identity(i))
            self.masked[i] = decode_masked_input(parameters, i, sent[i]).vector

    def identity(self, i):
        return identity_of(i) if self.parameters.is_active else None

    def show(self, i, survivors):
        """What a client says to a list of survivors, whose state goes forward."""
        message = encode_survivors(self.parameters, i, survivors)
        self.states[i], said = client.step(self.states[i], message, identity=self.identity(i))
        return said

    def prove(self, i, signatures):
        message = encode_confirmations(self.parameters, i, signatures)
        self.states[i], said = client.step(self.states[i], message, identity=self.identity(i))
        return said

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

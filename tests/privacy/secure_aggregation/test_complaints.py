"""Boxes that cannot be read and shares that are wrong: the round goes on without, if it can."""

from __future__ import annotations

import itertools
import random

import pytest

from privacy.secure_aggregation import (
    CollectingUnmasking,
    FaultyShares,
    Phase,
    Refusal,
    TooFewAnswers,
    server,
)
from privacy.secure_aggregation.messages import (
    MaskedInput,
    Revealed,
    decode_masked_input,
    decode_revealed_shares,
    encode_masked_input,
    encode_revealed_shares,
)
from privacy.secure_aggregation.recovery import blame
from privacy.secure_aggregation.shamir import PRIME
from tests.privacy.secure_aggregation._drive import (
    Trace,
    fill,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    misdealt,
    plain_sum,
    play,
    signer,
)

REGIMES = {
    "semi-honest": make_parameters(6, threshold=4, corrupt=1),
    "active": make_active(6, threshold=4, corrupt=1),
    "regular": make_regular(12),
}
by_regime = pytest.mark.parametrize("name", REGIMES)


def spoilt(parameters, unreadable, lost=None):
    """A round with rubbish for holders, by dealer; its trace is kept where it was given up."""

    def tamper(phase, dealer, message):
        if phase is not Phase.SHARE_KEYS or dealer not in unreadable:
            return message
        return misdealt(parameters, dealer, message, unreadable[dealer])

    trace = Trace(parameters)
    try:
        fill(trace, make_vectors(parameters), lost=lost, tamper=tamper)
    except TooFewAnswers as error:
        return trace, error
    return trace, None


def peers(parameters, client, count):
    return [each for each in parameters.holders(client) if each != client][:count]


@by_regime
def test_the_round_goes_on_without_one_unreadable_box(name):
    parameters = REGIMES[name]
    (holder,) = peers(parameters, 3, 1)
    trace, error = spoilt(parameters, {3: [holder]})
    assert error is None
    waiting = trace.server_states[Phase.UNMASKING]
    assert isinstance(waiting, CollectingUnmasking)
    assert waiting.complaints == {holder: (3,)}
    assert trace.finished.refused == ()
    expected = plain_sum(parameters, make_vectors(parameters), parameters.clients)
    assert trace.finished.total.tolist() == expected
    said = decode_revealed_shares(parameters, holder, trace.sent[Phase.UNMASKING][holder])
    assert said.keys() == set(parameters.holders(holder)) - {3}


@by_regime
def test_a_sum_that_could_not_be_opened_is_given_up_before_anybody_is_asked(name):
    parameters = REGIMES[name]
    spare = len(parameters.holders(3)) - parameters.threshold
    trace, error = spoilt(parameters, {3: peers(parameters, 3, spare)})
    assert error is None
    trace, error = spoilt(parameters, {3: peers(parameters, 3, spare + 1)})
    assert error is not None
    assert (error.phase, error.culprits) == (Phase.MASKED_INPUT, (3,))
    assert "3 holders of shares of client 3 are left at phase 'masked_input'" in str(error)
    # Nobody was shown a list of survivors, so nobody revealed or signed anything.
    assert Phase.MASKED_INPUT not in trace.answers


def test_complaints_and_losses_count_together():
    parameters = REGIMES["semi-honest"]
    unreadable = {3: [1, 2]}
    assert spoilt(parameters, unreadable)[1] is None
    for phase in (Phase.MASKED_INPUT, Phase.UNMASKING):
        _, error = spoilt(parameters, unreadable, {phase: {5}})
        assert (error.phase, error.culprits) == (phase, (3,))
        # Who complained and is lost is not missed twice.
        assert spoilt(parameters, unreadable, {phase: {1}})[1] is None


def test_a_holder_that_can_read_nothing_is_named_and_its_dealers_are_not():
    parameters = make_parameters(4, threshold=4)
    _, error = spoilt(parameters, {dealer: [2] for dealer in (1, 3, 4)})
    assert (error.phase, error.culprits) == (Phase.MASKED_INPUT, (2,))


def complain(trace, client, withheld):
    """The masked input of one client with other complaints."""
    parameters = trace.parameters
    sent = decode_masked_input(parameters, client, trace.sent[Phase.MASKED_INPUT][client])
    masked = MaskedInput(sent.vector, withheld)
    return encode_masked_input(parameters, client, masked, identity=signer(parameters, client))


@by_regime
def test_complaints_of_those_who_dealt_it_nothing_are_refused(name):
    parameters = REGIMES[name]
    trace, _ = spoilt(parameters, {}, {Phase.SHARE_KEYS: {parameters.clients[-1]}})
    stranger = next(
        (i for i in parameters.clients if i not in parameters.holders(1)), parameters.clients[-1]
    )
    state, sent = trace.server_states[Phase.MASKED_INPUT], trace.sent[Phase.MASKED_INPUT]
    for withheld in ((1,), (stranger,), (77,)):
        following, _ = server.step(state, sent | {1: complain(trace, 1, withheld)})
        assert following.refused == (Refusal(1, Phase.MASKED_INPUT),)
    (dealer,) = peers(parameters, 1, 1)
    following, _ = server.step(state, sent | {1: complain(trace, 1, (dealer,))})
    assert following.refused == ()
    assert following.complaints == {1: (dealer,)}


@by_regime
def test_what_was_complained_of_is_withheld_and_nothing_else(name):
    parameters = REGIMES[name]
    (holder,) = peers(parameters, 3, 1)
    trace, _ = spoilt(parameters, {3: [holder]})
    state, sent = trace.server_states[Phase.UNMASKING], trace.sent[Phase.UNMASKING]
    good = decode_revealed_shares(parameters, holder, sent[holder])
    identity = signer(parameters, holder)
    less = {dealer: each for dealer, each in good.items() if dealer != holder}
    for revealed in (less, good | {3: good[holder]}, {}):
        said = encode_revealed_shares(parameters, holder, revealed, identity=identity)
        finished, _ = server.step(state, sent | {holder: said})
        assert finished.refused == (Refusal(holder, Phase.UNMASKING),)
        assert finished.total.tolist() == trace.finished.total.tolist()


def test_nobody_honest_is_named_among_at_most_as_many_liars_as_planned():
    # Liars complain of anybody and spoil any box; honest clients complain of liars only.
    rng, named = random.Random(3), 0
    for count, corrupt in itertools.product(range(4, 10), range(9)):
        if corrupt >= count:
            continue
        parameters = make_active(count, corrupt=corrupt, threshold=count)
        for _ in range(20):
            liars = set(rng.sample(parameters.clients, corrupt))
            complaints = {}
            for author in parameters.clients:
                pool = parameters.clients if author in liars else sorted(liars)
                chosen = {d for d in pool if d != author and rng.random() < 0.7}
                if chosen:
                    complaints[author] = tuple(sorted(chosen))
            blamed = blame(parameters, complaints)
            assert blamed <= liars
            named += len(blamed)
    assert named


# Eight shares of which four are enough: two may be wrong.
PARAMETERS = make_parameters(9, threshold=4)
VECTORS = make_vectors(PARAMETERS)
SURVIVORS = (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.fixture(scope="module")
def trace():
    return play(PARAMETERS, VECTORS, lost={Phase.MASKED_INPUT: {9}})


def open_with(trace, wrong, *, parameters=PARAMETERS, off=2**100):
    """Unmask with wrong shares: by holder, the dealers whose shares it gets wrong.

    A mask key that is off by less than 8 may be the same key: X25519 ignores the lowest bits.
    """
    sent = dict(trace.sent[Phase.UNMASKING])
    for holder, dealers in wrong.items():
        revealed = decode_revealed_shares(parameters, holder, sent[holder])
        for dealer in dealers:
            good = revealed[dealer]
            value = (int.from_bytes(good.share, "little") + off) % PRIME
            revealed[dealer] = Revealed(good.share_type, value.to_bytes(33, "little"))
        sent[holder] = encode_revealed_shares(parameters, holder, revealed)
    return server.step(trace.server_states[Phase.UNMASKING], sent)[0]


@pytest.mark.parametrize("dealer", [1, 9])
@pytest.mark.parametrize("holders", [(4,), (2, 7)])
def test_one_or_two_wrong_shares_are_repaired_and_named(trace, dealer, holders):
    # Client 9 is lost, so its mask key is rebuilt; of client 1 the seed is.
    finished = open_with(trace, dict.fromkeys(holders, (dealer,)))
    assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, SURVIVORS)
    assert finished.refused == tuple(Refusal(each, Phase.UNMASKING) for each in holders)


def test_a_wrong_share_that_is_not_needed_costs_nothing(trace):
    # The first four rebuild the secret; nobody looks at the others.
    finished = open_with(trace, {8: (1,)})
    assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, SURVIVORS)
    assert finished.refused == ()


def test_who_was_wrong_elsewhere_is_named_and_left_out(trace):
    # Of client 2 three shares are wrong, one too many. Elsewhere 3 and 4 are found out; without
    # them six shares are left of client 2 with one wrong, which can be repaired.
    finished = open_with(trace, {1: (2,), 3: (2, 5), 4: (2, 9)})
    assert finished.total.tolist() == plain_sum(PARAMETERS, VECTORS, SURVIVORS)
    assert finished.refused == tuple(Refusal(each, Phase.UNMASKING) for each in (1, 3, 4))


def test_more_suspects_than_can_be_left_out_are_asked_all_the_same():
    # Eight shares, six needed: each dealer has one wrong, always of another holder. Leaving out
    # everybody who was ever wrong would leave too few shares.
    parameters = make_parameters(8, threshold=6)
    vectors = make_vectors(parameters)
    trace = play(parameters, vectors)
    wrong = {holder: (holder,) for holder in range(1, 7)}
    finished = open_with(trace, wrong, parameters=parameters)
    assert finished.total.tolist() == plain_sum(parameters, vectors, parameters.clients)
    assert finished.refused == tuple(Refusal(each, Phase.UNMASKING) for each in wrong)


def test_what_stays_wrong_names_whom_it_can(trace):
    with pytest.raises(FaultyShares, match="client 2 do not") as caught:
        open_with(trace, {1: (2,), 3: (2,), 4: (2, 9), 5: (2,)})
    assert caught.value.culprits == (4,)
    assert caught.value.phase == Phase.UNMASKING


def test_on_a_graph_the_neighbours_shares_are_repaired():
    # Seven holders, four shares needed: one may be wrong.
    parameters = make_regular(12)
    vectors = make_vectors(parameters)
    trace = play(parameters, vectors)
    first, second = parameters.holders(5)[:2]
    finished = open_with(trace, {first: (5,)}, parameters=parameters)
    assert finished.total.tolist() == plain_sum(parameters, vectors, parameters.clients)
    assert finished.refused == (Refusal(first, Phase.UNMASKING),)
    with pytest.raises(FaultyShares, match="client 5"):
        open_with(trace, {first: (5,), second: (5,)}, parameters=parameters)

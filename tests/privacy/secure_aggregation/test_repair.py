"""Among semi-honest parties too, a wrong share is found, named and done without, if it can be."""

from __future__ import annotations

import pytest

from privacy.secure_aggregation import FaultyShares, Phase, Refusal, server
from privacy.secure_aggregation.messages import (
    Revealed,
    decode_revealed_shares,
    encode_revealed_shares,
)
from privacy.secure_aggregation.shamir import PRIME
from tests.privacy.secure_aggregation._drive import (
    make_parameters,
    make_regular,
    make_vectors,
    plain_sum,
    play,
)

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

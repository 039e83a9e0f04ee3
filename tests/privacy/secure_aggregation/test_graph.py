"""The k-regular graph, and rounds on it: exact sums, or an abort that opens nothing."""

from __future__ import annotations

import pytest

from privacy.errors import ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import CollectingUnmasking, Phase, TooFewLeft, client, server
from privacy.secure_aggregation.messages import decode_roster, encode_roster
from privacy.secure_aggregation.parameters import closed_neighbourhoods, ring_order
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    make_parameters,
    make_regular,
    make_vectors,
    play,
)

SEED = bytes(range(32))


@pytest.mark.parametrize(("count", "degree"), [(3, 2), (12, 6), (13, 12)])
def test_every_client_has_k_neighbours_and_they_have_it(count, degree):
    clients = tuple(range(5, 5 + 3 * count, 3))
    around = closed_neighbourhoods(clients, degree, SEED)
    assert set(around) == set(clients)
    for own, members in around.items():
        assert len(set(members)) == degree + 1
        assert own in members
        assert list(members) == sorted(members)
        assert all(own in around[member] for member in members)


def test_a_sum_below_the_smallest_is_not_opened():
    parameters = make_regular(12)
    for phase in PHASES[:3]:
        with pytest.raises(ThresholdNotMet) as caught:
            play(parameters, make_vectors(parameters), lost={phase: {1, 5, 9}})
        assert caught.value.phase == phase


def test_a_neighbourhood_below_its_threshold_aborts_before_anything_is_opened():
    parameters = make_regular(12, threshold=6, smallest_sum=10)
    neighbours = [i for i in parameters.holders(1) if i != 1]
    lost = set(neighbours[:2])
    for phase in PHASES[:3]:
        with pytest.raises(TooFewLeft, match="5 holders") as caught:
            play(parameters, make_vectors(parameters), lost={phase: lost})
        assert caught.value.phase == phase
    with pytest.raises(TooFewLeft) as caught:
        play(parameters, make_vectors(parameters), lost={Phase.UNMASKING: lost})
    assert caught.value.phase == Phase.UNMASKING


def test_a_client_refuses_a_roster_with_strangers_to_its_neighbourhood():
    parameters = make_regular(12)
    trace = play(parameters, make_vectors(parameters))
    rosters = {
        i: decode_roster(parameters, i, trace.answers[Phase.ADVERTISE_KEYS][i])
        for i in parameters.clients
    }
    stranger = next(i for i in parameters.clients if i not in parameters.holders(1))
    state = trace.after[Phase.ADVERTISE_KEYS][1]
    more = rosters[1] | {stranger: rosters[stranger][stranger]}
    with pytest.raises(ProtocolViolation):
        client.step(state, encode_roster(parameters, 1, more))
    client.step(state, encode_roster(parameters, 1, rosters[1]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"degree": 5}, "degree"),
        ({"degree": 12}, "degree"),
        ({"graph_seed": b""}, "graph_seed"),
        ({"threshold": 8}, "threshold"),
        ({"smallest_sum": 3}, "smallest_sum"),
        ({"smallest_sum": 8}, "bits of security"),
        ({"corrupt": 4}, "bits of security"),
    ],
)
def test_graphs_that_are_not_safe_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        make_regular(12, **change)


def test_the_complete_graph_may_ask_for_more_than_the_threshold():
    parameters = make_parameters(6, threshold=3, smallest_sum=5)
    vectors = make_vectors(parameters)
    finished = play(parameters, vectors, lost={Phase.UNMASKING: {1, 2, 3}}).finished
    assert finished.survivors == parameters.clients
    with pytest.raises(ThresholdNotMet, match="threshold is 5"):
        play(parameters, vectors, lost={Phase.MASKED_INPUT: {1, 2}})


def test_the_server_checks_the_neighbourhoods_of_dropouts_too():
    # Of a client lost after sharing keys the key must be rebuilt by its neighbours.
    parameters = make_regular(12, threshold=6, smallest_sum=10)
    trace = play(parameters, make_vectors(parameters), lost={Phase.MASKED_INPUT: {1}})
    state = trace.server_states[Phase.UNMASKING]
    assert isinstance(state, CollectingUnmasking)
    answers = dict(trace.sent[Phase.UNMASKING])
    one = next(i for i in parameters.holders(1) if i != 1)
    del answers[one]
    with pytest.raises(TooFewLeft, match="client 1 "):
        server.step(state, answers)


def test_a_dropouts_neighbourhood_is_checked_before_shares_are_asked_for():
    # Lost with the clients four places before and after it, a client has 6 of its 9 holders left,
    # while every survivor still has 7.
    parameters = make_regular(14, degree=8, threshold=7, smallest_sum=11)
    order = ring_order(parameters.clients, parameters.graph_seed)
    lost = {order[0], order[4], order[-4]}
    with pytest.raises(TooFewLeft, match=f"6 holders of shares of client {order[0]} ") as caught:
        play(parameters, make_vectors(parameters), lost={Phase.MASKED_INPUT: lost})
    assert caught.value.phase == Phase.MASKED_INPUT

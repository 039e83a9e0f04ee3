"""Thresholds and graphs against exact fractions, simulation and the rules, and rounds on graphs."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from platform.cli.federation import secagg_plan_command
from platform.errors import ConfigError
from privacy.errors import CalibrationError, ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import (
    CollectingUnmasking,
    Phase,
    TooFewAnswers,
    client,
    largest_norm,
    plan,
    require_plausible_norm,
    server,
)
from privacy.secure_aggregation.messages import decode_roster, encode_roster
from privacy.secure_aggregation.parameters import (
    active_threshold,
    closed_neighbourhoods,
    correct_bits,
    ring_order,
    secrecy_bits,
    two_thirds_and_one,
)
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    make_active,
    make_parameters,
    make_regular,
    make_vectors,
    play,
)


def tail(population, marked, drawn, least):
    """P[Hyp >= least] as a fraction."""
    ways = sum(
        math.comb(marked, hits) * math.comb(population - marked, drawn - hits)
        for hits in range(least, min(marked, drawn) + 1)
    )
    return Fraction(ways, math.comb(population, drawn))


def bits(fraction):
    return math.inf if not fraction else -math.log2(fraction)


@pytest.mark.parametrize(
    ("clients", "corrupt", "dropouts", "degree", "threshold"),
    [(100, 20, 10, 42, 32), (60, 6, 12, 20, 9)],
)
def test_the_bounds_are_the_exact_ones(clients, corrupt, dropouts, degree, threshold):
    half = degree // 2
    secrecy = clients * (
        tail(clients - 1, corrupt, degree, threshold)
        + tail(clients, corrupt + dropouts, half, half)
    )
    found = secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=threshold)
    assert found == pytest.approx(bits(secrecy), rel=1e-9)
    correct = clients * tail(clients - 1, dropouts, degree, degree - threshold + 1)
    assert correct_bits(clients, dropouts, degree, threshold) == pytest.approx(
        bits(correct), rel=1e-9
    )


@pytest.mark.parametrize(
    ("clients", "corrupt", "dropout"), [(100, 0.05, 0.1), (500, 0.2, 0.1), (10_000, 0, 0.3)]
)
def test_a_plan_keeps_its_promises_and_no_smaller_degree_does(clients, corrupt, dropout):
    found = plan(clients, corrupt_rate=corrupt, dropout_rate=dropout, graph="k_regular")
    assert found.degree % 2 == 0
    assert found.security_bits >= 40
    assert found.correctness_bits >= 20
    assert found.smallest_sum == clients - math.ceil(dropout * clients)
    smaller = found.degree - 2
    assert not any(
        secrecy_bits(clients, found.corrupt, found.dropouts, degree=smaller, threshold=t) >= 40
        and correct_bits(clients, found.dropouts, smaller, t) >= 20
        for t in range(2, smaller + 1)
    )


def test_the_active_rule_is_that_of_the_paper():
    # With fewer than a third corrupted, floor(2n/3) + 1 is enough (Bonawitz et al. 2017, 6.2).
    for clients in range(4, 300):
        corrupt = (clients - 1) // 3
        assert active_threshold(clients, corrupt) <= two_thirds_and_one(clients)
        assert 2 * active_threshold(clients, corrupt) > clients + corrupt
        assert 2 * (active_threshold(clients, corrupt) - 1) <= clients + corrupt
    found = plan(100, corrupt_rate=0.3, dropout_rate=0.1, active=True)
    assert (found.degree, found.threshold, found.active) == (0, 67, True)
    assert plan(100, corrupt_rate=0.4, dropout_rate=0.1, active=True).threshold == 71
    # Small cohorts are complete.
    found = plan(64, corrupt_rate=0.05, dropout_rate=0)
    assert (found.degree, found.neighbours, found.threshold) == (0, 63, two_thirds_and_one(64))


@pytest.mark.parametrize(
    ("clients", "rate", "whole"),
    [(10, 0.34, 4), (10, 0.3, 3), (3, 0.1, 1), (100, 0.07, 7), (7, 5 / 7, 5), (49, 1 / 49, 1)],
)
def test_shares_of_a_cohort_are_rounded_up_but_not_by_a_float(clients, rate, whole):
    found = plan(clients, corrupt_rate=rate, dropout_rate=0, graph="complete")
    assert found.corrupt == whole
    assert plan(clients, corrupt_rate=0, dropout_rate=rate).dropouts == whole


@pytest.mark.parametrize(
    "wanted",
    [
        {"clients": 10, "corrupt_rate": 0.5, "dropout_rate": 0.4, "active": True},
        {"clients": 10, "corrupt_rate": 0.7, "dropout_rate": 0.4},
        {"clients": 100, "graph": "k_regular", "active": True},
        {"clients": 20, "graph": "k_regular", "corrupt_rate": 0.5, "dropout_rate": 0.4},
    ],
)
def test_what_nothing_withstands_is_refused(wanted):
    with pytest.raises(CalibrationError):
        plan(**wanted)


@pytest.mark.parametrize(
    "wanted",
    [{"clients": 1}, {"clients": 10, "corrupt_rate": -0.1}, {"clients": 10, "dropout_rate": 1.0}],
)
def test_numbers_out_of_range_are_refused(wanted):
    with pytest.raises(ValueError, match=r"clients|rate"):
        plan(**wanted)


def test_the_bounds_hold_in_simulation():
    # A graph weak enough that failures are seen: the union bound must stay above their rate.
    clients, corrupt, dropouts, degree, threshold = 40, 8, 6, 8, 6
    rng = np.random.default_rng(7)
    failed = lost = 0
    trials = 1000
    for _ in range(trials):
        order = ring_order(range(1, clients + 1), rng.bytes(32))
        marked = rng.permutation(clients) + 1
        bad, gone = set(marked[:corrupt]), set(marked[corrupt : corrupt + dropouts])
        around = closed_neighbourhoods(order, degree, b"")
        wrapped, half = [*order, *order], degree // 2
        has_many = any(len(set(around[i]) & bad - {i}) >= threshold for i in order if i not in bad)
        is_cut = any(set(wrapped[at : at + half]) <= bad | gone for at in range(clients))
        failed += has_many or is_cut
        lost += any(len(set(around[i]) - gone - {i}) < threshold for i in order)
    secrecy = 2 ** -secrecy_bits(clients, corrupt, dropouts, degree=degree, threshold=threshold)
    correct = 2 ** -correct_bits(clients, dropouts, degree, threshold)
    assert 0 < failed / trials <= secrecy
    assert 0 < lost / trials <= correct


def test_the_command_prints_both_regimes(capsys):
    secagg_plan_command(clients=1000, as_json=True)
    documents = json.loads(capsys.readouterr().out)
    assert [d["adversary"] for d in documents] == ["semi_honest", "semi_honest", "active"]
    assert [d["graph"] for d in documents] == ["complete", "k_regular", "complete"]
    assert documents[2]["threshold"] == 667
    assert documents[1]["security_bits"] >= 40
    assert documents[0]["security_bits"] is None
    assert sum(d["chosen"] for d in documents) == 2
    with pytest.raises(ConfigError, match="secagg-plan: corrupt_rate"):
        secagg_plan_command(clients=10, corrupt_rate=1.5, as_json=False)


@pytest.mark.parametrize("place", [0, 2])
def test_the_bytes_printed_are_the_bytes_sent(capsys, place):
    secagg_plan_command(clients=9, dropout_rate=0, length=100, ring_bits=21, as_json=True)
    document = json.loads(capsys.readouterr().out)[place]
    make = (make_parameters, None, make_active)[place]
    parameters = make(9, vector_length=100, ring_bits=21, threshold=document["threshold"])
    sent = play(parameters, make_vectors(parameters)).sent
    assert sum(len(messages[1]) for messages in sent.values()) == document["bytes_up"]


@pytest.mark.parametrize(("count", "degree"), [(3, 2), (12, 6), (13, 12)])
def test_every_client_has_k_neighbours_and_they_have_it(count, degree):
    clients = tuple(range(5, 5 + 3 * count, 3))
    around = closed_neighbourhoods(clients, degree, bytes(range(32)))
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
        with pytest.raises(TooFewAnswers, match="5 holders") as caught:
            play(parameters, make_vectors(parameters), lost={phase: lost})
        assert caught.value.phase == phase
    with pytest.raises(TooFewAnswers) as caught:
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


def test_the_server_checks_the_neighbourhoods_of_dropouts_too():
    # Of a client lost after sharing keys the key must be rebuilt by its neighbours.
    parameters = make_regular(12, threshold=6, smallest_sum=10)
    trace = play(parameters, make_vectors(parameters), lost={Phase.MASKED_INPUT: {1}})
    state = trace.server_states[Phase.UNMASKING]
    assert isinstance(state, CollectingUnmasking)
    answers = dict(trace.sent[Phase.UNMASKING])
    one = next(i for i in parameters.holders(1) if i != 1)
    del answers[one]
    with pytest.raises(TooFewAnswers, match="client 1 "):
        server.step(state, answers)


def test_a_dropouts_neighbourhood_is_checked_before_shares_are_asked_for():
    # Lost with the clients four places before and after it, a client has 6 of its 9 holders left,
    # while every survivor still has 7.
    parameters = make_regular(14, degree=8, threshold=7, smallest_sum=11)
    order = ring_order(parameters.clients, parameters.graph_seed)
    lost = {order[0], order[4], order[-4]}
    with pytest.raises(TooFewAnswers, match=f"6 holders of shares of client {order[0]} ") as caught:
        play(parameters, make_vectors(parameters), lost={Phase.MASKED_INPUT: lost})
    assert caught.value.phase == Phase.MASKED_INPUT


def test_without_noise_it_is_the_triangle_inequality():
    assert largest_norm(length=100, cohort_size=7, clipping_norm=2.0) == pytest.approx(14.0)
    rounded = largest_norm(length=100, cohort_size=7, clipping_norm=2.0, step=0.1)
    # Seven vectors are rounded, and the noise that is added to their sum.
    assert rounded == pytest.approx(14.0 + 8 * 0.05 * 10)


@pytest.mark.parametrize("length", [1, 1000])
def test_the_noise_term_covers_all_but_a_trillionth(length):
    bound = largest_norm(length=length, cohort_size=4, clipping_norm=0.0, noise_in_sum=6.0)
    chance_beyond = stats.chi2.sf((bound / 6.0) ** 2, length)
    assert 0 < chance_beyond <= 2.0**-40
    assert bound < 6.0 * (math.sqrt(length) + 12)


def test_honest_sums_pass_and_a_shifted_one_does_not():
    rng = np.random.default_rng(3)
    bound = largest_norm(
        length=500, cohort_size=10, clipping_norm=1.0, noise_in_sum=0.1 * math.sqrt(10)
    )
    for _ in range(50):
        vectors = rng.normal(size=(10, 500))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        total = vectors.sum(axis=0) + rng.normal(scale=0.1, size=(10, 500)).sum(axis=0)
        require_plausible_norm(total, bound)
    with pytest.raises(ProtocolViolation, match="longer than") as caught:
        require_plausible_norm(total + 3.0, bound)
    assert not any(character.isdigit() for character in str(caught.value))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ProtocolViolation):
        require_plausible_norm(np.array([0.0, value]), 1e9)

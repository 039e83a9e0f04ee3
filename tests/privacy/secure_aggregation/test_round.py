"""The sum is exact for every cohort, threshold and dropout that leaves enough clients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import ProtocolViolation, ThresholdNotMet
from privacy.secure_aggregation import (
    Masked,
    Phase,
    Refusal,
    default_threshold,
    largest_norm,
    require_plausible_norm,
)
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    Trace,
    fill,
    make_active,
    make_parameters,
    make_vectors,
    plain_sum,
    play,
)

LOSSES = (None, *PHASES)


def expected_outcome(parameters, fate):
    """By the rules alone: the survivors, or the phase at which too few are left."""
    alive = set(parameters.clients)
    survivors = ()
    for phase in PHASES:
        alive -= {index for index, lost_at in fate.items() if lost_at is phase}
        if len(alive) < parameters.threshold:
            return None, phase
        if phase is Phase.MASKED_INPUT:
            survivors = tuple(sorted(alive))
    return survivors, None


def check(parameters, fate, seed=0):
    vectors = make_vectors(parameters, seed)
    lost = {phase: {i for i, at in fate.items() if at is phase} for phase in PHASES}
    survivors, phase = expected_outcome(parameters, fate)
    if survivors is None:
        with pytest.raises(ThresholdNotMet) as caught:
            play(parameters, vectors, lost=lost)
        assert caught.value.phase == phase
        assert phase.value in str(caught.value)
        return
    finished = play(parameters, vectors, lost=lost).finished
    assert finished.survivors == survivors
    assert finished.refused == ()
    assert finished.total.dtype == np.uint64
    assert finished.total.tolist() == plain_sum(parameters, vectors, survivors)


@st.composite
def schedules(draw):
    count = draw(st.sampled_from([2, 3, 5, 10]))
    gaps = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    parameters = make_parameters(
        count,
        clients=tuple(np.cumsum(gaps).tolist()),
        threshold=draw(st.integers(2, count)),
        vector_length=draw(st.integers(1, 40)),
        ring_bits=draw(st.sampled_from([32, 64])),
    )
    # Mostly stay, so that most rounds finish and some do not.
    fates = st.sampled_from((None,) * 8 + LOSSES)
    return parameters, {index: draw(fates) for index in parameters.clients}


@settings(derandomize=True)
@given(schedule=schedules(), seed=st.integers(0, 2**32 - 1))
def test_the_sum_is_exact_or_the_phase_is_named(schedule, seed):
    check(*schedule, seed=seed)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("phase", LOSSES, ids=str)
@pytest.mark.parametrize("beyond", [0, 1])
def test_dropouts_up_to_the_threshold_and_one_beyond(count, phase, beyond):
    parameters = make_parameters(count)
    spare = count - parameters.threshold + beyond
    fate = {index: phase for index in parameters.clients[-spare:] if spare}
    check(parameters, fate, seed=count)


@pytest.mark.parametrize("threshold", [2, 11, 21, 30])
def test_thirty_clients_lost_at_all_phases(threshold):
    parameters = make_parameters(30, threshold=threshold, vector_length=100)
    fate = {index: LOSSES[index % 5] if index % 3 == 0 else None for index in parameters.clients}
    check(parameters, fate)


def test_two_dropped_of_ten_are_recovered():
    parameters = make_parameters(10, threshold=7, vector_length=1000)
    vectors = make_vectors(parameters, seed=5)
    trace = play(parameters, vectors, lost={Phase.MASKED_INPUT: {2, 9}})
    assert trace.finished.survivors == (1, 3, 4, 5, 6, 7, 8, 10)
    by_hand = sum(vectors[i] for i in trace.finished.survivors) % np.uint64(2**32)
    assert np.array_equal(trace.finished.total, by_hand)


def test_survivors_lost_at_the_end_stay_in_the_sum():
    parameters = make_parameters(10)
    vectors = make_vectors(parameters)
    finished = play(parameters, vectors, lost={Phase.UNMASKING: {1, 4, 10}}).finished
    assert finished.survivors == parameters.clients
    assert finished.total.tolist() == plain_sum(parameters, vectors, parameters.clients)


@pytest.mark.parametrize("ring_bits", [32, 64])
@pytest.mark.parametrize("length", [1, 65_535, 65_536, 65_537, 140_000])
def test_lengths_around_the_block_of_the_cipher(length, ring_bits):
    parameters = make_parameters(3, vector_length=length, ring_bits=ring_bits, threshold=2)
    vectors = make_vectors(parameters)
    finished = play(parameters, vectors, lost={Phase.MASKED_INPUT: {2}}).finished
    expected = (vectors[1] + vectors[3]) & np.uint64(2**ring_bits - 1)
    assert np.array_equal(finished.total, expected)


@pytest.mark.parametrize("value", [0, 2**32 - 1])
def test_the_ends_of_the_ring(value):
    parameters = make_parameters(3)
    vectors = {i: np.full(8, value, np.uint64) for i in parameters.clients}
    assert play(parameters, vectors).finished.total.tolist() == [3 * value % 2**32] * 8


def flip_bit(message, bit):
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flip(message, position=-20):
    changed = bytearray(message)
    changed[position] ^= 1
    return bytes(changed)


SPOILT = {
    "flipped": flip,
    "truncated": lambda m: m[:-1],
    "longer": lambda m: m + b"\0",
    "empty": lambda m: b"",
    "doubled": lambda m: m + m,
    "magic": lambda m: flip(m, 0),
    "end": lambda m: flip(m, -1),
}


NOTICED = [
    pytest.param(make, phase, spoil, id=f"{how}-{phase}-{make.__name__}")
    for make, phase, (how, spoil) in itertools.product(
        (make_parameters, make_active), PHASES, SPOILT.items()
    )
    # No checksum covers an unsigned masked vector: see the next test.
    if (make, phase, how) != (make_parameters, Phase.MASKED_INPUT, "flipped")
]


@pytest.mark.parametrize(("make", "phase", "spoil"), NOTICED)
def test_a_spoilt_message_is_its_clients_dropout(make, phase, spoil):
    parameters = make(5)
    vectors = make_vectors(parameters)
    spoilt = play(
        parameters,
        vectors,
        tamper=lambda at, sender, m: spoil(m) if (at, sender) == (phase, 2) else m,
    ).finished
    missing = play(parameters, vectors, lost={phase: {2}}).finished
    assert spoilt.refused == (Refusal(2, phase),)
    assert spoilt.survivors == missing.survivors
    assert np.array_equal(spoilt.total, missing.total)


@pytest.mark.parametrize("ring_bits", [16, 21, 32, 64])
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


def test_a_flipped_high_bit_of_a_masked_vector_is_implausible():
    # Updates of norm at most 1 in steps of 2^-20: an honest sum of five has norm at most 5 and a
    # little. A flip moves one coordinate by 2^(bit - 20), so 4 can pass and 8 cannot.
    parameters, step = make_parameters(5), 2.0**-20
    vectors = {i: np.full(8, 2**17, np.uint64) for i in parameters.clients}
    bound = largest_norm(length=8, cohort_size=5, clipping_norm=1.0, step=step)
    seen = []
    for bit in range(32):
        total = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, b=bit: (
                flip_bit(m, 8 * 52 + b) if (at, sender) == (Phase.MASKED_INPUT, 2) else m
            ),
        ).finished.total
        try:
            require_plausible_norm(total.astype(np.uint32).view(np.int32) * step, bound)
        except ProtocolViolation:
            seen.append(bit)
    assert seen == list(range(23, 32))


@pytest.mark.parametrize("phase", PHASES)
def test_a_foreign_message_is_its_senders_dropout(phase):
    parameters = make_parameters(5)
    vectors = make_vectors(parameters)
    others = {
        "round": play(make_parameters(5, round_number=4), vectors),
        "attempt": play(make_parameters(5, attempt=1), vectors),
        "run": play(make_parameters(5, run_id="other"), vectors),
        "threshold": play(make_parameters(5, threshold=3), vectors),
        "ring": play(make_parameters(5, corrupt=1), vectors),
    }
    for other in others.values():
        finished = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, o=other: (
                o.sent[at][3] if (at, sender) == (phase, 3) else m
            ),
        ).finished
        assert finished.refused == (Refusal(3, phase),)
        assert finished.total.tolist() == plain_sum(parameters, vectors, finished.survivors)


@pytest.mark.parametrize("phase", PHASES)
def test_another_clients_or_an_earlier_message_is_refused(phase):
    parameters = make_parameters(5)
    vectors = make_vectors(parameters)
    honest = play(parameters, vectors)
    replays = [honest.sent[phase][4]]
    replays += [honest.sent[other][3] for other in PHASES if other is not phase]
    for replay in replays:
        finished = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, r=replay: r if (at, sender) == (phase, 3) else m,
        ).finished
        assert finished.refused == (Refusal(3, phase),)
        assert finished.total.tolist() == plain_sum(parameters, vectors, finished.survivors)


def test_spoilt_messages_below_the_threshold_abort_with_the_phase():
    parameters = make_parameters(5)
    for phase in PHASES:
        with pytest.raises(ThresholdNotMet) as caught:
            play(
                parameters,
                make_vectors(parameters),
                tamper=lambda at, sender, m, p=phase: m[:-1] if at is p and sender < 3 else m,
            )
        assert caught.value.phase == phase


def test_an_aborted_round_leaves_the_clients_masked():
    parameters = make_parameters(5)
    trace = Trace(parameters)
    with pytest.raises(ThresholdNotMet):
        fill(
            trace,
            make_vectors(parameters),
            lost={Phase.MASKED_INPUT: {1, 2}},
            tamper=lambda phase, sender, message: message,
            label="",
        )
    assert all(isinstance(state, Masked) for state in trace.after[Phase.MASKED_INPUT].values())
    assert Phase.UNMASKING not in trace.sent


def test_the_default_threshold_is_two_thirds_and_one():
    assert [default_threshold(n) for n in (2, 3, 4, 5, 6, 9, 10, 100)] == [
        2, 3, 3, 4, 5, 7, 7, 67,
    ]  # fmt: skip

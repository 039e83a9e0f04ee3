"""The sum is exact for every cohort, threshold and dropout that leaves enough clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import ThresholdNotMet
from privacy.secure_aggregation import (
    Phase,
    Refusal,
    default_threshold,
)
from tests.privacy.secure_aggregation._drive import (
    PHASES,
    make_parameters,
    make_vectors,
    plain_sum,
    play,
)


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
    fates = st.sampled_from((None,) * 8 + PHASES)
    return parameters, {index: draw(fates) for index in parameters.clients}


@settings(derandomize=True)
@given(schedule=schedules(), seed=st.integers(0, 2**32 - 1))
def test_the_sum_is_exact_or_the_phase_is_named(schedule, seed):
    parameters, fate = schedule
    vectors = make_vectors(parameters, seed)
    lost = {phase: {i for i, at in fate.items() if at is phase} for phase in PHASES}
    survivors, phase = expected_outcome(parameters, fate)
    if survivors is None:
        with pytest.raises(ThresholdNotMet, match=phase.value) as caught:
            play(parameters, vectors, lost=lost)
        assert caught.value.phase == phase
        return
    finished = play(parameters, vectors, lost=lost).finished
    assert finished.survivors == survivors
    assert finished.refused == ()
    assert finished.total.dtype == np.uint64
    assert finished.total.tolist() == plain_sum(parameters, vectors, survivors)


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
def test_a_foreign_or_replayed_message_is_its_senders_dropout(phase):
    parameters = make_parameters(5)
    vectors = make_vectors(parameters)
    changes = [{"round_number": 4}, {"attempt": 1}, {"run_id": "other"}, {"threshold": 3}]
    others = [play(make_parameters(5, **change), vectors).sent[phase][3] for change in changes]
    honest = play(parameters, vectors).sent
    others += [honest[phase][4], *(honest[at][3] for at in PHASES if at is not phase)]
    for other in others:
        finished = play(
            parameters,
            vectors,
            tamper=lambda at, sender, m, o=other: o if (at, sender) == (phase, 3) else m,
        ).finished
        assert finished.refused == (Refusal(3, phase),)
        assert finished.total.tolist() == plain_sum(parameters, vectors, finished.survivors)


def test_the_default_threshold_is_two_thirds_and_one():
    assert [default_threshold(n) for n in (2, 3, 4, 5, 6, 9, 10, 100)] == [
        2, 3, 3, 4, 5, 7, 7, 67,
    ]  # fmt: skip

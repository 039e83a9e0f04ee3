"""Malicious peers under `central_noise`: what they learn of another client is what epsilon allows.

Rounds of the real runner with real clients, of which some upload what they like. Each attack is a
game of two honest uploads that are as far apart as the ledger says. Played with fresh noise its
success stays within epsilon. Played with noise that makes up for the difference of the uploads,
nothing at all may differ: what a round shows is a function of the noised element of the ring.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from platform.errors import RunStopped
from platform.experiment.finishing import execute
from platform.rounds.observing import SilentObserver
from privacy import SeededNoise, calibrate_noise_multiplier
from tests.trunk._peers import SCALE, Chosen, Rounds, Seen, Spoil, hostile, rounds
from tests.trunk._runs import FIXED, NO_POOL, opened, over

EPSILON, LENGTH, LAST = 0.1, 16, "client-3"
MULTIPLIER = calibrate_noise_multiplier(
    EPSILON, 1e-5, releases_per_round=1, rounds=1, relation="replace_one"
)
E = np.eye(LENGTH)[0]
PLAYS = 30
MOST_RIGHT = stats.binom.isf(1e-6, PLAYS, stats.norm.cdf(1.0 / MULTIPLIER))
"""A guess between two uploads that are 2 C apart is right with probability Phi(1 / z) at most."""


def pushing(values: NDArray[np.float64] | Callable[[Rounds], NDArray[np.float64]]) -> Any:
    """A peer that uploads these multiples of C, or whole steps, whatever it was to upload."""

    def of(played: Rounds) -> Mapping[str, Spoil]:
        steps = values(played) if callable(values) else np.rint(values * SCALE)
        return {LAST: lambda levels: played.levels(steps)}

    return of


def half_ring(less: int) -> Callable[[Rounds], NDArray[np.float64]]:
    return lambda played: np.eye(LENGTH)[0] * float(played.grid.largest_level // 2 - less)


def largest_noised(played: Rounds) -> NDArray[np.float64]:
    """About as long as the noise and all clients can make a sum, so that hardly any passes."""
    reach = 4.0 + MULTIPLIER * np.sqrt(LENGTH + 2 * np.sqrt(LENGTH * 27.73) + 2 * 27.73)
    return E * np.rint(reach * SCALE)


PUSHES = {
    "past what the bare sum may be": pushing(4.2 * E),
    "past what the noised sum may be": pushing(largest_noised),
    "half of the ring": pushing(half_ring(0)),
    "half of the ring but for C": pushing(half_ring(round(SCALE))),
}


def right_guesses(played: Rounds, spoils: Mapping[str, Spoil], guess: Callable[[Seen], int]) -> int:
    rng = np.random.default_rng(11)
    noise, found = SeededNoise(rng), 0
    for _ in range(PLAYS):
        sign = int(rng.choice([-1, 1]))
        found += guess(played.play(sign * E, spoils, noise)) == sign
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("push", "guess"),
    [
        # The sum of a client at +C is too long, and that of one at -C short enough.
        (pushing(4.2 * E), lambda seen: 1 if seen.aborted else -1),
        # One client at +C goes past half of the ring, and at -C does not.
        (
            pushing(half_ring(0)),
            lambda seen: 1 if seen.released is None or seen.released[0] < 0 else -1,
        ),
    ],
    ids=["an abort", "a wrap"],
)
def test_neither_an_abort_nor_a_wrap_tells_a_sign(stores, push, guess):
    played = rounds(stores, masked=True, multiplier=MULTIPLIER)
    assert right_guesses(played, push(played), guess) <= MOST_RIGHT


@pytest.mark.parametrize(
    ("masked", "push"),
    [
        *((True, push) for push in PUSHES),
        (False, "half of the ring"),
        *(pytest.param(False, p, marks=pytest.mark.slow) for p in PUSHES if p[0] == "p"),
    ],
)
def test_a_round_shows_the_noised_ring_element_alone(stores, masked, push):
    """Other uploads under other noise, of the same sum in the ring: no bit that follows differs."""
    played = rounds(stores, masked=masked, multiplier=MULTIPLIER)
    rng = np.random.default_rng(5)
    whole = E * (SCALE - 1.0)
    for one, other in ((whole, -whole), (direction_of(rng), direction_of(rng))):
        noise = np.rint(rng.standard_normal(LENGTH) * MULTIPLIER * SCALE)
        found = [
            played.play(update / SCALE, PUSHES[push](played), steps(noise + one - update))
            for update in (one, other)
        ]
        assert found[0].same(found[1])


def direction_of(rng: np.random.Generator) -> NDArray[np.float64]:
    drawn = rng.standard_normal(LENGTH)
    return np.trunc(drawn / np.linalg.norm(drawn) * (SCALE - 1.0))


def steps(noise: NDArray[np.float64]) -> Chosen:
    return Chosen(noise / (MULTIPLIER * SCALE))


@pytest.mark.parametrize("count", [5.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_an_expert_is_in_the_noised_ring_element_alone(stores, count):
    played = rounds(stores, masked=True, multiplier=MULTIPLIER, groups=4)
    rng, size = np.random.default_rng(4), 4 * LENGTH + 4
    noise = np.rint(rng.standard_normal(size) * MULTIPLIER * SCALE)
    vector = np.zeros(size)
    vector[2 * LENGTH], vector[-2] = 5.0, count
    seen = []
    for group in range(4):
        update, sent = np.zeros((4, LENGTH)), np.zeros(size)
        update[group, 0] = 1.0
        sent[group * LENGTH] = sent[4 * LENGTH + group] = SCALE
        own = steps(noise - sent)
        seen.append(played.play(update, pushing(vector)(played), own, group))
    assert all(seen[0].same(one) for one in seen)


@pytest.mark.slow
def test_three_peers_do_not_compare_a_coordinate(stores):
    """After these a coordinate of a floating-point sum is 2^47 if it was above 0 before, else 0."""
    played = rounds(stores, masked=False, multiplier=MULTIPLIER, clients=5, hostiles=3)
    spoils = {
        f"client-{place}": lambda levels, value=value: np.full(len(levels), value)
        for place, value in enumerate((2.0**46, 2.0**99, -(2.0**99)), start=2)
    }

    guesses = right_guesses(played, spoils, lambda seen: 1 if seen.released[0] > 2.0**46 else -1)
    assert guesses <= MOST_RIGHT


BAD_UPLOADS: dict[str, Spoil] = {
    "short": lambda levels: levels[:-1],
    "long": lambda levels: np.append(levels, levels[:1]),
    "signed": lambda levels: levels.astype(np.int64),
    "numbers": lambda levels: np.full(len(levels), 2.0**46),
    "beyond the ring": lambda levels: np.full(len(levels), 2**64 - 1, np.uint64),
    "a matrix": lambda levels: levels.reshape(2, -1),
}


@pytest.mark.parametrize("kind", BAD_UPLOADS)
def test_what_is_no_upload_is_refused_by_itself(stores, kind):
    played = rounds(stores, masked=False, multiplier=MULTIPLIER)
    outcome = played.outcome(E, {LAST: BAD_UPLOADS[kind]}, SeededNoise(np.random.default_rng(3)))
    assert outcome.survivors == ("client-0", "client-1", "client-2")
    # No method is shown a bare upload, as the next model might be a function of it.
    assert outcome.individual is None


@pytest.mark.parametrize("length", [0.5, 1.5, 400.0])
def test_a_long_upload_is_clipped_to_the_ledgers_norm(stores, length):
    played = rounds(stores, masked=False, multiplier=MULTIPLIER)
    seen = played.play(0 * E, pushing(length * E)(played), Chosen(np.zeros(LENGTH)))
    row = played.protection.sums.mechanism.protected(LENGTH)
    norm = min(length, row.clipping_norm)
    assert norm - 2.0 / SCALE <= seen.released[0] <= norm
    np.testing.assert_array_equal(seen.released[1:], 0.0)


MASKED = (
    *("privacy.mechanism=central_noise", *FIXED, *NO_POOL),
    *("cohort.dropout_rate=0", "rounds=1"),
)


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_lost_round_tells_no_number_of_the_data(storage, seed):
    """Its reason is in the log, the round's document, and the error: one sentence for any data."""
    with opened(storage.create(*MASKED, f"seed={seed}")) as simulation:
        inner = simulation.run.transport
        name = max(simulation.population.clients)
        client = hostile(simulation.population.clients[name])
        third = client.profile.protection.sums.grid().largest_level // 3
        client.spoil = lambda levels: np.full_like(levels, third)
        spoiled = dataclasses.replace(inner, handlers={**inner.handlers, name: client.handle})
        with pytest.raises(RunStopped) as caught:
            execute(over(simulation, spoiled), SilentObserver())
    ((detail,),) = storage.rows("SELECT detail FROM audit WHERE action = 'round.lost'")
    ((document,),) = storage.rows("SELECT document FROM rounds")
    # The whole sentence, as its promise is that nothing of the data is in it.
    said = "the sum is longer than clipped updates and their noise can be"
    assert json.loads(detail)["reason"] == json.loads(document)["lost"] == said
    assert f"in phase unmask: {said};" in str(caught.value)
    assert storage.rows("SELECT DISTINCT status FROM ledger") == [("reserved",)]

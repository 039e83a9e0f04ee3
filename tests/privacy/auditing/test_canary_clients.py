"""The bound from canaries within a run: its coverage, its ceiling, and what it must not claim."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import nct

from privacy.auditing import (
    Canaries,
    canary_bound,
    canary_ceiling,
    commitment_to,
    gaussian_claim,
    new_key,
)
from tests.privacy.auditing.test_gaussian_bound import delta_of

DELTA = 1e-5
MU = 0.745
KINDS = [
    # Canaries, directions, relation.
    (128, 128, "replace_one"),
    (32, 1, "replace_one"),
    (48, 4, "add_or_remove_one"),
]


def canaries(number, directions, relation, seed=0, d=256):
    return Canaries(np.random.default_rng(seed).bytes(32), number, directions, d, relation)


def moved(found):
    """What all canaries send together, added up one by one."""
    return np.sum([found.upload(index) for index in range(found.number)], axis=0)


def judged(found, mu, rng, claimed=MU):
    """The bound of a release that is mu-GDP for one client, whose update has norm 1."""
    deviation = (2.0 if found.relation == "replace_one" else 1.0) / mu
    released = moved(found) + deviation * rng.standard_normal(found.dimension)
    return canary_bound(found, released, claimed_mu=claimed, delta=DELTA, sent=1.0)


def test_canaries_have_norm_one_right_angles_and_a_coin_a_direction():
    found = canaries(12, 4, "replace_one", d=16)
    uploads = np.stack([found.upload(index) for index in range(12)])
    # Canary i shares its direction with i + 4 and i + 8, and sends exactly the same.
    expected = np.tile(np.eye(4), (3, 3))
    assert uploads @ uploads.T == pytest.approx(expected, abs=1e-12)
    assert set(found.sides.tolist()) <= {1.0, -1.0}
    assert found.scores(uploads[1])[:4] == pytest.approx([0, found.sides[1], 0, 0], abs=1e-12)
    out = canaries(64, 64, "add_or_remove_one", d=64)
    norms = [np.linalg.norm(out.upload(index)) for index in range(64)]
    assert norms == pytest.approx(out.sides, abs=1e-12)
    assert set(out.sides.tolist()) == {0.0, 1.0}
    assert (found.together, out.together) == (3, 1)


def test_coins_are_fair_and_follow_from_the_key_alone():
    sides = np.concatenate([canaries(200, 200, "replace_one", seed=s).sides for s in range(20)])
    # 4,000 fair coins: the sum's deviation is 63.
    assert abs(sides.sum()) < 5 * 63.3
    one, other = canaries(8, 8, "replace_one", seed=1), canaries(8, 8, "replace_one", seed=1)
    assert np.array_equal(moved(one), moved(other))
    assert not np.array_equal(moved(one), moved(canaries(8, 8, "replace_one", seed=2)))
    assert len({new_key() for _ in range(50)}) == 50
    # SHA-256 of 32 zero bytes, from elsewhere.
    zero = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"
    assert commitment_to(bytes(32)) == zero


@pytest.mark.slow
@pytest.mark.parametrize(("number", "directions", "relation"), KINDS)
def test_the_bound_is_above_the_truth_in_one_of_twenty(number, directions, relation):
    rng, runs, d = np.random.default_rng(number + directions), 400, 256
    found = [
        judged(canaries(number, directions, relation, seed=s, d=d), MU, rng) for s in range(runs)
    ]
    truth = gaussian_claim(MU, DELTA).epsilon
    above = sum(one.epsilon > truth for one in found)
    # Binomial(400, 0.05): 20, deviation 4.4.
    assert 4 <= above <= 42
    assert not any(one.is_refuted for one in found)
    shown, ceilings = (np.median([getattr(o, n) for o in found]) for n in ("epsilon", "ceiling"))
    assert shown == pytest.approx(ceilings, rel=0.12, abs=0.1)


def test_the_ceiling_in_few_dimensions_counts_that_the_deviation_is_seen_too():
    """L = 32 and d = 513: 0.745 - 1.644854 sqrt((2 / 32)^2 + 0.745^2 / 1024) = 0.635296."""
    found = canary_ceiling(MU, DELTA, length=32.0, dimension=513, relation="replace_one")
    assert delta_of(0.635296, found) == pytest.approx(DELTA, rel=1e-3)
    assert canary_ceiling(MU, DELTA, length=0.0, dimension=513, relation="replace_one") == 0.0


def test_what_is_refuted_has_the_probability_that_is_said():
    """By Student's law itself, from the coordinates of a release that is written down here."""
    found = canaries(9, 9, "replace_one", d=10)
    # Along the canaries 3 x 7, across them 9 and -1 and nothing else: t = 21 / sqrt(82 / 9).
    across = np.zeros(10)
    across[9] = 9.0
    tilt = np.zeros(10)
    tilt[:2] = found.sides[0] * math.sqrt(0.5), -found.sides[1] * math.sqrt(0.5)
    along = np.append(7.0 * found.sides, 0.0)
    basis = np.stack([found.scores(unit) for unit in np.eye(10)])
    released = basis @ (along + across + tilt)
    bound = canary_bound(found, released, claimed_mu=5.0, delta=DELTA, sent=1.0)
    seen = 21.0 / math.sqrt(82.0 / 9.0)
    # Three deviations of the mean to a length of 3, and mu is twice a canary's part of it.
    assert bound.length == pytest.approx(3.0)
    assert bound.estimate == pytest.approx(2.0 * seen / 3.0)
    low = 2.0 / 3.0 * _solve(seen, 9)
    assert delta_of(low, bound.epsilon) == pytest.approx(DELTA, rel=1e-3)


def _solve(seen, freedom):
    """The noncentrality at which so large a statistic has probability 5%, by bisection."""
    low, high = 0.0, seen
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if nct.sf(seen, freedom, middle) < 0.05 else (low, middle)
    return low


@pytest.mark.parametrize(("number", "directions", "relation"), KINDS)
def test_halved_noise_is_refuted_and_doubled_noise_shows_less(number, directions, relation):
    rng = np.random.default_rng(5)
    found = canaries(number, directions, relation, seed=7)
    broken = [judged(found, 2.0 * MU, rng) for _ in range(20)]
    assert all(one.epsilon > gaussian_claim(MU, DELTA).epsilon for one in broken)
    refuted = sum(one.is_refuted for one in broken)
    # Refuted is what lies 4.75 deviations above the claim: twice the mu does at few directions of
    # many canaries each; at 128 coins or 16 groups of four it lies 4 to 5.3 above, hence at times.
    assert refuted >= (18 if directions < 16 else 2)
    timid = [judged(found, 0.5 * MU, rng) for _ in range(20)]
    assert max(one.epsilon for one in timid) < min(one.epsilon for one in broken)


def test_an_audit_that_less_than_half_arrives_in_is_blind():
    """At L = 32 and a deviation of 2 / 0.745: half of 32 is 6 deviations away, 0.9 of it one."""
    rng, found = np.random.default_rng(4), canaries(32, 1, "replace_one")
    noise = 2.0 / MU * rng.standard_normal(256)
    seen = [
        canary_bound(found, part * moved(found) + noise, claimed_mu=MU, delta=DELTA, sent=1.0)
        for part in (0.0, 0.9, 1.0)
    ]
    assert [one.is_blind for one in seen] == [True, False, False]


@pytest.mark.parametrize("mu", [5.0, 60.0])
def test_a_large_epsilon_is_bounded_as_well(mu):
    """1,024 in one direction: Student's law with a noncentrality of thousands."""
    rng, found = np.random.default_rng(9), canaries(1024, 1, "replace_one", d=8192)
    bound = judged(found, mu, rng, claimed=mu)
    assert 0.9 * bound.ceiling < bound.epsilon < 1.1 * bound.ceiling
    assert 0.9 < bound.ceiling / gaussian_claim(mu, DELTA).epsilon < 1.0
    assert not bound.is_refuted


def test_guessed_coins_are_counted_only_where_each_canary_has_its_own():
    rng = np.random.default_rng(3)
    own = judged(canaries(256, 256, "replace_one"), 4.0, rng, claimed=4.0)
    assert own.guessed is not None
    assert 0.0 < own.guessed < own.epsilon
    assert judged(canaries(32, 16, "replace_one"), MU, rng).guessed is None


def test_a_canary_that_was_never_in_shows_nothing():
    seeds = range(100)
    alone = [canaries(1, 1, "add_or_remove_one", seed=s, d=32) for s in seeds]
    out = next(one for one in alone if not one.sides.any())
    bound = canary_bound(out, np.arange(32.0), claimed_mu=MU, delta=DELTA, sent=1.0)
    assert (bound.epsilon, bound.ceiling, bound.estimate, bound.length) == (0.0, 0.0, 0.0, 0.0)
    assert not bound.is_refuted


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": b"short"}, "key"),
        ({"directions": 5}, "multiple"),
        ({"number": 0}, "number"),
        ({"dimension": 3}, "dimension"),
        ({"relation": "zero_out"}, "relation"),
    ],
)
def test_canaries_that_mean_nothing_are_refused(change, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(canaries(8, 4, "replace_one"), **change)


def test_a_release_that_is_none_is_refused():
    found = canaries(8, 4, "replace_one")
    for wrong in (np.zeros(255), np.full(256, np.nan)):
        with pytest.raises(ValueError, match="finite vector of 256"):
            canary_bound(found, wrong, claimed_mu=MU, delta=DELTA, sent=1.0)

"""Bounds from scores, guesses and canaries: coverage, ceilings, what they must not claim."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, nct, norm

from privacy.auditing import (
    Canaries,
    canary_bound,
    canary_ceiling,
    commitment_to,
    epsilon_ceiling,
    epsilon_lower_bound,
    gaussian_bound,
    gaussian_claim,
    judge_client_unit,
    new_key,
    one_run_p_value,
    planned_guesses,
)
from privacy.auditing.bounds import correct_guesses
from tests.privacy.auditing.test_games import gaussian_scores

DELTA = 1e-5


def delta_of(mu, epsilon):
    """By integrating how far one density is above e^epsilon times the other."""
    start = epsilon / mu + mu / 2
    gap = lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)  # noqa: E731
    return quad(gap, start, start + 12, epsabs=1e-14)[0]


@pytest.mark.parametrize(("directions", "share"), [(16, 0.41), (512, 0.89)])
def test_ceilings_where_what_a_neighbour_scores_is_known(directions, share):
    """mu 0.745 has epsilon 3.12; 1.645 / sqrt(d) below it lies what d directions show."""
    assert delta_of(0.745, 3.12) == pytest.approx(DELTA, rel=0.05)
    found = epsilon_ceiling(0.745, DELTA, directions, math.inf)
    assert found / 3.12 == pytest.approx(share, abs=0.01)
    low = 0.745 - 1.6449 / math.sqrt(directions)
    assert delta_of(low, found) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "canaries"), [(0.3, 400), (0.745, 60), (3.0, 60)])
def test_the_bound_is_above_the_truth_in_one_of_twenty_and_its_median_is_the_ceiling(mu, canaries):
    rng, runs = np.random.default_rng(int(1000 * mu) + canaries), 600
    bounds = []
    for _ in range(runs):
        inside = mu + rng.standard_normal(canaries // 2)
        # Neither unit nor place of the scores matters.
        outside = rng.standard_normal(canaries // 2)
        found = gaussian_bound(7 * inside + 3, 7 * outside + 3, claimed_mu=mu, delta=DELTA)
        bounds.append(found.epsilon)
    truth = gaussian_claim(mu, DELTA).epsilon
    above = sum(bound > truth for bound in bounds)
    # Binomial(600, 0.05): 30, deviation 5.3.
    assert 9 <= above <= 54
    assert np.median(bounds) == pytest.approx(found.ceiling, rel=0.12, abs=0.05)


def test_with_the_canaries_of_an_audit_it_shows_more_than_four_fifths():
    claim = gaussian_claim(0.745, DELTA)
    scores = gaussian_scores(np.random.default_rng(3), mu=0.745, canaries=4000)
    result = judge_client_unit(scores, claim)
    assert result.gaussian is not None
    assert 0.8 * claim.epsilon < result.gaussian.epsilon < 1.05 * claim.epsilon
    assert 0.8 * claim.epsilon < result.gaussian.ceiling < claim.epsilon
    assert result.epsilon_lower_bound_95 < 0.7 * claim.epsilon
    assert result.document()["gaussian"] == {
        "epsilon": result.gaussian.epsilon,
        "ceiling": result.gaussian.ceiling,
    }


def test_where_nothing_is_seen_nothing_is_claimed():
    rng = np.random.default_rng(5)
    same = rng.standard_normal(400)
    for inside, outside in ((same, same), (same - 1, same), (np.ones(9), np.ones(9))):
        found = gaussian_bound(inside, outside, claimed_mu=1.0, delta=DELTA)
        assert found.epsilon == 0.0
    assert epsilon_ceiling(0.1, DELTA, 10, 10) == 0.0
    assert epsilon_ceiling(0.1, DELTA, 1, 1) == 0.0


@pytest.mark.parametrize(("number", "mu"), [(1, 1.0), (5, 0.0)])
def test_bad_numbers_are_refused(number, mu):
    with pytest.raises(ValueError, match=r"at least two|mu"):
        gaussian_bound(np.arange(number) * 1.0, np.arange(9.0), claimed_mu=mu, delta=DELTA)


@pytest.mark.parametrize("mu", [0.05, 40.0, 1e12])
def test_extreme_distances_are_numbers(mu):
    rng = np.random.default_rng(6)
    inside, outside = mu + rng.standard_normal(50_000), rng.standard_normal(50_000)
    found = gaussian_bound(inside, outside, claimed_mu=mu, delta=DELTA)
    assert math.isfinite(found.epsilon)
    assert found.epsilon <= gaussian_claim(1.02 * mu + 0.02, DELTA).epsilon
    # Nothing above the largest mu is told apart; one below it is seen nearly in full.
    least = 0.0 if mu < 1 else gaussian_claim(min(0.98 * mu, 1000.0), DELTA).epsilon
    assert found.epsilon >= least


@pytest.mark.parametrize(
    ("canaries", "delta", "expected"), [(100, 0.0, 0.702), (100, 1e-4, 0.699), (1000, 1e-4, 0.673)]
)
def test_the_bounds_printed_in_the_papers_appendix(canaries, delta, expected):
    bound = epsilon_lower_bound(canaries=canaries, guesses=100, correct=75, delta=delta)
    assert bound == pytest.approx(expected, abs=5e-4)


def test_the_p_value_printed_in_the_papers_appendix():
    p_value = one_run_p_value(canaries=100, guesses=100, correct=75, epsilon=math.log(3), delta=0.0)
    assert p_value == pytest.approx(0.553, abs=5e-4)


def exact_p_value(canaries, guesses, correct, odds, delta):
    """Corollary 5.4 in rational numbers, for e^epsilon = odds."""
    right = Fraction(odds, odds + 1)

    def tail(least):
        return sum(
            math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k)
            for k in range(least, guesses + 1)
        )

    steps = [(tail(correct - i) - tail(correct)) / i for i in range(1, correct + 1)]
    return float(min(1, tail(correct) + 2 * canaries * delta * max(steps, default=Fraction(0))))


@pytest.mark.parametrize("odds", [1, 20])
@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (7, 0), (30, 22)])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
def test_the_p_value_is_the_corollary_in_rational_numbers(odds, guesses, correct, delta):
    p_value = one_run_p_value(
        canaries=40, guesses=guesses, correct=correct, epsilon=math.log(odds), delta=float(delta)
    )
    assert p_value == pytest.approx(exact_p_value(40, guesses, correct, odds, delta), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "guesses"), [(0.1, 120), (1.0, 50), (3.0, 50)])
def test_coverage_is_exactly_kept_by_randomised_response(epsilon, guesses):
    """Randomised response attains the bound, so 5% must be kept and nearly used."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = sum(
        binom.pmf(correct, guesses, right)
        for correct in range(guesses + 1)
        if epsilon_lower_bound(canaries=guesses, guesses=guesses, correct=correct, delta=0.0)
        > epsilon
    )
    assert wrong <= 0.05
    if epsilon < 3.0:
        assert wrong > 0.02


def test_the_most_extreme_scores_are_guessed():
    scores = np.array([0.1, -3.0, 2.0, -0.2])
    included = np.array([False, False, True, True])
    assert correct_guesses(scores, included, 0.0, 2) == 2
    assert correct_guesses(scores, included, 0.0, 4) == 2


@pytest.mark.parametrize("counts", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_impossible_counts_are_refused(counts):
    canaries, guesses, correct = counts
    with pytest.raises(ValueError, match="at most the next"):
        epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=correct, delta=0.0)
    with pytest.raises(ValueError, match="confidence"):
        epsilon_lower_bound(canaries=9, guesses=9, correct=9, delta=0.0, confidence=1.0)


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
    # The noncentrality at which so large a statistic has probability 5%.
    low = 2.0 / 3.0 * brentq(lambda middle: nct.sf(seen, 9, middle) - 0.05, 0.1, seen)
    assert delta_of(low, bound.epsilon) == pytest.approx(DELTA, rel=1e-3)


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
    alone = [canaries(1, 1, "add_or_remove_one", seed=s, d=32) for s in range(100)]
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


@pytest.mark.parametrize(("mu", "canaries"), [(0.01, 10), (0.5, 1000), (4.0, 1000), (50.0, 100)])
def test_guesses_are_planned_within_the_canaries(mu, canaries):
    assert 1 <= planned_guesses(mu, canaries, 1e-5) <= canaries
    # To abstain pays where guesses are poor.
    assert planned_guesses(0.5, 1000, 1e-5) < planned_guesses(4.0, 1000, 1e-5)


def test_guesses_are_made_where_scores_are_farthest_from_the_threshold():
    scores, included = np.array([5.0, 1.0, 0.0]), np.array([False, False, False])
    assert [correct_guesses(scores, included, 4.0, guesses) for guesses in (1, 2, 3)] == [1, 2, 2]

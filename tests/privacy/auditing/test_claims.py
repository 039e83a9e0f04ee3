"""What is claimed of a ledger's row: the row's own numbers and its price, whichever is smaller."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm

import privacy.auditing.claims as claims
from privacy import NO_NOISE, IntegerNoise, SeededNoise, clip
from privacy.accounting.accountants import EpsilonResult
from privacy.auditing import claim_of, gaussian_claim, judge_client_unit, play_client_unit
from tests.privacy._rows import FACTS, released

DELTA = 1e-5
ROW = released(2.0)


@pytest.mark.parametrize(
    ("changes", "mu"),
    [
        ({}, 1.0),
        ({"relation": "add_or_remove_one"}, 0.5),
        ({"standard_deviation": 0.15}, 4.0),
        ({"count": 9}, 3.0),
    ],
)
def test_a_gaussian_row_claims_sensitivity_over_deviation(changes, mu):
    claim = claim_of(dataclasses.replace(ROW, **changes), DELTA)
    assert claim.is_gaussian
    assert claim.mu == pytest.approx(mu, rel=1e-9)
    assert claim.epsilon == pytest.approx(gaussian_claim(mu, DELTA).epsilon, rel=1e-9)


def test_one_sampled_step_claims_its_total_variation():
    """q (2 Phi(mu / 2) - 1) for a single step, in closed form."""
    row = dataclasses.replace(
        ROW,
        mechanism=FACTS["dp_sgd"],
        relation="add_or_remove_one",
        sampling="poisson",
        sampling_probability=0.4,
    )
    claim = claim_of(row, DELTA)
    total_variation = 0.4 * (2 * norm.cdf(0.25) - 1)
    assert not claim.is_gaussian
    assert claim.mu == pytest.approx(2 * norm.ppf((1 + total_variation) / 2), rel=2e-3)
    assert claim.epsilon < gaussian_claim(0.5, DELTA).epsilon


def test_integer_noise_claims_the_rows_gaussian_though_its_price_is_higher():
    noise = IntegerNoise(name="discrete_gaussian", share_deviation=1e5, shares=4, dimension=64)
    row = dataclasses.replace(ROW, mechanism=FACTS["distributed_noise"], law=noise)
    claim = claim_of(row, DELTA)
    assert claim.mu == pytest.approx(1.0, rel=1e-9)
    assert claim.epsilon > gaussian_claim(1.0, DELTA).epsilon


@pytest.mark.parametrize(
    ("factor", "mu"), [(0.5, None), (2.0, 1.0), (1e9, 1.0), (0.0, claims._SMALLEST_MU)]
)
def test_a_price_below_the_rows_is_the_claim(monkeypatch, factor, mu):
    exact = gaussian_claim(1.0, DELTA).epsilon
    monkeypatch.setattr(claims, "price", lambda *_: EpsilonResult(factor * exact, "exact"))
    claim = claim_of(ROW, DELTA)
    assert claim.epsilon == factor * exact
    if mu is None:
        assert gaussian_claim(claim.mu, DELTA).epsilon == pytest.approx(factor * exact, rel=1e-6)
    else:
        assert claim.mu == pytest.approx(mu)


def test_a_row_without_noise_claims_nothing():
    with pytest.raises(ValueError, match="standard_deviation"):
        claim_of(dataclasses.replace(ROW, standard_deviation=0.0, law=NO_NOISE), DELTA)


FLAG, C = 0.3, 1.0


def flagged(deviation, *, honest=True):
    """Clip, append the flag, add noise; a dishonest flag is ten times as long."""
    noise = SeededNoise(np.random.default_rng(11))

    def release(vector):
        clipped = clip(vector, C)
        flag = (-FLAG if clipped.was_clipped else FLAG) * (1.0 if honest else 10.0)
        return np.append(clipped.vector, flag) + deviation * noise.standard_normal(vector.size + 1)

    return release


def play_flagged(release, relation="replace_one", canaries=1000):
    return play_client_unit(
        release,
        clipping_norm=C,
        dimension=64,
        canaries=canaries,
        oversized=20,
        relation=relation,
        rng=np.random.default_rng(3),
        flag=FLAG,
    )


def test_flag_and_update_together_are_as_far_apart_as_the_joint_norm_allows():
    scores = play_flagged(flagged(0.0))
    joint = math.hypot(C, FLAG)
    assert scores.clipping_norm == pytest.approx(joint)
    assert scores.distance == pytest.approx(2 * joint)
    assert np.allclose(scores.scores, np.where(scores.included, joint, -joint), atol=1e-5)


@pytest.mark.parametrize("honest", [True, False])
def test_a_flag_that_is_too_long_is_refuted(honest):
    claim = gaussian_claim(2 * math.hypot(C, FLAG) / 1.5, DELTA)
    scores = play_flagged(flagged(1.5, honest=honest), canaries=4000)
    assert judge_client_unit(scores, claim).passed is honest


def test_the_flag_is_left_out_where_the_neighbour_sends_nothing():
    scores = play_flagged(flagged(0.0), relation="add_or_remove_one")
    assert np.allclose(scores.scores, np.where(scores.included, C, 0.0), atol=1e-5)

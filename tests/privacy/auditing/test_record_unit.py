"""The record's game, on a small private training: one noisy sum of clipped gradients a step."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from privacy import clip
from privacy.auditing import gaussian_claim, sampled_claim
from privacy.errors import NonFiniteUpdate
from tests.privacy.auditing._audits import audit_record_unit

C, DIMENSION, DELTA = 1.0, 12, 1e-5
OTHERS = np.random.default_rng(99).standard_normal((20, DIMENSION))
CANARY = 30.0 * np.eye(DIMENSION)[0]
STEP = C * np.eye(DIMENSION)[0]


def trainer(noise_multiplier, *, clips=True):
    """The sum of clipped per-record gradients, with Gaussian noise."""

    def train(include, rng):
        records = np.vstack([OTHERS, CANARY]) if include else OTHERS
        total = sum((clip(one, C).vector if clips else one for one in records), np.zeros(1))
        return {"shared": total + noise_multiplier * C * rng.standard_normal(DIMENSION)}

    return train


def audit(train, claim, *, canaries=1000, directions=None, seed=0):
    return audit_record_unit(
        train,
        claim=claim,
        directions=directions or {"shared": STEP},
        canaries=canaries,
        rng=np.random.default_rng(seed),
    )


def test_right_training_passes_and_is_seen_in_full():
    noise_multiplier = 0.5
    result = audit(trainer(noise_multiplier), gaussian_claim(1 / noise_multiplier, DELTA))
    assert result.passed
    assert result.is_tight
    assert (result.unit, result.clip_respected, result.canaries) == ("record", None, 1000)
    assert 0.0 < result.epsilon_lower_bound_95 < result.claimed_epsilon


def poisson_claim(noise_multiplier, probability, steps):
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = PoissonSampledDpEvent(probability, GaussianDpEvent(noise_multiplier))
    accountant.compose(SelfComposedDpEvent(event, steps))
    return sampled_claim(
        total_variation=accountant.get_delta(0.0),
        epsilon=accountant.get_epsilon(DELTA),
        delta=DELTA,
    )


def only_canary(noise_multiplier, probability):
    def train(include, rng):
        drawn = include and rng.random() < probability
        return {"shared": drawn * STEP + noise_multiplier * rng.standard_normal(DIMENSION)}

    return train


def test_sampling_that_does_not_happen_is_noticed():
    """The claim is amplified, the canary is in every batch."""
    claim = poisson_claim(0.5, 0.6, 1)
    right = audit(only_canary(0.5, 0.6), claim, canaries=1500)
    assert right.passed
    assert right.is_tight
    assert not audit(only_canary(0.5, 1.0), claim, canaries=1500).passed


def test_halved_noise_and_a_missing_clip_of_one_record_are_noticed():
    assert not audit(trainer(0.5), gaussian_claim(1.0, DELTA)).passed
    result = audit(trainer(1.0, clips=False), gaussian_claim(1.0, DELTA), canaries=300)
    assert not result.passed
    assert "'shared'" in result.reasons[0]


def test_two_arrays_share_the_error_between_them():
    one = trainer(1.0)

    def two(include, rng):
        shared = one(include, rng)["shared"]
        return {"shared": shared, "copy": shared}

    def judged(train, error, **directions):
        return audit_record_unit(
            train,
            claim=gaussian_claim(1.0, DELTA),
            directions=directions,
            canaries=300,
            rng=np.random.default_rng(0),
            family_wise_error=error,
        )

    alone = judged(one, 0.5e-3, shared=STEP)
    both = judged(two, 1e-3, shared=STEP, copy=STEP)
    assert both.mu_interval == alone.mu_interval
    assert both.epsilon_lower_bound_95 < alone.epsilon_lower_bound_95


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        ({"other": STEP}, "released are"),
        ({"shared": STEP[:2]}, "its direction has 2"),
        ({"shared": 0 * STEP}, "zero or missing"),
    ],
)
def test_directions_that_do_not_fit_are_refused(directions, message):
    with pytest.raises(ValueError, match=message):
        audit(trainer(1.0), gaussian_claim(1.0, DELTA), directions=directions)


def test_no_directions_no_canaries_and_no_numbers_are_refused():
    claim, rng = gaussian_claim(1.0, DELTA), np.random.default_rng(0)
    with pytest.raises(ValueError, match="directions"):
        audit_record_unit(trainer(1.0), claim=claim, directions={}, canaries=5, rng=rng)
    with pytest.raises(ValueError, match="canaries"):
        audit(trainer(1.0), claim, canaries=0)
    with pytest.raises(NonFiniteUpdate):
        audit(lambda include, rng: {"shared": np.nan * STEP}, claim, canaries=5)

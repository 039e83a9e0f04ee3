"""Both games: right builds pass and are seen in full, and every known wrong one is caught.

Seeds are fixed and each decision is taken at a family-wise error of 1e-6, so a right build does not
fail by bad luck. The wrong builds are made around the real code.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dp_accounting import PoissonSampledDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from privacy import RELATIONS, Quantiser, UploadNoise, clip
from privacy.auditing import (
    ClientScores,
    gaussian_claim,
    judge_client_unit,
    judge_record_unit,
    play_client_unit,
    play_record_unit,
    sampled_claim,
)
from privacy.auditing.client_unit import oversized_needed
from privacy.errors import NonFiniteUpdate
from tests.privacy._recorded import seeded

DELTA, ERROR = 1e-5, 1e-6


def release_fn(mechanism, dimension, noise):
    """The way of an upload: clipped, noised, quantised, and read back."""
    quantiser = Quantiser(mechanism.reach(dimension), 24)

    def released(vector):
        return quantiser.dequantise(mechanism.protect(vector, quantiser, noise).levels)

    return released


def audit(fn, mechanism, *, dimension, seed=1):
    """Play against a release and hold the outcome against the claim of a mechanism's noise."""
    norm, deviation = mechanism.clipping_norm, mechanism.standard_deviation
    scores = play_client_unit(
        fn,
        clipping_norm=norm,
        dimension=dimension,
        canaries=1000,
        oversized=oversized_needed(norm / deviation, ERROR, 1000),
        relation=mechanism.relation,
        rng=np.random.default_rng(seed),
    )
    sensitivity = (2.0 if mechanism.relation == "replace_one" else 1.0) * norm
    claim = gaussian_claim(sensitivity / deviation, DELTA)
    return judge_client_unit(scores, claim, family_wise_error=ERROR)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("clipping_norm", "noise_multiplier", "dimension"), [(0.3, 1.0, 256), (1.0, 4.0, 1)]
)
def test_a_right_build_passes_and_is_seen_in_full(
    relation, clipping_norm, noise_multiplier, dimension
):
    mechanism = UploadNoise(clipping_norm, noise_multiplier, relation)
    released = release_fn(mechanism, dimension, seeded(5))
    result = audit(released, mechanism, dimension=dimension)
    assert result.passed
    assert result.reasons == ()
    assert result.clip_respected is True
    assert result.is_tight
    factor = 2.0 if relation == "replace_one" else 1.0
    assert result.claimed_mu == pytest.approx(factor / noise_multiplier)
    assert result.estimated_mu == pytest.approx(result.claimed_mu, abs=0.5)
    assert 0.0 < result.epsilon_lower_bound_95 < result.claimed_epsilon


def gaussian_scores(rng, *, mu, canaries, oversized=4):
    """Scores of a perfect Gaussian build with C = 1 under replace_one."""
    included = rng.random(canaries) < 0.5
    noise = (2.0 / mu) * rng.standard_normal(canaries + oversized)
    scores = np.where(included, 1.0, -1.0) + noise[:canaries]
    return ClientScores(scores, included, 1.0 + noise[canaries:], 1.0, "replace_one")


@pytest.mark.slow
def test_right_builds_fail_no_more_often_than_promised():
    mu, rng, runs, error = 0.5, np.random.default_rng(6), 1500, 0.2
    claim = gaussian_claim(mu, DELTA)
    failed = sum(
        not judge_client_unit(
            gaussian_scores(rng, mu=mu, canaries=120), claim, family_wise_error=error
        ).passed
        for _ in range(runs)
    )
    assert 0 < failed <= error * runs


def played(released, norm, dimension, canaries, *, relation="replace_one"):
    return play_client_unit(
        released,
        clipping_norm=norm,
        dimension=dimension,
        canaries=canaries,
        oversized=3,
        relation=relation,
        rng=np.random.default_rng(3),
    )


def test_canaries_are_what_they_are_said_to_be():
    sent = []
    scores = played(lambda vector: sent.append(vector) or vector, 0.5, 131, 128)
    regular, large = np.stack(sent[:128]), np.stack(sent[128:])
    assert np.allclose(np.abs(regular @ regular.T), 0.25 * np.eye(128), atol=1e-12)
    assert np.allclose(np.linalg.norm(large, axis=1), 5.0)
    assert np.allclose(scores.scores, np.where(scores.included, 0.5, -0.5))
    assert np.allclose(scores.oversized, 5.0)
    assert 30 < scores.included.sum() < 98
    assert scores.threshold == 0.0


def test_the_neighbour_under_add_or_remove_is_nothing():
    scores = played(lambda vector: vector, 2.0, 16, 200, relation="add_or_remove_one")
    assert np.allclose(scores.scores, np.where(scores.included, 2.0, 0.0))
    assert scores.threshold == 1.0


def test_rounding_alone_is_no_missing_clip():
    included = np.arange(200) % 2 == 0
    sides, large = np.where(included, 1.0, -1.0), np.array([1 + 1e-9])
    exact = ClientScores(sides, included, large, 1.0, "replace_one")
    assert judge_client_unit(exact, gaussian_claim(1.0, DELTA)).clip_respected


def test_more_noise_than_claimed_passes_but_is_not_tight():
    claimed, real = UploadNoise(1.0, 1.0), UploadNoise(1.0, 2.0)
    result = audit(release_fn(real, 64, seeded(5)), claimed, dimension=64)
    assert result.passed
    assert not result.is_tight
    # With more noise than claimed over-long canaries vary more, which is no missing clip.
    assert result.clip_respected


@pytest.mark.parametrize(("share", "passed"), [(0.0, False), (0.3, False), (0.9, True)])
def test_canaries_that_arrive_in_part_blind_the_audit(share, passed):
    """A mean over clients instead of their sum would make every build look private."""
    mechanism, rng = UploadNoise(1.0, 1.0), np.random.default_rng(5)

    def released(vector):
        norm = max(1.0, float(np.linalg.norm(vector)))
        return share * vector / norm + rng.standard_normal(vector.size)

    result = audit(released, mechanism, dimension=32)
    assert result.passed is passed
    assert passed or "blind" in result.reasons[0]


def test_the_document_is_strict_json():
    mechanism = UploadNoise(1.0, 0.2)
    result = audit(release_fn(mechanism, 64, seeded(5)), mechanism, dimension=64)
    document = json.loads(json.dumps(result.document(), allow_nan=False))
    assert document["mu_interval"][1] == "inf"
    assert math.isinf(result.mu_interval[1])
    assert document["claimed_mu"] == result.claimed_mu == 10.0
    # Ten deviations apart, a thousand canaries prove nothing against twice as many.
    assert document["passed"] is True
    assert document["power"] == 0.0
    assert set(document) == set(result.__dataclass_fields__) | {"is_tight"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"canaries": 99}, "canaries"),
        ({"norm": -1.0}, "clipping_norm"),
        ({"dimension": 0}, "dimension"),
        ({"relation": "zero_out"}, "relation"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        played(lambda vector: vector, **{"norm": 1.0, "dimension": 4, "canaries": 100} | changes)


def test_a_release_of_another_shape_or_without_a_value_is_refused():
    mechanism = UploadNoise(1.0, 1.0)
    with pytest.raises(ValueError, match="a release has 3 coordinates"):
        audit(lambda vector: vector[:3], mechanism, dimension=4)
    with pytest.raises(NonFiniteUpdate):
        audit(lambda vector: vector * np.nan, mechanism, dimension=4)


C, DIMENSION = 1.0, 12
OTHERS = np.random.default_rng(99).standard_normal((20, DIMENSION))
STEP = C * np.eye(DIMENSION)[0]


def trainer(noise_multiplier, *, clips=True):
    """The sum of clipped per-record gradients, with Gaussian noise."""

    def train(include, rng):
        records = np.vstack([OTHERS, 30.0 * STEP]) if include else OTHERS
        total = sum((clip(one, C).vector if clips else one for one in records), np.zeros(1))
        return {"shared": total + noise_multiplier * C * rng.standard_normal(DIMENSION)}

    return train


def audit_record(train, claim, *, canaries=1000, directions=None, seed=0, error=ERROR):
    """Play against a training and hold the outcome against a claim."""
    rng = np.random.default_rng(seed)
    directions = {"shared": STEP} if directions is None else directions
    scores = play_record_unit(train, directions=directions, canaries=canaries, rng=rng)
    return judge_record_unit(scores, claim, family_wise_error=error)


def test_right_training_passes_and_is_seen_in_full():
    noise_multiplier = 0.5
    result = audit_record(trainer(noise_multiplier), gaussian_claim(1 / noise_multiplier, DELTA))
    assert result.passed
    assert result.is_tight
    assert (result.unit, result.clip_respected, result.canaries) == ("record", None, 1000)
    assert 0.0 < result.epsilon_lower_bound_95 < result.claimed_epsilon


def only_canary(noise_multiplier, probability):
    def train(include, rng):
        drawn = include and rng.random() < probability
        return {"shared": drawn * STEP + noise_multiplier * rng.standard_normal(DIMENSION)}

    return train


def test_sampling_that_does_not_happen_is_noticed():
    """The claim is amplified, the canary is in every batch."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(PoissonSampledDpEvent(0.6, GaussianDpEvent(0.5)))
    claim = sampled_claim(
        total_variation=accountant.get_delta(0.0),
        epsilon=accountant.get_epsilon(DELTA),
        delta=DELTA,
    )
    right = audit_record(only_canary(0.5, 0.6), claim, canaries=1500)
    assert right.passed
    assert right.is_tight
    assert not audit_record(only_canary(0.5, 1.0), claim, canaries=1500).passed


def test_halved_noise_and_a_missing_clip_of_one_record_are_noticed():
    assert not audit_record(trainer(0.5), gaussian_claim(1.0, DELTA)).passed
    result = audit_record(trainer(1.0, clips=False), gaussian_claim(1.0, DELTA), canaries=300)
    assert not result.passed
    assert "'shared'" in result.reasons[0]


def test_two_arrays_share_the_error_between_them():
    one = trainer(1.0)

    def two(include, rng):
        shared = one(include, rng)["shared"]
        return {"shared": shared, "copy": shared}

    claim = gaussian_claim(1.0, DELTA)
    alone = audit_record(one, claim, canaries=300, error=0.5e-3)
    directions = {"shared": STEP, "copy": STEP}
    both = audit_record(two, claim, canaries=300, error=1e-3, directions=directions)
    assert both.mu_interval == alone.mu_interval
    assert both.epsilon_lower_bound_95 < alone.epsilon_lower_bound_95


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        ({"other": STEP}, "released are"),
        ({"shared": STEP[:2]}, "its direction has 2"),
        ({"shared": 0 * STEP}, "zero or missing"),
        ({}, "directions"),
    ],
)
def test_directions_that_do_not_fit_are_refused(directions, message):
    with pytest.raises(ValueError, match=message):
        audit_record(trainer(1.0), gaussian_claim(1.0, DELTA), directions=directions)


def test_no_canaries_and_no_numbers_are_refused():
    claim = gaussian_claim(1.0, DELTA)
    with pytest.raises(ValueError, match="canaries"):
        audit_record(trainer(1.0), claim, canaries=0)
    with pytest.raises(NonFiniteUpdate):
        audit_record(lambda include, rng: {"shared": np.nan * STEP}, claim, canaries=5)


CLAIMED = UploadNoise(clipping_norm=0.5, noise_multiplier=2.0, relation="replace_one")


def audit_claimed(fn):
    """Hold a release against what the ledger says of `CLAIMED`: mu is 2C / (2C) = 1."""
    return audit(fn, CLAIMED, dimension=64, seed=23)


def test_noise_halved_or_sensitivity_forgotten_is_caught():
    """Noise calibrated to mu = 1 for C, while under replace_one a client moves it by 2C."""
    halved = UploadNoise(CLAIMED.clipping_norm, CLAIMED.noise_multiplier / 2)
    result = audit_claimed(release_fn(halved, 64, seeded(17)))
    assert result.claimed_mu == 1.0
    assert not result.passed
    assert result.clip_respected
    assert result.estimated_mu == pytest.approx(2.0, abs=0.3)
    # The one-run bound stays below the claim: it could not have decided.
    assert result.epsilon_lower_bound_95 < result.claimed_epsilon


def test_clip_skipped_is_caught():
    noise = seeded(17)
    result = audit_claimed(
        lambda vector: vector + CLAIMED.standard_deviation * noise.standard_normal(vector.size)
    )
    assert not result.passed
    assert result.clip_respected is False
    # Canaries inside the ball see nothing of it.
    assert result.mu_interval[0] <= result.claimed_mu
    assert "clipping norm" in result.reasons[0]


def test_pool_entry_un_noised_is_caught():
    """The sum is noised, the pool gets the clipped vector: both are releases, both are audited."""
    bare = UploadNoise(CLAIMED.clipping_norm, 0.0)
    assert audit_claimed(release_fn(CLAIMED, 64, seeded(17))).passed
    pool = audit_claimed(release_fn(bare, 64, None))
    assert not pool.passed
    assert pool.mu_interval[0] > pool.claimed_mu


def private_step(*, is_personal_private):
    """One noisy step on shared and personal part; C bounds both together."""
    canary = 5.0 * np.ones(8)

    def train(include, rng):
        gradient = clip(canary, 1.0).vector if include else np.zeros(8)
        noised = gradient + rng.standard_normal(8)
        personal = noised[4:] if is_personal_private else (canary[4:] if include else np.zeros(4))
        return {"update": noised[:4], "expert": personal}

    return train


def test_personal_part_not_privatised_under_dp_sgd_is_caught():
    direction = clip(np.ones(8), 1.0).vector
    directions = {"update": direction[:4], "expert": direction[4:]}
    right, result = (
        audit_record(
            private_step(is_personal_private=is_private),
            gaussian_claim(1.0, DELTA),
            directions=directions,
            canaries=400,
            seed=31,
        )
        for is_private in (True, False)
    )
    assert right.passed
    assert not result.passed
    assert result.mu_interval[0] > result.claimed_mu
    # The array that was trained privately is not blamed.
    assert len(result.reasons) == 1
    assert "'expert'" in result.reasons[0]
    assert result.array == result.document()["array"] == "expert"


@pytest.mark.parametrize(("clip_to_noise", "expected"), [(1e-3, 500), (100.0, 1)])
def test_over_long_canaries_are_as_many_as_needed_within_reason(clip_to_noise, expected):
    assert oversized_needed(clip_to_noise, 1e-6, 500) == expected

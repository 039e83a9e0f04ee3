"""The client's game: right builds pass and are seen in full, and the audit knows its limits."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from privacy import RELATIONS, Quantiser, SeededNoise, UploadNoise
from privacy.auditing import ClientScores, gaussian_claim, judge_client_unit, play_client_unit
from privacy.auditing.client_unit import _direction, oversized_needed
from privacy.errors import NonFiniteUpdate
from tests.privacy.auditing._audits import audit_client_unit

DELTA = 1e-5


def release_fn(mechanism, dimension, noise):
    """The way of an upload: clipped, noised, quantised, and read back."""
    quantiser = Quantiser(mechanism.reach(dimension), 24)

    def released(vector):
        return quantiser.dequantise(mechanism.protect(vector, quantiser, noise).levels)

    return released


def audit(fn, mechanism, *, dimension, seed=1, canaries=1000):
    return audit_client_unit(
        fn,
        clipping_norm=mechanism.clipping_norm,
        standard_deviation=mechanism.standard_deviation,
        dimension=dimension,
        canaries=canaries,
        relation=mechanism.relation,
        delta=DELTA,
        rng=np.random.default_rng(seed),
    )


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("clipping_norm", "noise_multiplier", "dimension"), [(0.3, 1.0, 2048), (1.0, 4.0, 1)]
)
def test_a_right_build_passes_and_is_seen_in_full(
    relation, clipping_norm, noise_multiplier, dimension
):
    mechanism = UploadNoise(clipping_norm, noise_multiplier, relation)
    noise = SeededNoise(np.random.default_rng(5))
    result = audit(release_fn(mechanism, dimension, noise), mechanism, dimension=dimension)
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


@pytest.mark.parametrize("dimension", [1, 7, 64])
def test_directions_are_orthonormal(dimension):
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=dimension)
    rows = np.stack([_direction(signs, row) for row in range(dimension)])
    assert np.allclose(rows @ rows.T, np.eye(dimension), atol=1e-12)


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
    scores = played(lambda vector: sent.append(vector) or vector, 0.5, 128, 128)
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
    noise = SeededNoise(np.random.default_rng(5))
    result = audit(release_fn(real, 64, noise), claimed, dimension=64)
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


@pytest.mark.parametrize(("clip_to_noise", "expected"), [(1e-3, 500), (100.0, 1)])
def test_over_long_canaries_are_as_many_as_needed_within_reason(clip_to_noise, expected):
    assert oversized_needed(clip_to_noise, 1e-6, 500) == expected


def test_the_document_is_strict_json():
    mechanism = UploadNoise(1.0, 0.2)
    noise = SeededNoise(np.random.default_rng(5))
    result = audit(release_fn(mechanism, 64, noise), mechanism, dimension=64)
    document = json.loads(json.dumps(result.document(), allow_nan=False))
    assert document["mu_interval"][1] == "inf"
    assert math.isinf(result.mu_interval[1])
    assert document["claimed_mu"] == result.claimed_mu == 10.0
    # Ten deviations apart, a thousand canaries prove nothing against twice as many.
    assert document["passed"] is True
    assert document["power"] == 0.0
    assert set(document) == set(result.__dataclass_fields__) | {"is_tight"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"canaries": 99}, "canaries"),
        ({"clipping_norm": -1.0}, "clipping_norm"),
        ({"dimension": 0}, "dimension"),
        ({"relation": "zero_out"}, "relation"),
        ({"delta": 0.0}, "delta"),
        ({"family_wise_error": 0.0}, "family_wise_error"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(changed, message):
    right = {
        "clipping_norm": 1.0,
        "standard_deviation": 1.0,
        "dimension": 4,
        "canaries": 100,
        "relation": "replace_one",
        "delta": DELTA,
        "rng": np.random.default_rng(0),
    }
    with pytest.raises(ValueError, match=message):
        audit_client_unit(lambda vector: vector, **(right | changed))


def test_a_release_of_another_shape_or_without_a_value_is_refused():
    mechanism = UploadNoise(1.0, 1.0)
    with pytest.raises(ValueError, match="a release has 3 coordinates"):
        audit(lambda vector: vector[:3], mechanism, dimension=4)
    with pytest.raises(NonFiniteUpdate):
        audit(lambda vector: vector * np.nan, mechanism, dimension=4)

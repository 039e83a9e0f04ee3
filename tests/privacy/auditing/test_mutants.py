"""Every known way to get the noise wrong is made here, around the real code, and is caught.

Seeds are fixed and each decision is taken at a family-wise error of 1e-6: a right build does not
fail by bad luck, and each mutant fails in a test of its own.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from privacy import Quantiser, SeededNoise, SystemNoise, UploadNoise, clip
from privacy.auditing import (
    AuditError,
    gaussian_claim,
    verify_distribution,
    verify_independence,
    verify_noise_variance,
)
from tests.privacy.auditing._audits import audit_client_unit, audit_record_unit

DIMENSION, DELTA, ERROR = 512, 1e-5, 1e-6
CLAIMED = UploadNoise(clipping_norm=0.5, noise_multiplier=2.0, relation="replace_one")


def fresh(seed: int = 17) -> SeededNoise:
    return SeededNoise(np.random.default_rng(seed))


def send(vector, mechanism: UploadNoise, noise, *, room: UploadNoise = CLAIMED):
    """What the server reads of an upload."""
    quantiser = Quantiser(20.0 * room.reach(vector.size), 32)
    return quantiser.dequantise(mechanism.protect(vector, quantiser, noise).levels)


def audit(release_fn):
    """Hold a release against what the ledger says of `CLAIMED`: mu is 2C / (2C) = 1."""
    return audit_client_unit(
        release_fn,
        clipping_norm=CLAIMED.clipping_norm,
        standard_deviation=CLAIMED.standard_deviation,
        dimension=DIMENSION,
        canaries=1000,
        relation=CLAIMED.relation,
        delta=DELTA,
        rng=np.random.default_rng(23),
        family_wise_error=ERROR,
    )


def test_the_right_build_passes():
    noise = fresh()
    result = audit(lambda vector: send(vector, CLAIMED, noise))
    assert result.passed
    assert result.is_tight
    assert result.claimed_mu == 1.0
    assert result.power > 0.9999


def test_noise_halved_is_caught():
    noise = fresh()
    halved = UploadNoise(CLAIMED.clipping_norm, CLAIMED.noise_multiplier / 2)
    result = audit(lambda vector: send(vector, halved, noise))
    assert not result.passed
    assert result.clip_respected
    # The one-run bound stays below the claim: it could not have decided.
    assert result.epsilon_lower_bound_95 < result.claimed_epsilon


def test_noise_halved_is_caught_by_its_variance():
    halved = UploadNoise(CLAIMED.clipping_norm, CLAIMED.noise_multiplier / 2)
    released = send(np.zeros(20_000), halved, fresh())
    with pytest.raises(AuditError):
        verify_noise_variance(released, CLAIMED.standard_deviation, ERROR)


def test_clip_skipped_is_caught():
    noise = fresh()
    result = audit(
        lambda vector: vector + CLAIMED.standard_deviation * noise.standard_normal(vector.size)
    )
    assert not result.passed
    assert result.clip_respected is False
    # Canaries inside the ball see nothing of it.
    assert result.mu_interval[0] <= result.claimed_mu
    assert "clipping norm" in result.reasons[0]


def test_clip_by_coordinate_instead_of_norm_is_caught():
    noise = fresh()

    def released(vector):
        inside = np.clip(vector, -CLAIMED.clipping_norm, CLAIMED.clipping_norm)
        return inside + CLAIMED.standard_deviation * noise.standard_normal(vector.size)

    assert audit(released).clip_respected is False


def test_sensitivity_forgotten_is_caught():
    """Noise calibrated to mu = 1 for C, while under replace_one a client moves it by 2C."""
    noise = fresh()
    target_mu = 1.0
    forgotten = UploadNoise(CLAIMED.clipping_norm, 1.0 / target_mu)
    result = audit(lambda vector: send(vector, forgotten, noise))
    assert result.claimed_mu == target_mu
    assert not result.passed
    assert result.estimated_mu == pytest.approx(2 * target_mu, abs=0.3)


def test_same_noise_each_round_is_caught():
    update = np.ones(DIMENSION)
    clipped = clip(update, CLAIMED.clipping_norm).vector
    repeated = np.stack([send(update, CLAIMED, fresh()) - clipped for _ in range(4)])
    with pytest.raises(AuditError, match="correlated"):
        verify_independence(repeated, ERROR)


def test_same_noise_at_every_client_is_caught():
    rounds = []
    for seed in range(3):
        shared = fresh(seed).standard_normal(DIMENSION)
        rounds.append([shared for _ in range(5)])
    with pytest.raises(AuditError, match="vectors 0 and 1"):
        verify_independence(np.array(rounds), ERROR)


def test_fresh_noise_each_round_passes():
    noise = fresh()
    rounds = [send(np.zeros(DIMENSION), CLAIMED, noise) for _ in range(50)]
    assert verify_independence(np.stack(rounds), ERROR) >= ERROR


def test_same_noise_each_round_is_not_seen_by_the_game():
    """Why the direct test exists: on orthonormal directions repeated noise looks fresh."""
    result = audit_client_unit(
        lambda vector: send(vector, CLAIMED, fresh(), room=CLAIMED),
        clipping_norm=CLAIMED.clipping_norm,
        standard_deviation=CLAIMED.standard_deviation,
        dimension=2048,
        canaries=1000,
        relation=CLAIMED.relation,
        delta=DELTA,
        rng=np.random.default_rng(23),
    )
    assert result.passed


def test_pool_entry_un_noised_is_caught():
    """The sum is noised, the pool gets the clipped vector: both are releases, both are audited."""
    noise = fresh()

    def released(vector):
        return {
            "sum": send(vector, CLAIMED, noise),
            "pool": send(vector, UploadNoise(CLAIMED.clipping_norm, 0.0), None),
        }

    assert audit(lambda vector: released(vector)["sum"]).passed
    pool = audit(lambda vector: released(vector)["pool"])
    assert not pool.passed
    assert pool.mu_interval[0] > pool.claimed_mu
    clipped = clip(np.ones(DIMENSION), CLAIMED.clipping_norm).vector
    with pytest.raises(AuditError):
        verify_noise_variance(
            released(np.ones(DIMENSION))["pool"] - clipped, CLAIMED.standard_deviation, ERROR
        )


COHORT, SMALLEST, COLLUDING = 10, 7, 2
TOTAL_DEVIATION = 40.0


def surviving_noise(share_deviation: float, size: int, rng, *, is_integer: bool):
    """What is left in the sum that colluders cannot subtract, if as many drop out as may."""
    honest = rng.standard_normal((SMALLEST - COLLUDING, size)) * share_deviation
    return (np.rint(honest) if is_integer else honest).sum(axis=0)


@pytest.mark.parametrize("is_integer", [False, True])
def test_noise_share_enlarged_for_dropouts_passes(is_integer):
    share = TOTAL_DEVIATION / math.sqrt(SMALLEST - COLLUDING)
    noise = surviving_noise(share, 20_000, np.random.default_rng(3), is_integer=is_integer)
    assert verify_noise_variance(noise, TOTAL_DEVIATION, ERROR) >= ERROR


@pytest.mark.parametrize("is_integer", [False, True])
@pytest.mark.parametrize("counted", [COHORT, SMALLEST])
def test_noise_share_not_enlarged_for_dropouts_is_caught(is_integer, counted):
    """Shares for the whole cohort, or for the smallest one but without its colluders."""
    share = TOTAL_DEVIATION / math.sqrt(counted)
    noise = surviving_noise(share, 20_000, np.random.default_rng(3), is_integer=is_integer)
    with pytest.raises(AuditError, match="variance"):
        verify_noise_variance(noise, TOTAL_DEVIATION, ERROR)


def private_step(*, is_personal_private: bool):
    """One noisy step on shared and personal part; C bounds both together."""
    canary = 5.0 * np.ones(8)

    def train(include: bool, rng: np.random.Generator):
        gradient = clip(canary, 1.0).vector if include else np.zeros(8)
        noised = gradient + rng.standard_normal(8)
        personal = noised[4:] if is_personal_private else (canary[4:] if include else np.zeros(4))
        return {"update": noised[:4], "expert": personal}

    return train


def audit_step(*, is_personal_private: bool):
    direction = clip(np.ones(8), 1.0).vector
    return audit_record_unit(
        private_step(is_personal_private=is_personal_private),
        claim=gaussian_claim(1.0, DELTA),
        directions={"update": direction[:4], "expert": direction[4:]},
        canaries=400,
        rng=np.random.default_rng(31),
        family_wise_error=ERROR,
    )


def test_personal_part_privatised_under_dp_sgd_passes():
    assert audit_step(is_personal_private=True).passed


def test_personal_part_not_privatised_under_dp_sgd_is_caught():
    result = audit_step(is_personal_private=False)
    assert not result.passed
    assert result.mu_interval[0] > result.claimed_mu
    # The array that was trained privately is not blamed.
    assert len(result.reasons) == 1
    assert "'expert'" in result.reasons[0]


def test_noise_of_another_law_is_caught():
    laplace = np.random.default_rng(2).laplace(0.0, CLAIMED.standard_deviation / 2**0.5, 20_000)
    with pytest.raises(AuditError, match="not normal"):
        verify_distribution(laplace, CLAIMED.standard_deviation, ERROR)


def test_the_wires_noise_has_the_promised_law():
    released = send(np.zeros(50_000), CLAIMED, SystemNoise())
    assert verify_distribution(released, CLAIMED.standard_deviation, 1e-9) >= 1e-9

"""Every known way to get the noise wrong is made here, around the real code, and is caught.

Seeds are fixed and each decision is taken at a family-wise error of 1e-6: a right build does not
fail by bad luck, and each mutant fails in a test of its own.
"""

from __future__ import annotations

import numpy as np
import pytest

from privacy import Quantiser, SeededNoise, UploadNoise, clip
from privacy.auditing import gaussian_claim
from tests.privacy.auditing._audits import audit_client_unit, audit_record_unit

DIMENSION, DELTA, ERROR = 512, 1e-5, 1e-6
CLAIMED = UploadNoise(clipping_norm=0.5, noise_multiplier=2.0, relation="replace_one")


def fresh(seed=17):
    return SeededNoise(np.random.default_rng(seed))


def send(vector, mechanism, noise, *, room=CLAIMED):
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


def test_noise_halved_is_caught():
    noise = fresh()
    halved = UploadNoise(CLAIMED.clipping_norm, CLAIMED.noise_multiplier / 2)
    result = audit(lambda vector: send(vector, halved, noise))
    assert not result.passed
    assert result.clip_respected
    # The one-run bound stays below the claim: it could not have decided.
    assert result.epsilon_lower_bound_95 < result.claimed_epsilon


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


def test_sensitivity_forgotten_is_caught():
    """Noise calibrated to mu = 1 for C, while under replace_one a client moves it by 2C."""
    noise = fresh()
    target_mu = 1.0
    forgotten = UploadNoise(CLAIMED.clipping_norm, 1.0 / target_mu)
    result = audit(lambda vector: send(vector, forgotten, noise))
    assert result.claimed_mu == target_mu
    assert not result.passed
    assert result.estimated_mu == pytest.approx(2 * target_mu, abs=0.3)


def test_pool_entry_un_noised_is_caught():
    """The sum is noised, the pool gets the clipped vector: both are releases, both are audited."""
    noise, bare = fresh(), UploadNoise(CLAIMED.clipping_norm, 0.0)
    assert audit(lambda vector: send(vector, CLAIMED, noise)).passed
    pool = audit(lambda vector: send(vector, bare, None))
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


def audit_step(*, is_personal_private):
    direction = clip(np.ones(8), 1.0).vector
    return audit_record_unit(
        private_step(is_personal_private=is_personal_private),
        claim=gaussian_claim(1.0, DELTA),
        directions={"update": direction[:4], "expert": direction[4:]},
        canaries=400,
        rng=np.random.default_rng(31),
        family_wise_error=ERROR,
    )


def test_personal_part_not_privatised_under_dp_sgd_is_caught():
    assert audit_step(is_personal_private=True).passed
    result = audit_step(is_personal_private=False)
    assert not result.passed
    assert result.mu_interval[0] > result.claimed_mu
    # The array that was trained privately is not blamed.
    assert len(result.reasons) == 1
    assert "'expert'" in result.reasons[0]
    assert result.array == result.document()["array"] == "expert"

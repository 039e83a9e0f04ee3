"""An audit in one call: the game and its judgement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from privacy import Relation
from privacy.auditing import (
    AuditResult,
    Claim,
    gaussian_claim,
    judge_client_unit,
    judge_record_unit,
    oversized_needed,
    play_client_unit,
    play_record_unit,
)
from privacy.auditing.client_unit import ReleaseFn
from privacy.auditing.record_unit import TrainFn


def audit_client_unit(
    release_fn: ReleaseFn,
    *,
    clipping_norm: float,
    standard_deviation: float,
    dimension: int,
    canaries: int,
    relation: Relation,
    delta: float,
    rng: np.random.Generator,
    family_wise_error: float = 1e-6,
) -> AuditResult:
    """Play against a release and hold the outcome against the claim of its noise."""
    sensitivity = (2.0 if relation == "replace_one" else 1.0) * clipping_norm
    scores = play_client_unit(
        release_fn,
        clipping_norm=clipping_norm,
        dimension=dimension,
        canaries=canaries,
        oversized=oversized_needed(clipping_norm / standard_deviation, family_wise_error, canaries),
        relation=relation,
        rng=rng,
    )
    claim = gaussian_claim(sensitivity / standard_deviation, delta)
    return judge_client_unit(scores, claim, family_wise_error=family_wise_error)


def audit_record_unit(
    train_fn: TrainFn,
    *,
    claim: Claim,
    directions: Mapping[str, NDArray[np.float64]],
    canaries: int,
    rng: np.random.Generator,
    family_wise_error: float = 1e-6,
) -> AuditResult:
    """Play against a training and hold the outcome against a claim."""
    scores = play_record_unit(train_fn, directions=directions, canaries=canaries, rng=rng)
    return judge_record_unit(scores, claim, family_wise_error=family_wise_error)

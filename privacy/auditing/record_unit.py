"""Audit of training: is one chosen record visible in anything that is released?

The caller trains with and without the canary, a record whose features and label give a gradient
at the clip (longer before clipping, so that a missing clip shows as well). A fair coin chooses for
each run; the score of an array is its projection on the canary's direction in units of its expected
contribution. Every released array is looked at: what is released without having been trained
privately is a release too.

Each run is judged as a fresh mechanism, so runs must not share noise. The offset that the other
records give the score is estimated from extra runs without the canary, before any coin is thrown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy._validate import finite_vector, require_probability
from privacy.auditing.bounds import correct_guesses, epsilon_lower_bound, planned_guesses
from privacy.auditing.claims import AuditResult, Claim
from privacy.auditing.error_rates import (
    DECISIONS,
    ErrorCounts,
    count_errors,
    detection_probability,
    mu_interval,
)

Released = Mapping[str, NDArray[np.float64]]
TrainFn = Callable[[bool, np.random.Generator], Released]
"""Takes whether the canary is in and a generator, returns every released array as a flat vector."""

_CALIBRATION = 10
"""One calibration run for so many canary runs, and never fewer."""

RECORD_THRESHOLD = 0.5
"""Half of the expected contribution, the unit of scores; above it the guess is "in"."""


@dataclass(frozen=True, eq=False)
class RecordScores:
    """The game's scores.

    Attributes:
        arrays: Names of the released arrays.
        scores: Of shape (m, arrays), in units of the canary's expected contribution.
        included: Of shape (m,): whether the canary was in.
    """

    arrays: tuple[str, ...]
    scores: NDArray[np.float64]
    included: NDArray[np.bool_]


@dataclass(frozen=True)
class _Found:
    """What one array tells."""

    name: str
    counts: ErrorCounts
    interval: tuple[float, float]
    epsilon: float


def play_record_unit(
    train_fn: TrainFn,
    *,
    directions: Mapping[str, NDArray[np.float64]],
    canaries: int,
    rng: np.random.Generator,
) -> RecordScores:
    """Train with and without the canary and keep the scores.

    Args:
        train_fn: The real training. Whatever randomness it needs beside that of its noise comes
            from the generator, a fresh child of `rng` for each run.
        directions: For each released array the contribution that the canary is expected to make,
            of the same shape; C u for a sum of clipped gradients.
        canaries: m, the number of judged runs; a tenth more (at least 10) calibrate.
        rng: Draws the coins.

    Raises:
        NonFiniteUpdate: A released array holds NaN or infinity.
        ValueError: Released arrays and directions differ in names or shapes, a direction is zero,
            or a number is out of range.
    """
    if canaries < 1:
        raise ValueError(f"canaries is {canaries}; it must be at least 1")
    vectors = {name: finite_vector(direction) for name, direction in directions.items()}
    lacking = [name for name, vector in vectors.items() if not vector.any()]
    if not vectors or lacking:
        raise ValueError(f"directions are zero or missing for {lacking}; each must point somewhere")
    duals = {name: vector / (vector @ vector) for name, vector in vectors.items()}
    absent = np.zeros(calibration_runs(canaries), dtype=np.bool_)
    offsets = _scores(train_fn, absent, duals, rng).mean(axis=0)
    included = rng.random(canaries) < 0.5
    return RecordScores(tuple(duals), _scores(train_fn, included, duals, rng) - offsets, included)


def judge_record_unit(
    scores: RecordScores, claim: Claim, *, family_wise_error: float = 1e-6
) -> AuditResult:
    """Compare scores with a claim.

    Formal guarantee: if all released arrays of one run together satisfy the claim, this fails with
    probability at most `family_wise_error`, whatever was trained and expected. A wrong direction or
    an offset that varies costs power only. Over several arrays both the decision and the one-run
    bound are corrected by Bonferroni; the result shows the array with the largest lower bound on
    mu.

    Args:
        scores: From `play_record_unit`.
        claim: Of one run: `gaussian_claim` without sampling, else `sampled_claim`.
        family_wise_error: Probability that a right build fails.

    Returns:
        The result; `clip_respected` is None, as a missing clip shows in mu here.
    """
    require_probability(family_wise_error=family_wise_error)
    error = family_wise_error / len(scores.arrays)
    found = [_find(scores, column, claim, error=error) for column in range(len(scores.arrays))]
    worst = max(found, key=lambda one: (one.interval[0], one.counts.estimated_mu))
    reasons = tuple(
        f"in {one.name!r} mu is at least {one.interval[0]:.3g}, above the claimed {claim.mu:.3g}"
        for one in found
        if one.interval[0] > claim.mu
    )
    return AuditResult(
        unit="record",
        claimed_mu=claim.mu,
        estimated_mu=worst.counts.estimated_mu,
        mu_interval=worst.interval,
        epsilon_lower_bound_95=max(one.epsilon for one in found),
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        clip_respected=None,
        canaries=scores.included.size,
        power=detection_probability(
            claim.mu, 2.0 * claim.mu, scores.included.size, family_wise_error=error
        ),
        passed=not reasons,
        reasons=reasons,
        array=worst.name,
    )


def calibration_runs(canaries: int) -> int:
    """Return how many runs without the canary come before so many judged ones."""
    return max(_CALIBRATION, canaries // _CALIBRATION)


def _scores(
    train_fn: TrainFn,
    included: NDArray[np.bool_],
    duals: Mapping[str, NDArray[np.float64]],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return scores of shape (runs, arrays)."""
    scores = np.empty((included.size, len(duals)))
    for run, (is_in, child) in enumerate(zip(included, rng.spawn(included.size), strict=True)):
        released = train_fn(bool(is_in), child)
        if set(released) != set(duals):
            raise ValueError(
                f"released are {sorted(released)}; directions are given for {sorted(duals)}"
            )
        for column, (name, dual) in enumerate(duals.items()):
            vector = finite_vector(released[name])
            if vector.shape != dual.shape:
                raise ValueError(
                    f"{name} has {vector.size} coordinates; its direction has {dual.size}"
                )
            scores[run, column] = float(vector @ dual)
    return scores


def _find(scores: RecordScores, column: int, claim: Claim, *, error: float) -> _Found:
    column_scores, included = scores.scores[:, column], scores.included
    counts = count_errors(column_scores, included, RECORD_THRESHOLD)
    guesses = planned_guesses(claim.mu, included.size, claim.delta)
    epsilon = epsilon_lower_bound(
        canaries=included.size,
        guesses=guesses,
        correct=correct_guesses(column_scores, included, RECORD_THRESHOLD, guesses),
        delta=claim.delta,
        confidence=1.0 - 0.05 / len(scores.arrays),
    )
    interval = mu_interval(counts, error / DECISIONS, is_gaussian=claim.is_gaussian)
    return _Found(scores.arrays[column], counts, interval, epsilon)

"""Audit of one client's release: clip, noise, quantise and back, played as a guessing game.

Canary i is the vector C u_i against its neighbour (-C u_i under replace_one, zero under
add_or_remove_one), chosen by a fair coin and sent through the real code on its own; the score is
the release's inner product with u_i. The directions are rows of a cosine transform with random
signs: orthonormal, dense, and made one at a time, so no matrix is held. At most `dimension` of them
exist; more canaries begin the directions anew, which is sound because each has its own call.

Where clipping adapts, a release has one coordinate more, a flag of +-b that says whether the update
had to be clipped. Then the neighbour of C u is -10 C u: the clip makes it as long, and its flag is
the opposite one, so that the two releases are as far apart as the ledger's sqrt(C^2 + b^2) allows.

Further canaries of norm 10 C ask whether clipping happens: if it does, they move the release as far
as those of norm C. A last test asks whether the canaries reach the release at all. Both compare
means by a t-test whose variance comes from the canaries themselves, so more noise than promised is
not mistaken for either. They are exact for Gaussian scores of equal variance.

What this cannot see: noise that repeats between calls (projections on orthonormal directions of one
repeated Gaussian vector are as independent as fresh noise), and mistakes outside `release_fn`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import idct
from scipy.special import ndtri
from scipy.stats import t as student_t

from privacy._validate import finite_vector, require_member, require_positive, require_probability
from privacy.auditing.bounds import (
    GaussianBound,
    correct_guesses,
    epsilon_lower_bound,
    gaussian_bound,
    planned_guesses,
)
from privacy.auditing.claims import AuditResult, Claim
from privacy.auditing.error_rates import DECISIONS, count_errors, detection_probability, mu_interval
from privacy.events import RELATIONS, Relation

ReleaseFn = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Takes an update of shape (d,), returns what is released of it, of the same shape."""

FEWEST_CANARIES = 100
"""With fewer, one of the two kinds may be missing and the t-test has no variance."""

_OVERSIZE = 10.0
_INSIDE = 1.0 - 1e-6
"""Times C: an update that is not clipped, though it travels in float32."""
_BLIND = 0.5
_POWER = 0.999
_FLOOR = 0.01
"""Smallest spread, in units of C, that a t-test credits: rounding alone is not a moved mean."""


@dataclass(frozen=True, eq=False)
class ClientScores:
    """The game's scores.

    Attributes:
        scores: Of shape (m,): inner product of release and direction, in units of the update.
        included: Of shape (m,): whether the canary was C u, not its neighbour.
        oversized: Of shape (k,): scores of canaries of norm 10 C.
        clipping_norm: C; with a flag, that of update and flag together.
        relation: What the neighbour was.
    """

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    oversized: NDArray[np.float64]
    clipping_norm: float
    relation: Relation

    @property
    def threshold(self) -> float:
        """Half-way between the two expected scores; above it the guess is "included"."""
        return 0.0 if self.relation == "replace_one" else self.clipping_norm / 2.0

    @property
    def distance(self) -> float:
        """Between the two expected scores: C without a neighbour and 2C with an opposite one."""
        # The threshold lies half-way.
        return 2.0 * (self.clipping_norm - self.threshold)


def play_client_unit(
    release_fn: ReleaseFn,
    *,
    clipping_norm: float,
    dimension: int,
    canaries: int,
    oversized: int,
    relation: Relation,
    rng: np.random.Generator,
    flag: float | None = None,
) -> ClientScores:
    """Send the canaries through `release_fn` and keep their scores.

    Args:
        release_fn: The real code, one release a call with fresh noise, in the units of the update:
            a short vector comes back as itself plus noise.
        clipping_norm: C.
        dimension: d, at least 1.
        canaries: m, at least 100; see `canaries_needed`.
        oversized: How many canaries of norm 10 C, at least 1.
        relation: What the neighbour of a canary is.
        rng: Draws coins and directions, never the noise. It must not be the noise's own generator.
        flag: b, where a release ends with the clip flag. It is looked at under replace_one only:
            the neighbour that sends nothing has none, and the code cannot be made to send nothing.

    Raises:
        NonFiniteUpdate: A release holds NaN or infinity.
        ValueError: A number is out of range, or a release has another shape than the update.
    """
    require_positive(clipping_norm=clipping_norm, dimension=dimension, oversized=oversized)
    require_member(RELATIONS, relation=relation)
    if canaries < FEWEST_CANARIES:
        raise ValueError(f"canaries is {canaries}; it must be at least {FEWEST_CANARIES}")
    seen = 0.0 if flag is None or relation != "replace_one" else flag
    present, opposite = (1.0, -1.0) if flag is None else (_INSIDE, -_OVERSIZE)
    included = rng.random(canaries) < 0.5
    lengths = np.where(included, present, opposite if relation == "replace_one" else 0.0)
    factors = np.concatenate([lengths, np.full(oversized, _OVERSIZE)])
    norm = math.hypot(clipping_norm, seen)
    signs = rng.choice([-1.0, 1.0], size=dimension)
    order = rng.permutation(dimension)
    length = dimension + int(flag is not None)
    scores = np.empty(factors.size)
    for index, factor in enumerate(factors):
        # One of d orthonormal vectors, dense but for the smallest d.
        unit = np.zeros(signs.size)
        unit[int(order[index % dimension])] = 1.0
        direction = signs * np.asarray(idct(unit, norm="ortho"), dtype=np.float64)
        released = finite_vector(release_fn(factor * clipping_norm * direction))
        if released.size != length:
            raise ValueError(f"a release has {released.size} coordinates; it must have {length}")
        along = float(released[:dimension] @ direction)
        scores[index] = (clipping_norm * along + seen * float(released[-1])) / norm
    return ClientScores(scores[:canaries], included, scores[canaries:], norm, relation)


def judge_client_unit(
    scores: ClientScores, claim: Claim, *, family_wise_error: float = 1e-6
) -> AuditResult:
    """Compare scores with a claim.

    The build fails where the lower end of the interval is above the claimed mu, where clipping is
    missing, and where the audit is blind: canaries and their neighbours less than half as far apart
    as they were sent. Without the last one a wrongly wired audit would always pass.

    Formal guarantee: a build whose release of any two neighbours is mu-GDP with the claimed mu, and
    whose score is Gaussian of equal variance for all canaries, fails with probability at most
    `family_wise_error`. The Gaussian part is needed for the over-long canaries and for noticing a
    blind audit only.

    Args:
        scores: From `play_client_unit`.
        claim: What one release is said to cost.
        family_wise_error: Probability that a right build fails, shared evenly by the decisions.
    """
    require_probability(family_wise_error=family_wise_error)
    alpha = family_wise_error / DECISIONS
    counts = count_errors(scores.scores, scores.included, scores.threshold)
    interval = mu_interval(counts, alpha, is_gaussian=claim.is_gaussian)
    clip_respected = _clip_p_value(scores) >= alpha
    is_blind = _blind_p_value(scores) < alpha
    canaries = scores.scores.size
    guesses = planned_guesses(claim.mu, canaries, claim.delta)
    correct = correct_guesses(scores.scores, scores.included, scores.threshold, guesses)
    low = interval[0]
    found = []
    if low > claim.mu:
        found.append(f"mu is at least {low:.3g}, above the claimed {claim.mu:.3g}")
    if not clip_respected:
        found.append("an update of 10 times the clipping norm moves the release too far")
    if is_blind:
        found.append("the audit is blind: canaries do not reach the release, or only in part")
    reasons = tuple(found)
    gaussian: GaussianBound | None = None
    if claim.is_gaussian:
        inside, outside = scores.scores[scores.included], scores.scores[~scores.included]
        gaussian = gaussian_bound(inside, outside, claimed_mu=claim.mu, delta=claim.delta)
    return AuditResult(
        unit="client",
        claimed_mu=claim.mu,
        estimated_mu=counts.estimated_mu,
        mu_interval=interval,
        epsilon_lower_bound_95=epsilon_lower_bound(
            canaries=canaries, guesses=guesses, correct=correct, delta=claim.delta
        ),
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        clip_respected=clip_respected,
        canaries=canaries,
        power=detection_probability(
            claim.mu, 2.0 * claim.mu, canaries, family_wise_error=family_wise_error
        ),
        passed=not reasons,
        reasons=reasons,
        gaussian=gaussian,
    )


def oversized_needed(clip_to_noise: float, family_wise_error: float, canaries: int) -> int:
    """Return how many over-long canaries show a missing clip with probability 0.999.

    Args:
        clip_to_noise: C over the standard deviation of the noise.
        family_wise_error: Of the audit.
        canaries: m, which is also the most that are sent.
    """
    require_probability(family_wise_error=family_wise_error)
    deviates = -float(ndtri(family_wise_error / DECISIONS)) + float(ndtri(_POWER))
    needed = (deviates / ((_OVERSIZE - 1.0) * clip_to_noise)) ** 2
    return max(1, min(canaries, math.ceil(needed)))


def _clip_p_value(scores: ClientScores) -> float:
    """Return one-sided t-test: do over-long canaries score above those of norm C?"""
    inside = scores.scores[scores.included]
    spread, freedom = _spread(scores)
    error = spread * math.sqrt(1.0 / scores.oversized.size + 1.0 / inside.size)
    return float(student_t.sf((scores.oversized.mean() - inside.mean()) / error, freedom))


def _blind_p_value(scores: ClientScores) -> float:
    """Test one-sided whether canaries and neighbours are too near to each other."""
    inside, outside = scores.scores[scores.included], scores.scores[~scores.included]
    spread, freedom = _spread(scores)
    error = spread * math.sqrt(1.0 / inside.size + 1.0 / outside.size)
    distance = inside.mean() - outside.mean()
    return float(student_t.cdf((distance - _BLIND * scores.distance) / error, freedom))


def _spread(scores: ClientScores) -> tuple[float, int]:
    """Return standard deviation within the two kinds of canary, and its degrees of freedom."""
    kinds = (scores.scores[scores.included], scores.scores[~scores.included])
    squares = sum(float(np.square(kind - kind.mean()).sum()) for kind in kinds)
    freedom = scores.scores.size - 2
    return max(math.sqrt(squares / freedom), _FLOOR * scores.clipping_norm), freedom

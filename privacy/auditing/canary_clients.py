"""Canaries in a run: clients whose part of every sum is known, and the bound that they give.

A canary client uploads the same vector of norm C in every round, along a direction that nobody else
knows, with the sign of a secret coin (under `add_or_remove_one`: that vector, or zero). Its
neighbour is the other side of the coin. Directions are rows of a cosine transform with random
signs, hence orthonormal; several canaries may share one, and its coin.

All canaries together move a sum along one vector of length L, in units of C: L is sqrt(m) where m
of them are in and each has a direction of its own, and more where they share some. What is released
is looked at along that vector and across it. Across it are d - 1 independent looks at the noise, so

    t = (along) / sqrt(|across|^2 / (d - 1))

follows Student's noncentral law, whose noncentrality is L C / sd: L / f times the mu of one client,
who moves a sum by f C, where f is 2 under `replace_one` and 1 under `add_or_remove_one`. The
mu at which so large a t has probability 1 - confidence is an exact lower bound where noise is
normal and alike in all directions. That canaries which share a direction show more is no favour:
if replacing one client is mu-GDP then replacing k is k mu-GDP (Dong, Roth and Su 2022, Theorem
4), so what the group shows, divided by k, is a bound for one.

What other clients upload is noise to this look, and makes the bound smaller.

Sources: canaries of random directions in one run are Andrew et al. 2023, One-shot empirical privacy
estimation for federated learning; the bound from guessed coins is Steinke, Nasr and Jagielski 2023
(`bounds`), which holds for any mechanism and needs a direction for each canary.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct
from scipy.stats import norm

from privacy._validate import require_member, require_positive, require_probability
from privacy.accounting.gaussian import epsilon_at
from privacy.auditing.bounds import (
    CONFIDENCE,
    LARGEST_MU,
    correct_guesses,
    epsilon_lower_bound,
    noncentrality,
    planned_guesses,
)
from privacy.events import RELATIONS, Relation, sensitivity_over_norm

KEY_BYTES = 32
CERTAINTY = 1.0 - 1e-6
"""With which a claim is refuted; 95% is passed by one right run in twenty."""


_BLIND = 0.5


def new_key() -> bytes:
    """Draw what coins and directions follow from, from the operating system's entropy."""
    return secrets.token_bytes(KEY_BYTES)


def commitment_to(key: bytes) -> str:
    """Return what fixes a key beforehand and tells nothing of it: its SHA-256, as hex."""
    return hashlib.sha256(key).hexdigest()


@dataclass(frozen=True)
class Canaries:
    """The canaries of one run: the direction of each, and whether its coin let it take part.

    Attributes:
        key: 32 secret bytes, from which coins and directions follow.
        number: N, canary clients.
        directions: How many they have among them; N is a multiple of it.
        dimension: d, coordinates of an upload, at least 2 and no fewer than directions.
        relation: What the neighbour of a canary is.
    """

    key: bytes
    number: int
    directions: int
    dimension: int
    relation: Relation

    def __post_init__(self) -> None:
        """Refuse canaries that cannot be told apart."""
        require_positive(number=self.number, directions=self.directions)
        require_member(RELATIONS, relation=self.relation)
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"key has {len(self.key)} bytes; it must have {KEY_BYTES}")
        if self.number % self.directions:
            raise ValueError(f"number is {self.number}; it must be a multiple of {self.directions}")
        if not max(2, self.directions) <= self.dimension:
            raise ValueError(
                f"dimension is {self.dimension}; it must be at least 2 and the {self.directions} "
                "directions"
            )

    @property
    def together(self) -> int:
        """Canaries of one direction."""
        return self.number // self.directions

    @property
    def sides(self) -> NDArray[np.float64]:
        """What each direction's canaries send along it, in units of C: of shape (directions,)."""
        return self._drawn[0]

    def upload(self, canary: int) -> NDArray[np.float64]:
        """Return what a canary, numbered from 0, sends in every round, in units of C, (d,)."""
        which = canary % self.directions
        unit = np.zeros(self.dimension)
        unit[self._rows[which]] = self.sides[which]
        return self._signs * np.asarray(idct(unit, norm="ortho"), np.float64)

    def scores(self, released: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a vector's coordinates along all d directions, those of canaries first."""
        every = np.asarray(dct(self._signs * released, norm="ortho"), np.float64)
        return every[self._drawn[2]]

    @property
    def _signs(self) -> NDArray[np.float64]:
        return self._drawn[1]

    @property
    def _rows(self) -> NDArray[np.int64]:
        return self._drawn[2]

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        rng = np.random.default_rng(int.from_bytes(self.key, "big"))
        out = -1.0 if self.relation == "replace_one" else 0.0
        sides = np.where(rng.random(self.directions) < 0.5, 1.0, out)
        signs = rng.choice([-1.0, 1.0], size=self.dimension)
        return sides, signs, rng.permutation(self.dimension)


@dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """What a run's canaries show.

    Attributes:
        epsilon: A lower bound at 95% on that of one client, if noise is normal.
        ceiling: What it is on average (the median) of a run that is exactly as claimed, with these
            canaries, in this dimension, and nobody else's uploads in the way.
        estimate: Of mu, without confidence.
        is_refuted: Whether the claimed mu is refuted at 1 - 1e-6.
        is_blind: Whether it is as certain that less than half of what canaries sent is there: then
            all else says nothing.
        guessed: The bound at 95% from guessed coins, for any mechanism; None where canaries share
            directions.
        length: L, of all that canaries send in a round together, over C.
        deviation: Of what is released along one direction, in its units.
    """

    epsilon: float
    ceiling: float
    estimate: float
    is_refuted: bool
    is_blind: bool
    guessed: float | None
    length: float
    deviation: float


def canary_bound(
    canaries: Canaries,
    released: NDArray[np.float64],
    *,
    claimed_mu: float,
    delta: float,
    sent: float,
) -> CanaryBound:
    """Bound epsilon from all that a run has released.

    Args:
        canaries: Whose coins are open now.
        released: The sum of all rounds' sums, of shape (d,).
        claimed_mu: Of the whole run, for one client.
        delta: At which epsilon is stated.
        sent: C times the rounds: how far one canary has moved `released`. The bound does not count
            on it.

    Raises:
        ValueError: A number is out of range, or the vector has another shape.
    """
    require_positive(claimed_mu=claimed_mu, sent=sent)
    require_probability(delta=delta)
    if released.shape != (canaries.dimension,) or not np.isfinite(released).all():
        raise ValueError(f"released is not a finite vector of {canaries.dimension} coordinates")
    every, factor = canaries.scores(released), sensitivity_over_norm(canaries.relation)
    weights = canaries.together * canaries.sides
    length, freedom = float(np.linalg.norm(weights)), canaries.dimension - 1
    own = every[: canaries.directions]
    along = float(own @ weights) / length if length else 0.0
    # By Pythagoras, but never below what rounding leaves of nothing.
    across = max(float(every @ every) - along**2, 0.0)
    deviation = math.sqrt(across / freedom)
    # Without any noise there is nothing that could be claimed.
    seen = along / deviation if deviation else math.copysign(math.inf, along) if along else 0.0

    def lowest(confidence: float) -> float:
        if not length:
            return 0.0
        return min(noncentrality(seen, freedom, confidence) * factor / length, LARGEST_MU)

    low = lowest(CONFIDENCE)
    return CanaryBound(
        epsilon=epsilon_at(low, delta) if low > 0.0 else 0.0,
        ceiling=canary_ceiling(
            claimed_mu,
            delta,
            length=length,
            dimension=canaries.dimension,
            relation=canaries.relation,
        ),
        estimate=seen * factor / length if length else 0.0,
        is_refuted=lowest(CERTAINTY) > claimed_mu,
        is_blind=along - _BLIND * sent * length < -float(norm.ppf(CERTAINTY)) * deviation,
        guessed=_guessed(canaries, own, claimed_mu, delta, sent=sent),
        length=length,
        deviation=deviation,
    )


def canary_ceiling(
    mu: float, delta: float, *, length: float, dimension: int, relation: Relation
) -> float:
    """Return the epsilon that canaries show of a run that is mu-GDP: its median.

    Args:
        mu: Of the run, for one client.
        delta: At which epsilon is stated.
        length: L, of all that canaries send in a round together, over C.
        dimension: d, at least 2.
        relation: What the neighbour of a canary is.

    Raises:
        ValueError: A number is out of range.
    """
    require_positive(mu=mu, dimension=dimension - 1)
    if not length > 0.0:
        return 0.0
    # Student's law with a noncentrality has the deviation sqrt(1 + ncp^2 / 2 n).
    width = math.hypot(
        sensitivity_over_norm(relation) / length, mu / math.sqrt(2.0 * (dimension - 1))
    )
    low = mu - float(norm.isf(1.0 - CONFIDENCE)) * width
    return epsilon_at(low, delta) if low > 0.0 else 0.0


def _guessed(
    canaries: Canaries, scores: NDArray[np.float64], mu: float, delta: float, *, sent: float
) -> float | None:
    if canaries.together > 1:
        return None
    number = canaries.number
    guesses = planned_guesses(mu, number, delta)
    threshold = 0.0 if canaries.relation == "replace_one" else sent / 2.0
    correct = correct_guesses(scores, canaries.sides > 0.0, threshold, guesses)
    return epsilon_lower_bound(canaries=number, guesses=guesses, correct=correct, delta=delta)

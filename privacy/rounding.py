"""Conditional randomised rounding: a vector goes to the integer grid, and its norm stays bounded.

Randomised rounding (up with the probability of the fractional part) has no bias but can lengthen a
vector by sqrt(d). Repeated until the norm is below a bound that it meets with probability at least
1 - beta, it lengthens it hardly at all (Kairouz, Liu and Steinke 2021, Algorithm 1 and Proposition
22).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_positive, require_ring_bits
from privacy.clipping import ClippedUpdate, clip
from privacy.errors import SensitivityViolation
from privacy.events import Relation
from privacy.group_counts import GroupCounts
from privacy.integer_noise.tables import draw_words
from privacy.randomness import Entropy, NoiseSource, require_noise_source

_ROOT_OF_TWICE_LOG = 1.0
"""sqrt(2 ln(1 / beta)) at beta = exp(-1/2), the paper's own choice."""

_TRIES = 200
"""By the proposition, as many fail with probability below 0.607^200 = 5e-44."""

LARGEST_NORM = 2.0**30
"""In steps of the grid; squared norms stay below 2^62."""


def squared_norm_after_rounding(norm: float, dimension: int) -> int:
    """Return the bound on the squared L2 norm of a rounded vector, in steps of the grid.

    It is min((c + sqrt(d))^2, c^2 + d/4 + sqrt(2 ln(1/beta)) (c + sqrt(d)/2)) with beta =
    exp(-1/2), rounded down to an integer, as squared norms of integer vectors are.

    Args:
        norm: c, bound on the L2 norm before rounding, in steps of the grid.
        dimension: d.

    Raises:
        ValueError: An argument is not positive, or `norm` is above 2^30.
    """
    require_positive(norm=norm, dimension=dimension)
    if norm > LARGEST_NORM:
        raise ValueError(f"norm is {norm} steps of the grid; it must be at most 2^30")
    always = (norm + math.sqrt(dimension)) ** 2
    likely = norm**2 + dimension / 4 + _ROOT_OF_TWICE_LOG * (norm + math.sqrt(dimension) / 2)
    return math.floor(min(always, likely))


def round_conditionally(
    entropy: Entropy, vector: NDArray[np.float64], norm: float
) -> NDArray[np.int64]:
    """Return round every coordinate up or down at random, until the whole vector is short enough.

    Formal guarantee: the squared L2 norm of what is returned is at most
    `squared_norm_after_rounding(norm, n)`, checked in exact integers, whatever `entropy` gives.
    Privacy rests on that alone. Coordinates are right on average but for the condition, and for
    2^-32 of a step, as 32 bits decide each.

    Args:
        entropy: Source of uniform bytes, four a coordinate and try.
        vector: Finite, shape (n,), in steps of the grid, of norm at most `norm`.
        norm: c.

    Returns:
        int64 of shape (n,), each coordinate within one step of its own.

    Raises:
        SensitivityViolation: No try was short enough, as the vector is longer than `norm`.
    """
    if vector.size == 0:
        return np.zeros(0, dtype=np.int64)
    limit = squared_norm_after_rounding(norm, vector.size)
    # A coordinate beyond the norm cannot become short, and its square might overflow.
    tries = _TRIES if np.abs(vector).max() <= norm + 1.0 else 0
    floor = np.floor(vector)
    fraction = vector - floor
    for _ in range(tries):
        up = draw_words(entropy, vector.size, "<u4") * 2.0**-32 < fraction
        rounded = (floor + up).astype(np.int64)
        if int(np.dot(rounded, rounded)) <= limit:
            return np.asarray(rounded)
    raise SensitivityViolation(
        f"no try of rounding has a norm of {math.sqrt(limit):g} steps of the grid or less; the "
        "vector was longer than the clipping norm before"
    )


class OnGrid(Protocol):
    """A mechanism on the integer grid, as far as clipping and rounding go."""

    @property
    def clipping_norm(self) -> float:
        """C, in the units of the update."""
        ...

    @property
    def scale(self) -> float:
        """Steps of the grid per unit of the update."""
        ...

    @property
    def scaled_norm(self) -> float:
        """C in steps of the grid."""
        ...


class RoundedOnGrid(OnGrid, Protocol):
    """A mechanism that rounds there what a client made, and counts of groups beside it."""

    @property
    def counts(self) -> GroupCounts | None:
        """What a vector ends with where clients are in groups, else None."""
        ...


def clip_to_grid(
    vector: NDArray[Any], mechanism: RoundedOnGrid, *, ring_bits: int, noise: NoiseSource
) -> tuple[ClippedUpdate, NDArray[np.int64]]:
    """Clip an update and round it to the grid: what every mechanism there does before its noise.

    Counts of groups are neither clipped nor rounded; they are whole steps beside what is.

    Args:
        vector: The update as one flat vector of shape (n,).
        mechanism: Norm and grid.
        ring_bits: Of the ring that the result is for, 2 to 64.
        noise: Where the rounding's coins come from.

    Returns:
        The clipped update, and integers as `round_conditionally` gives them.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        SensitivityViolation: A client counts itself otherwise than once, or in no group.
        TypeError: `noise` is not a noise source (a bare generator is none).
        ValueError: `ring_bits` is out of range.
    """
    require_ring_bits(ring_bits)
    require_noise_source(noise)
    norm, counts = mechanism.clipping_norm, mechanism.counts
    if counts is not None:
        vector, told = counts.split(vector)
    clipped = clip(vector, norm)
    grid = clipped.vector * mechanism.scale
    rounded = round_conditionally(noise.uniform_bytes, grid, mechanism.scaled_norm)
    if counts is not None:
        rounded = np.append(rounded, counts.on_grid(told, norm, mechanism.scaled_norm))
    return clipped, rounded


def charged_after_rounding(mechanism: RoundedOnGrid, dimension: int, relation: Relation) -> float:
    """Return the ledger's C of one upload, in the units of the update.

    Args:
        mechanism: Norm and grid.
        dimension: Coordinates of the upload, counts included.
        relation: What a neighbour is.
    """
    counts, scaled = mechanism.counts, mechanism.scaled_norm
    rounded = dimension if counts is None else dimension - counts.groups
    norm = math.sqrt(squared_norm_after_rounding(scaled, rounded))
    if counts is not None:
        norm = counts.charged_norm(norm, counts.steps(scaled), relation)
    return norm / mechanism.scale


def in_ring(integers: NDArray[np.int64], ring_bits: int) -> NDArray[np.uint64]:
    """Return integers as elements of the ring modulo 2^ring_bits, negative ones from its top."""
    # Casting wraps modulo 2^64, of which every ring here is a quotient.
    return np.asarray(integers.astype(np.uint64) & np.uint64(2**ring_bits - 1))

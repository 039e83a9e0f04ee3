"""From real numbers to the integer grid: conditional rounding, and the counts of groups.

Conditional rounding keeps the norm bounded. Randomised rounding (up with the probability of the
fractional part) has no bias but can lengthen a vector by sqrt(d). Repeated until the norm is below
a bound that it meets with probability at least 1 - beta, it lengthens it hardly at all (Kairouz,
Liu and Steinke 2021, Algorithm 1 and Proposition 22).

`GroupCounts` serve clients that are, in secret, in one of K groups. A client's vector has K blocks,
of which its update, clipped to C, is in one, with zeros elsewhere; K counts follow, b in the
block's own and zero elsewhere. Only noised sums of such vectors are ever seen. How far a neighbour
moves one, in L2:

- replace_one, both in one block: the count cancels, and updates are at most 2C apart;
- replace_one, in two blocks: sqrt(|u|^2 + |u'|^2 + 2 b^2), at most sqrt(2 C^2 + 2 b^2);
- replace_one, one of them failed and all zeros: at most sqrt(C^2 + b^2);
- add_or_remove_one: sqrt(C^2 + b^2).

So with b <= C the sensitivity under replace_one is 2C, that of the update alone: counts are free.
If other coordinates are clipped together with the blocks, to norm J (a clip flag, whose sign may
change as well), the bound of the second case is sqrt(4 J^2 + 2 b^2), and counts cost a factor of
sqrt(1 + b^2 / 2 J^2).

On the integer grid the same holds with R, the bound on a rounded update's norm, in place of C: the
update is rounded by itself, and b is a whole number of steps, at most C and hence at most R. A
count is therefore never rounded at random.

`Cones` serve uploads whose inner products are never negative. If |v| <= R for all of them, then
|v - v'|^2 = |v|^2 + |v'|^2 - 2 v.v' <= 2 R^2: the sensitivity under replace_one is sqrt(2) R, and
under add_or_remove_one R. The integers themselves must have this property, so they are rounded
towards the cone's inside, never at random. Counts of groups are coordinates of such a vector like
others.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy._validate import (
    finite_vector,
    require_member,
    require_not_negative,
    require_positive,
)
from privacy.clipping import ClippedUpdate, clip
from privacy.errors import CalibrationError, SensitivityViolation
from privacy.events import RELATIONS, Relation
from privacy.integer_noise import draw_words
from privacy.randomness import Entropy, NoiseSource, require_noise_source

_ROOT_OF_TWICE_LOG = 1.0
"""sqrt(2 ln(1 / beta)) at beta = exp(-1/2), the paper's own choice."""

_TRIES = 200
"""By the proposition, as many fail with probability below 0.607^200 = 5e-44."""

LARGEST_NORM = 2.0**30
"""In steps of the grid; squared norms stay below 2^62."""

SMALLEST_SCALED_NORM = 1_000.0
"""In steps of the grid. On a coarser one, rounding would lengthen the vector noticeably."""


def squared_norm_after_rounding(norm: float, dimension: int) -> int:
    """Return the bound on the squared L2 norm of a rounded vector, in steps of the grid.

    It is min((c + sqrt(d))^2, c^2 + d/4 + sqrt(2 ln(1/beta)) (c + sqrt(d)/2)) with beta =
    exp(-1/2), rounded down to an integer, as squared norms of integer vectors are.

    `norm` is c, the bound before rounding, in steps of the grid. `ValueError` if an argument is not
    positive, or `norm` is above 2^30.
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
    """Round every coordinate up or down at random, until the whole vector is short enough.

    Formal guarantee: the squared L2 norm of what is returned is at most
    `squared_norm_after_rounding(norm, n)`, checked in exact integers, whatever `entropy` gives.
    Privacy rests on that alone. Rounded coordinates are almost unbiased: the condition on the norm
    adds a small bias, and the 32 random bits for each coordinate add at most 2^-32 of a step.

    `vector` is finite, shape (n,), in steps of the grid, of norm at most `norm`; each coordinate
    stays within one step of its own. `entropy` gives four bytes a coordinate and try.
    `SensitivityViolation` if no try was short enough, as the vector is longer than `norm`.
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


def clip_to_grid(
    vector: NDArray[Any], mechanism: OnGrid, *, ring_bits: int, noise: NoiseSource
) -> tuple[ClippedUpdate, NDArray[np.int64]]:
    """Clip an update and round it to the grid: what every mechanism there does before its noise.

    With cones the update is first projected into them. Counts of groups are neither clipped nor
    rounded; they are whole steps beside what is. `noise` gives the rounding's coins.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        SensitivityViolation: A client counts itself otherwise than once, or in no group.
        TypeError: `noise` is not a noise source (a bare generator is not one).
        ValueError: `ring_bits` is out of range.
    """
    if not 2 <= ring_bits <= 64:
        raise ValueError(f"ring_bits is {ring_bits}; it must be from 2 to 64")
    require_noise_source(noise)
    norm, counts, cones = mechanism.clipping_norm, mechanism.counts, mechanism.cones
    if counts is not None:
        vector, told = counts.split(vector)
    clipped = clip(vector if cones is None else cones.project(vector), norm)
    grid = clipped.vector * mechanism.scale
    if cones is None:
        rounded = round_conditionally(noise.uniform_bytes, grid, mechanism.scaled_norm)
    else:
        rounded = cones.rounded(grid, mechanism.scaled_norm)
    if counts is not None:
        rounded = np.append(rounded, counts.on_grid(told, norm, mechanism.scaled_norm))
    return clipped, rounded


def in_ring(integers: NDArray[np.int64], ring_bits: int) -> NDArray[np.uint64]:
    """Return integers as elements of the ring modulo 2^ring_bits, negative ones from its top."""
    # Casting wraps modulo 2^64, of which every ring here is a quotient.
    return np.asarray(integers.astype(np.uint64) & np.uint64(2**ring_bits - 1))


_INSIDE = 1.0 - 2.0**-40
"""Factor before rounding towards zero, so that no error of a product leads out of a bound."""


@dataclass(frozen=True)
class Cones:
    """Rows (h, s) with h >= |s|: second-order cones. Of width 1: coordinates of at least zero.

    Two rows of one cone have h h' + s.s' >= h h' - |s| |s'| >= 0, so two whole vectors have an
    inner product of at least zero.

    Attributes:
        width: Coordinates of a row, at least 1; h is the first.
    """

    width: int

    def __post_init__(self) -> None:
        """Refuse a width below one."""
        require_positive(width=self.width)

    def project(self, vector: NDArray[Any]) -> NDArray[np.float64]:
        """Return rows with h raised to zero and s shortened to h; what is inside stays.

        `NonFiniteUpdate` for NaN and infinity, also where the projection would hide them.
        """
        rows = finite_vector(vector).reshape(-1, self.width).copy()
        head = np.maximum(rows[:, 0], 0.0)
        length = np.linalg.norm(rows[:, 1:], axis=1)
        rows[:, 1:] *= (head / np.maximum(np.maximum(length, head), np.finfo(float).tiny))[:, None]
        rows[:, 0] = head
        return rows.ravel()

    def rounded(self, grid: NDArray[np.float64], norm: float) -> NDArray[np.int64]:
        """Round rows inside the cones towards zero, to integers that are inside as well.

        h becomes the integer below it; s shrinks by the same factor, then each coordinate goes
        towards zero.

        Args:
            grid: In steps of the grid, (n,), of norm at most `norm`.
            norm: C in steps of the grid.

        Raises:
            SensitivityViolation: The integers leave a cone or are longer, so `grid` was.
        """
        rows = grid.reshape(-1, self.width) * _INSIDE
        head = np.floor(rows[:, 0])
        shrunk = rows[:, 1:] * (head / np.maximum(rows[:, 0], 1.0))[:, None]
        found = np.trunc(np.column_stack([head, shrunk])).astype(np.int64)
        squares = found * found
        if (
            found[:, 0].min(initial=0) < 0
            or (squares[:, 1:].sum(axis=1) > squares[:, 0]).any()
            or int(squares.sum()) > norm**2
        ):
            raise SensitivityViolation("an upload is outside of its cones, or longer than its norm")
        return np.asarray(found.ravel())


_SAME = 1e-9
"""Relative: a count is b or zero, up to the rounding of a product."""


@dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """The counts at the end of a vector when clients are in groups.

    Attributes:
        groups: K, at least 2.
        ratio: b over the norm of all that is clipped; above 0 and at most 1.
        alone: Whether nothing but blocks is before the counts.
    """

    groups: int
    ratio: float
    alone: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers for which the bounds do not hold."""
        require_positive(ratio=self.ratio)
        if self.ratio > 1.0:
            raise ValueError(f"ratio is {self.ratio}; it must be at most 1, or counts are not free")
        if self.groups < 2:
            raise ValueError(f"groups is {self.groups}; it must be at least 2")

    def bound(self, norm: float) -> float:
        """Return b beside a vector that is clipped to `norm`, in the same units."""
        return self.ratio * norm

    def length(self, norm: float) -> float:
        """Return the largest norm of a whole vector, counts included."""
        return norm * math.hypot(1.0, self.ratio)

    def steps(self, scaled_norm: float) -> int:
        """Return b in steps of the grid, at most the norm's; `CalibrationError` if below one."""
        steps = math.floor(self.bound(scaled_norm))
        if steps < 1:
            raise CalibrationError(
                f"a count is {self.bound(scaled_norm):g} steps of the grid; it must be at least 1"
            )
        return steps

    def charged_norm(self, norm: float, count: float, relation: Relation) -> float:
        """Return the ledger's C: half of the sensitivity under replace_one, else all of it.

        Args:
            norm: Bound on all before the counts, after rounding.
            count: b, in the same units, at most `norm`.
            relation: What a neighbour is.

        Raises:
            SensitivityViolation: b is larger.
        """
        if count > norm:
            raise SensitivityViolation(f"a count of {count:g} is above the norm {norm:g} beside it")
        if relation != "replace_one":
            return math.hypot(norm, count)
        return norm if self.alone else math.hypot(norm, count / math.sqrt(2.0))

    def split(self, vector: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what is clipped and rounded, and the K counts."""
        return vector[: -self.groups], vector[-self.groups :]

    def on_grid(
        self, counts: NDArray[np.float64], norm: float, scaled_norm: float
    ) -> NDArray[np.int64]:
        """Return counts as whole steps: all zeros, or b in one place.

        Args:
            counts: (K,), in the units of the update.
            norm: C.
            scaled_norm: C in steps of the grid.

        Raises:
            SensitivityViolation: They are anything else, which the bounds above do not cover.
        """
        places = np.flatnonzero(counts)
        bound = self.bound(norm)
        # In this form NaN is refused as well.
        if places.size > 1 or not all(abs(counts[p] - bound) <= _SAME * bound for p in places):
            raise SensitivityViolation("a client counts itself in one group, as one, or in none")
        steps = np.zeros(self.groups, np.int64)
        steps[places] = self.steps(scaled_norm)
        return steps


@dataclass(frozen=True, kw_only=True)
class OnGrid:
    """A mechanism on the integer grid, as far as clipping and rounding go.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise that is priced over C.
        scale: Steps of the grid per unit of the update.
        relation: What a neighbour is: sensitivity is twice the bound after rounding under
            replace_one, else once.
        counts: What the vector ends with where clients are in groups, else None.
        cones: Where vectors lie before such counts; None for anywhere.
    """

    clipping_norm: float
    noise_multiplier: float
    scale: float
    relation: Relation = "replace_one"
    counts: GroupCounts | None = None
    cones: Cones | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and grids too coarse for the norm."""
        require_positive(clipping_norm=self.clipping_norm, scale=self.scale)
        require_not_negative(noise_multiplier=self.noise_multiplier)
        require_member(RELATIONS, relation=self.relation)
        if not SMALLEST_SCALED_NORM <= self.scaled_norm <= LARGEST_NORM:
            raise CalibrationError(
                f"clipping_norm times scale is {self.scaled_norm:g} steps of the grid; it must be "
                f"from {SMALLEST_SCALED_NORM:g} to 2^30"
            )

    @property
    def scaled_norm(self) -> float:
        """C in steps of the grid."""
        return self.clipping_norm * self.scale

    @property
    def standard_deviation(self) -> float:
        """Of the noise that is priced, on each coordinate, in the units of the update."""
        return self.noise_multiplier * self.clipping_norm

    def around(self, clipping_norm: float) -> Self:
        """Return the same noise around another norm of as many steps: a release costs the same.

        A freshly chosen scale would change the cost by about 1e-5 and might exceed a calibrated
        budget.
        """
        scale = self.scaled_norm / clipping_norm
        return dataclasses.replace(self, clipping_norm=clipping_norm, scale=scale)

    def rounded_norm(self, dimension: int) -> float:
        """Return the ledger's C: the bound on an upload after rounding, in units of the update.

        Counts of groups beside it are in it as far as they are not free; see `GroupCounts`.
        """
        counts, scaled = self.counts, self.scaled_norm
        rounded = dimension if counts is None else dimension - counts.groups
        count = 0 if counts is None else counts.steps(scaled)
        if self.cones is not None:
            halved = math.sqrt(2.0) if self.relation == "replace_one" else 1.0
            return math.hypot(scaled, count) / halved / self.scale
        norm = math.sqrt(squared_norm_after_rounding(scaled, rounded))
        if counts is not None:
            norm = counts.charged_norm(norm, count, self.relation)
        return norm / self.scale

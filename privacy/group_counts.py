"""A client in one of K groups, in secret: its update in one block, and a count beside it.

A client's vector has K blocks, of which its update, clipped to C, is in one, with zeros elsewhere;
K counts follow, b in the block's own and zero elsewhere. Only noised sums of such vectors are ever
seen. How far a neighbour moves one, in L2:

- replace_one, both in one block: the count cancels, and updates are at most 2C apart;
- replace_one, in two blocks: sqrt(|u|^2 + |u'|^2 + 2 b^2), at most sqrt(2 C^2 + 2 b^2);
- replace_one, one of them failed and all zeros: at most sqrt(C^2 + b^2);
- add_or_remove_one: sqrt(C^2 + b^2).

So with b <= C the sensitivity under replace_one is 2C, that of the update alone: counts are free.
Where more than blocks is clipped together to J, such as a clip flag that may turn round as well,
the second case is at most sqrt(4 J^2 + 2 b^2) only, and counts cost a factor sqrt(1 + b^2 / 2 J^2).

On the integer grid the same holds with R, the bound on a rounded update's norm, in place of C: the
update is rounded by itself, and b is a whole number of steps, at most C and hence at most R. A
count is therefore never rounded at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_positive
from privacy.errors import CalibrationError, SensitivityViolation
from privacy.events import Relation

_SAME = 1e-9
"""Relative: a count is b or zero, up to the rounding of a product."""


@dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """What a vector ends with where clients are in groups.

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
        """Return b in steps of the grid, at most the clipping norm in steps.

        Raises:
            CalibrationError: It is less than one.
        """
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
            SensitivityViolation: They are anything else, which no bound was told of.
        """
        places = np.flatnonzero(counts)
        bound = self.bound(norm)
        # So that a count that is no number is refused as well.
        if places.size > 1 or not all(abs(counts[p] - bound) <= _SAME * bound for p in places):
            raise SensitivityViolation("a client counts itself in one group, as one, or in none")
        steps = np.zeros(self.groups, np.int64)
        steps[places] = self.steps(scaled_norm)
        return steps

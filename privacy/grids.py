"""Integer grids: how coordinates travel as elements of the ring where they are masked and summed.

Two grids exist. `Quantiser` spreads levels evenly over an interval and is applied after noise on
the reals; `SignedGrid` is the grid on which integer noise lives, negative numbers being two's
complement in the ring. Whoever sums and opens needs no more of either than this protocol.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_positive
from privacy.errors import CalibrationError, ProtocolViolation


class Grid(Protocol):
    """What summing and opening ask of a grid."""

    @property
    def largest_level(self) -> int:
        """The largest level that one vector may have."""
        ...

    @property
    def step(self) -> float:
        """Distance between neighbouring levels, in the units of the update."""
        ...

    def ring_bits(self, total_weight: int) -> int:
        """Return the ring that holds a sum of so many clients, each times its integer weight."""
        ...

    def admit(self, levels: NDArray[Any]) -> NDArray[np.uint64]:
        """Return one vector's levels as they may be summed, where they came without a mask."""
        ...

    def dequantise(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of one vector's levels."""
        ...

    def dequantise_sum(self, total_levels: NDArray[Any], total_weight: int) -> NDArray[np.float64]:
        """Return the sum (not the mean) of so many vectors from the sum of their levels."""
        ...


def require_levels(levels: NDArray[Any], largest_level: int) -> NDArray[np.uint64]:
    """Return levels that a client sent without a mask, if a vector on the grid may have them.

    Raises:
        ProtocolViolation: They are not a vector of uint64, or one is above the largest level.
    """
    if levels.ndim != 1 or levels.dtype != np.uint64:
        raise ProtocolViolation("an upload is not a vector of levels")
    if levels.size and int(levels.max()) > largest_level:
        raise ProtocolViolation("an upload has a level that its grid does not have")
    return levels


@dataclass(frozen=True)
class SignedGrid:
    """Integer multiples of 1 / scale, modulo 2^bits.

    Attributes:
        scale: Steps of the grid per unit of the update.
        bits: Size of the ring, 2 to 64.
        clients: Most clients whose sum the ring was chosen for.
        longest: Largest squared L2 norm in steps, at most 2^62, to which an upload without a mask
            is clipped; None where it has noise inside, which a clip would distort.
    """

    scale: float
    bits: int
    clients: int
    longest: int | None = None

    def __post_init__(self) -> None:
        """Refuse a grid that carries nothing."""
        require_positive(scale=self.scale, clients=self.clients)
        if not 2 <= self.bits <= 64:
            raise ValueError(f"bits is {self.bits}; it must be from 2 to 64")

    @property
    def step(self) -> float:
        """Distance between neighbouring elements, in the units of the update."""
        return 1.0 / self.scale

    @property
    def largest_level(self) -> int:
        """The largest element of the ring."""
        return (1 << self.bits) - 1

    def ring_bits(self, total_weight: int) -> int:
        """Return the grid's own ring.

        Raises:
            CalibrationError: The ring was chosen for fewer clients.
            ValueError: The weight is negative.
        """
        if total_weight < 0:
            raise ValueError(f"total_weight is {total_weight}; it must not be negative")
        if total_weight > self.clients:
            raise CalibrationError(
                f"a ring for {self.clients} clients cannot hold the sum of {total_weight}"
            )
        return self.bits

    def admit(self, levels: NDArray[Any]) -> NDArray[np.uint64]:
        """Return an upload that came without a mask, clipped in integers if it is too long.

        An honest client has clipped already, and its upload passes unchanged. What becomes of
        another one depends on that upload alone.

        Raises:
            ProtocolViolation: They are not a vector of levels of the ring.
        """
        admitted = require_levels(levels, self.largest_level)
        if self.longest is None:
            return admitted
        steps = self._signed(admitted)
        # In floating point only to see that the square fits into 64 bits.
        rough = float(np.linalg.norm(steps.astype(np.float64)))
        if rough**2 <= 1.5 * self.longest and int(np.dot(steps, steps)) <= self.longest:
            return admitted
        exact = steps.astype(object)
        norm, bound = math.isqrt(int(np.dot(exact, exact))) + 1, math.isqrt(self.longest)
        # Towards zero, so that no coordinate and hence no norm is longer than the bound asks.
        shorter = np.sign(steps) * (abs(exact) * bound // norm).astype(np.int64)
        return np.asarray(shorter.astype(np.uint64) & np.uint64(self.largest_level))

    def dequantise(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of one vector's levels; see `dequantise_sum`."""
        return self.dequantise_sum(levels, 1)

    def dequantise_sum(self, total_levels: NDArray[Any], total_weight: int) -> NDArray[np.float64]:
        """Return the values of ring elements, read as two's complement.

        Args:
            total_levels: Unsigned integers of shape (n,), summed modulo 2^bits.
            total_weight: How many vectors were summed; it changes nothing here.

        Returns:
            The sum, float64 of shape (n,): right unless a coordinate wrapped around.

        Raises:
            CalibrationError: The ring was chosen for fewer clients.
            ValueError: The levels are not unsigned integers of the ring, or the weight is negative.
        """
        self.ring_bits(total_weight)
        totals = np.asarray(total_levels)
        if totals.dtype.kind != "u":
            raise ValueError(f"total_levels is {totals.dtype}; it must be unsigned integers")
        if totals.size and int(totals.max()) > self.largest_level:
            raise ValueError(f"a level of the sum is at or above 2^{self.bits}, the ring's size")
        return np.asarray(self._signed(totals) / self.scale)

    def _signed(self, levels: NDArray[Any]) -> NDArray[np.int64]:
        spare = 64 - self.bits
        # Shifted to the top and back, the ring's sign bit becomes that of the word.
        shifted = (levels.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> spare
        return np.asarray(shifted)

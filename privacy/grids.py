"""Integer grids: how coordinates travel as elements of the ring where they are masked and summed.

Two grids exist. `Quantiser` spreads levels evenly over an interval and is applied after noise on
the reals; `SignedGrid` is the grid on which integer noise lives, negative numbers being two's
complement in the ring. The code that sums and opens uses only the protocol `Grid`.

A secure sum adds integers modulo 2^16 to 2^64. `Quantiser` rounds each coordinate to the nearest of
2^bits evenly spaced values between -value_bound and value_bound. Applied after clipping and noise
it is post-processing, so it costs no privacy; what it costs is at most half a step per unit of
weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy._validate import finite_vector, require_positive
from privacy.errors import CalibrationError, ProtocolViolation


class Grid(Protocol):
    """What summing and opening need from a grid."""

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
    """Return levels that a client sent without a mask, if they are on the grid.

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
        """Refuse a scale, size or ring out of range."""
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


SMALLEST_RING, LARGEST_RING = 16, 64
"""Bits of a ring in which sums are taken."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """Integer levels of one vector.

    Attributes:
        levels: uint64 of shape (n,), each in [0, 2^bits - 1].
        saturated: How many coordinates lay beyond the value bound and were cut to it.
    """

    levels: NDArray[np.uint64]
    saturated: int


@dataclass(frozen=True)
class Quantiser:
    """Evenly spaced levels over [-value_bound, value_bound].

    Attributes:
        value_bound: Largest absolute coordinate that is carried, in the units of the update.
        bits: Levels are 2^bits, from 2 to 32 bits.
    """

    value_bound: float
    bits: int

    def __post_init__(self) -> None:
        """Refuse a bound or a width that carries nothing."""
        require_positive(value_bound=self.value_bound)
        if not 2 <= self.bits <= 32:
            raise ValueError(f"bits is {self.bits}; it must be from 2 to 32")

    @property
    def largest_level(self) -> int:
        """The level of `value_bound`: 2^bits - 1."""
        return (1 << self.bits) - 1

    @property
    def step(self) -> float:
        """Distance between neighbouring levels, in the units of the update."""
        return 2.0 * self.value_bound / self.largest_level

    def quantise(self, vector: NDArray[Any]) -> Quantised:
        """Round every coordinate to its nearest level; cut what lies beyond the bound.

        Args:
            vector: Finite numbers of shape (n,).

        Returns:
            The levels, and how many coordinates were cut.

        Raises:
            NonFiniteUpdate: A coordinate is NaN or infinite.
            ValueError: It is not a vector.
        """
        values = finite_vector(vector)
        saturated = int(np.count_nonzero(np.abs(values) > self.value_bound))
        inside = np.clip(values, -self.value_bound, self.value_bound)
        levels = np.rint((inside + self.value_bound) / self.step)
        # The quotient at the bound itself may round above the last level.
        return Quantised(np.minimum(levels, self.largest_level).astype(np.uint64), saturated)

    def admit(self, levels: NDArray[Any]) -> NDArray[np.uint64]:
        """Return levels that came without a mask unchanged, as they hold their noise.

        Raises:
            ProtocolViolation: They are not a vector of levels.
        """
        return require_levels(levels, self.largest_level)

    def dequantise(self, levels: NDArray[Any]) -> NDArray[np.float64]:
        """Return the values of one vector's levels, each within half a step of what went in.

        Args:
            levels: Unsigned integers of shape (n,).

        Returns:
            float64 of the same shape.

        Raises:
            ProtocolViolation: A level is above the largest one.
        """
        return self.dequantise_sum(levels, 1)

    def dequantise_sum(self, total_levels: NDArray[Any], total_weight: int) -> NDArray[np.float64]:
        """Turn a sum of weighted levels into the weighted sum of the vectors.

        With weights w_i and total_levels = sum w_i levels_i the result is within total_weight / 2
        steps of sum w_i vector_i in every coordinate, where nothing saturated.

        Args:
            total_levels: Unsigned integers of shape (n,), not wrapped around.
            total_weight: Sum of the integer weights; 0 is the empty sum.

        Returns:
            The sum (not the mean), float64 of shape (n,).

        Raises:
            CalibrationError: No ring holds that weight.
            ProtocolViolation: A total is more than that weight can contribute, so a party
                cheated or the ring wrapped around.
            ValueError: The totals are not unsigned integers, or the weight is negative.
        """
        totals = np.asarray(total_levels)
        if totals.dtype.kind != "u":
            raise ValueError(f"total_levels is {totals.dtype}; it must be unsigned integers")
        self.ring_bits(total_weight)
        ceiling = total_weight * self.largest_level
        if totals.size and int(totals.max()) > ceiling:
            raise ProtocolViolation(
                "a coordinate of the sum is above what so many clients can contribute"
            )
        # Centring in exact integers keeps the low bits that a float64 of the total would drop. The
        # middle is rounded up, so that differences lie in [-2^63, 2^63) and can be read as signed.
        centred = (totals.astype(np.uint64) - np.uint64((ceiling + 1) // 2)).view(np.int64)
        return (centred.astype(np.float64) + 0.5 * (ceiling % 2)) * self.step

    def ring_bits(self, total_weight: int) -> int:
        """Return the smallest ring, 16 to 64 bits, that holds any sum of that weight.

        Args:
            total_weight: Largest sum of integer weights that a round may reach.

        Raises:
            CalibrationError: Even 64 bits would wrap around.
            ValueError: The weight is negative.
        """
        if total_weight < 0:
            raise ValueError(f"total_weight is {total_weight}; it must not be negative")
        bits = max(SMALLEST_RING, (total_weight * self.largest_level).bit_length())
        if bits <= LARGEST_RING:
            return bits
        raise CalibrationError(
            f"a total weight of {total_weight} at {self.bits} bits a coordinate wraps around a "
            f"ring of 64 bits; lower the bits or the weights"
        )

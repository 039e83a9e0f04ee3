"""Mechanism `distributed_noise`: every client adds a share, and only the sum has enough noise.

On each client (Kairouz, Liu and Steinke 2021, Algorithm 1, without the rotation): clip to C, scale
to a grid of integers, round at random on the condition that the norm stays bounded, add integer
noise, and return elements of the ring in which vectors are masked and summed. Nobody may see one
client's vector alone: its noise is only 1 / sqrt(m_min - c) of what the ledger states.

At least m_min clients survive, and at most c of them show the server what they drew. So every sum
holds at least m_min - c honest shares. Each has variance sigma^2 / (m_min - c), so together they
have the sigma of the ledger. The noise of further survivors comes on top and is not counted.
`add_or_remove_one` therefore means that a client's *update* is there or is zero; its share of the
noise is in the sum either way, as the server knows who takes part.

Summing modulo 2^ring_bits is post-processing. Where a coordinate of the sum wraps around, it is
wrong by a multiple of 2^ring_bits: that costs utility, never privacy. `required_ring_bits` keeps it
below a probability of 2^-40.

`IntegerUploadNoise` is `upload_noise` on the same grid, the whole noise drawn exactly on the
client: clip, scale, round at random on the condition that the norm stays bounded, add a discrete
Gaussian (Canonne, Kamath and Steinke 2020, Theorems 4 and 14). It is `distributed_noise` of a
single share: what leaves is an integer computed from integers, so attacks on the lowest bits of
floating-point noise (Mironov 2012) do not apply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from privacy._validate import require_member, require_not_negative, require_positive
from privacy.errors import CalibrationError
from privacy.events import (
    NOISE_KINDS,
    IntegerNoise,
    MechanismFacts,
    NoiseKind,
    Protected,
)
from privacy.grids import LARGEST_RING, SMALLEST_RING, Grid, SignedGrid
from privacy.integer_noise import LARGEST_DEVIATION
from privacy.mechanisms import UPLOAD_NOISE, NoisedByClients, ProtectedUpload, wrong_grid
from privacy.randomness import NO_STATE, NoiseSource, NoiseState
from privacy.rounding import (
    GroupCounts,
    OnGrid,
    clip_to_grid,
    in_ring,
    squared_norm_after_rounding,
)

SMALLEST_SHARE_DEVIATION = 1.5
"""In steps of the grid: what sums of discrete Gaussians cost beyond one Gaussian is 9e-6 here (at
8,192 coordinates and 90 shares), 2.2 at 1 and 36,634 at 0.5."""

_DEFAULT_SCALED_NORM = 2.0**16
_LOG_WRAP = 40.0 * math.log(2.0)

DISTRIBUTED_NOISE = MechanismFacts(
    name="distributed_noise",
    unit="client",
    is_in_steps=False,
    is_shared_out=True,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)
"""What `distributed_noise` means in a ledger: only a sum of shares has enough noise."""


@dataclass(frozen=True, kw_only=True)
class DistributedNoise(OnGrid, NoisedByClients):
    """Clip, scale, round, and add one client's share of integer noise.

    The noise that is priced is that of `shares` shares.

    Attributes:
        minimum_survivors: m_min, the smallest number of clients of which a sum may be opened.
        corrupt: c, how many of them may give their share away; below m_min.
        scale: Steps of the grid per unit of the update; take `default_scale` where nothing else
            is known. It is part of the mechanism, the same for all clients.
        kind: Law of a share. On a fine grid both cost the same. A sum of Skellam shares is
            exactly Skellam; discrete Gaussian shares have the lighter tail.
        facts: What a release means in the ledger.
    """

    minimum_survivors: int
    corrupt: int
    kind: NoiseKind = "discrete_gaussian"
    facts: MechanismFacts = DISTRIBUTED_NOISE

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and grids too coarse for the theorems to help."""
        super().__post_init__()
        require_not_negative(corrupt=self.corrupt)
        require_member(NOISE_KINDS, kind=self.kind)
        if self.minimum_survivors <= self.corrupt:
            raise CalibrationError(
                f"minimum_survivors is {self.minimum_survivors}; it must be above corrupt, which "
                f"is {self.corrupt}, or no honest share of the noise is left"
            )
        if not SMALLEST_SHARE_DEVIATION <= self.share_deviation <= LARGEST_DEVIATION:
            raise CalibrationError(
                f"one client's share of the noise has a standard deviation of "
                f"{self.share_deviation:g} steps of the grid; it must be from "
                f"{SMALLEST_SHARE_DEVIATION} to 2^21: change scale or noise_multiplier"
            )

    @property
    def shares(self) -> int:
        """Honest shares that every sum holds: m_min - c."""
        return self.minimum_survivors - self.corrupt

    @property
    def share_deviation(self) -> float:
        """Of one client's noise, in steps of the grid."""
        return self.standard_deviation * self.scale / math.sqrt(self.shares)

    @property
    def client_deviation(self) -> float:
        """Of one client's share, in the units of the update."""
        return self.share_deviation / self.scale

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the integer grid, in a ring that holds updates and shares."""
        ring = required_ring_bits(self, dimension=dimension, clients=clients)
        return SignedGrid(self.scale, ring, clients)

    def protect(
        self, vector: NDArray[Any], grid: Grid, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> ProtectedUpload:
        """Clip, round and add a share; see `protect_share`."""
        return protect_share(vector, self, ring_bits=ring_of(self, grid), noise=noise)

    def noise_in_sum(self, clients: int) -> float:
        """Return the shares of all who are in the sum, together."""
        return self.client_deviation * math.sqrt(clients)

    def protected(self, dimension: int) -> Protected:
        """Return the noise that every sum has for certain, and the bound after rounding."""
        return Protected(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.rounded_norm(dimension),
            relation=self.relation,
            law=self.law(dimension),
        )

    def law(self, dimension: int) -> IntegerNoise:
        """Return the law of one share's coordinates and of their sum."""
        return IntegerNoise(
            self.kind,
            share_deviation=self.share_deviation,
            shares=self.shares,
            dimension=dimension,
            corrupt=self.corrupt,
        )


def ring_of(mechanism: OnGrid, grid: Grid) -> int:
    """Return the ring of a mechanism's grid.

    Raises:
        TypeError: It is a grid of another kind.
        ValueError: It has another scale, so that the sum would be opened wrongly.
    """
    if not isinstance(grid, SignedGrid):
        raise wrong_grid(mechanism, grid)
    if grid.scale != mechanism.scale:
        raise ValueError(f"the grid's scale is {grid.scale:g}; it must be {mechanism.scale:g}")
    return grid.bits


def default_scale(clipping_norm: float, share_multiplier: float = 0.0) -> float:
    """Return the smallest power of two that makes `clipping_norm` 65,536 steps or more.

    Rounding then adds less than 1e-4 to the norm up to 2^20 coordinates, and 32 bits hold the sum
    of 1,000 clients with noise multipliers up to some hundreds. Much noise takes a coarser grid,
    on which the sampler reaches it.

    Args:
        clipping_norm: C.
        share_multiplier: Standard deviation of one client's noise over C.

    Raises:
        ValueError: `clipping_norm` is not finite and positive.
    """
    require_positive(clipping_norm=clipping_norm)
    steps = 2.0 ** math.ceil(math.log2(_DEFAULT_SCALED_NORM / clipping_norm))
    deviation = share_multiplier * clipping_norm * steps
    return steps / 2.0 ** max(0, math.ceil(math.log2(max(deviation / LARGEST_DEVIATION, 1.0))))


def protect_share(
    vector: NDArray[Any], mechanism: DistributedNoise, *, ring_bits: int, noise: NoiseSource
) -> ProtectedUpload:
    """Turn one client's update into the ring elements that it masks and sends.

    Formal guarantee: in steps of the grid, what is noised is an integer vector whose squared norm
    is at most `squared_norm_after_rounding(C scale, n)`, and the noise on each coordinate is an
    independent draw of exactly the mechanism's law, provided that `noise.protects`. Before it is
    summed with `minimum_survivors` others' it is *not* protected; it must not leave the client
    unmasked.

    Args:
        vector: The update as one flat vector of shape (n,).
        mechanism: What to do.
        ring_bits: Size of the ring, 2 to 64; see `required_ring_bits`.
        noise: Where rounding and noise come from.

    Returns:
        Levels in [0, 2^ring_bits), negative numbers as their two's complement, with what stays on
        the client. Nothing saturates.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        TypeError: `noise` is not a noise source (a bare generator is not one).
    """
    clipped, rounded = clip_to_grid(vector, mechanism, ring_bits=ring_bits, noise=noise)
    size = rounded.size
    share = noise.draw(mechanism.law(max(size, 1)), mechanism.share_deviation, size)
    levels = in_ring(rounded + share, ring_bits)
    return ProtectedUpload(levels, clipped.norm, clipped.was_clipped, saturated=0)


def required_ring_bits(mechanism: DistributedNoise, *, dimension: int, clients: int) -> int:
    """Return the smallest ring of secure aggregation, 16 to 64 bits, for a cohort's sum.

    Every client's rounded vector may have all its length in one coordinate, and all `clients`
    shares of noise are there. Their sum, of variance V, passes t = sqrt(2 V L) + L/3 with
    probability at most 2 exp(-L) (Bernstein; the discrete Gaussian is sub-Gaussian, by Canonne,
    Kamath and Steinke 2020, Corollary 17, and does without the L/3). L is chosen to make that 2^-40
    over all coordinates.

    Args:
        mechanism: What every client does.
        dimension: n, coordinates of the update.
        clients: Most clients that a sum may have.

    Raises:
        CalibrationError: Even 64 bits may wrap around.
        ValueError: `dimension` or `clients` is not positive.
    """
    largest = largest_sum(mechanism, dimension=dimension, clients=clients)
    bits = ring_for(largest)
    if bits <= LARGEST_RING:
        return bits
    raise CalibrationError(
        f"a sum may reach {largest:g} steps of the grid, which wraps around a ring of 64 bits; "
        "lower scale"
    )


def ring_for(largest: float) -> int:
    """Return the smallest number of bits from 16 in which +-`largest` does not wrap around."""
    return max(SMALLEST_RING, math.floor(math.log2(largest)) + 2)


def largest_sum(mechanism: DistributedNoise, *, dimension: int, clients: int) -> float:
    """Return a bound, in steps, that a sum's coordinates exceed with probability at most 2^-40.

    See `required_ring_bits`, which also says which arguments are valid.
    """
    require_positive(dimension=dimension, clients=clients)
    exponent = math.log(2.0 * dimension) + _LOG_WRAP
    deviation = mechanism.share_deviation * math.sqrt(clients)
    noise = deviation * math.sqrt(2.0 * exponent) + exponent / 3.0
    longest = math.sqrt(squared_norm_after_rounding(mechanism.scaled_norm, dimension))
    return clients * longest + noise


def smallest_multiplier(scaled_norm: float, shares: int = 1) -> float:
    """Return the smallest noise multiplier that `DistributedNoise` accepts.

    Args:
        scaled_norm: C in steps of the grid.
        shares: Honest shares of the noise.

    Raises:
        ValueError: `scaled_norm` is not finite and positive.
    """
    require_positive(scaled_norm=scaled_norm)
    return SMALLEST_SHARE_DEVIATION * math.sqrt(max(1, shares)) / scaled_norm * (1.0 + 1e-9)


@dataclass(frozen=True, kw_only=True)
class IntegerUploadNoise(DistributedNoise):
    """Clip, scale, round and add a discrete Gaussian on the client: one share with all the noise.

    What leaves may be shown to anybody; see `protect_share`.
    """

    minimum_survivors: int = field(default=1, init=False)
    corrupt: int = field(default=0, init=False)
    kind: NoiseKind = field(default="discrete_gaussian", init=False)
    counts: GroupCounts | None = field(default=None, init=False)
    facts: MechanismFacts = UPLOAD_NOISE

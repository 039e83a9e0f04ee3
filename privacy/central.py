"""Mechanism `central_noise`: clients clip, the coordinator adds the noise to the sum.

The coordinator is trusted with the sum before its noise (and, without masks, with every update), so
nothing is claimed against it. Against everybody who sees the sum only after the noise this is the
Gaussian mechanism (Dwork and Roth 2014, section 3.5.3), with the best accuracy for its noise.

Clipped updates are rounded to the integer grid on the condition that their norm stays bounded, so
that quantisation cannot lengthen what was clipped: the bound of the ledger is the one that holds
after rounding. Without masks the coordinator clips uploads to that bound once more, as integers,
because a peer may send anything.

**The noise is Gaussian, rounded to the grid, and added modulo the ring before anything is decoded
or checked.** An accountant prices the Gaussian mechanism x + z on the integer vector x of the sum,
with z of deviation sigma x scale steps. For integers round(x + z) = x + round(z), so what is added
here is x + z after a function that knows no data: post-processing, at the same price. (Integer laws
have no accountant that amplifies by sampling.) So is the reduction modulo the ring, and all that
follows from the noised ring element: decoding, a check of its norm, a refusal, the next model. A
malicious peer adds a constant c to x and chooses where x + c + z wraps around; that moves the
result by a multiple of the ring as a function of the noised element, which epsilon covers. (With
noise after decoding, a peer that sends nearly half of the ring turns one client's sign into a
difference of the whole ring; with a check before the noise, an abort tells that sign.)

Where cohorts are drawn in secret, sum and noise are divided by the *planned* size of a cohort. The
size that came out would tell whether somebody was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_positive
from privacy.distributed import ring_for, ring_of
from privacy.errors import CalibrationError
from privacy.events import GAUSSIAN, MechanismFacts, Protected, gaussian_of
from privacy.grids import LARGEST_RING, Grid, SignedGrid
from privacy.mechanisms import ProtectedUpload, SumNoise, noise_reach
from privacy.randomness import NO_STATE, NoiseSource, NoiseState, require_noise_source
from privacy.rounding import (
    OnGrid,
    clip_to_grid,
    in_ring,
    squared_norm_after_rounding,
)

CENTRAL_NOISE = MechanismFacts(
    name="central_noise",
    unit="client",
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=True,
    may_amplify=True,
    keeps_state=False,
)
"""What `central_noise` means in a ledger: the server sees the sum before its noise."""


@dataclass(frozen=True, kw_only=True)
class CentralNoise(OnGrid):
    """Clip and round on the client, Gaussian noise on the sum.

    With a `noise_multiplier` of 0, which is allowed, epsilon is infinite.

    Attributes:
        facts: What a release means in the ledger.
    """

    facts: MechanismFacts = CENTRAL_NOISE

    @property
    def client_deviation(self) -> float:
        """Return 0: clients add no noise."""
        return 0.0

    @property
    def divides_by(self) -> Literal["planned"]:
        """Divide by the planned number: the number that was drawn is secret and has no noise."""
        return "planned"

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the integer grid, in a ring that holds the clipped updates and the noise."""
        ring = central_ring_bits(self, dimension=dimension, clients=clients)
        counts, rounded = self.counts, dimension
        if counts is not None:
            rounded -= counts.groups
        longest = squared_norm_after_rounding(self.scaled_norm, max(rounded, 1))
        if counts is not None:
            longest += counts.steps(self.scaled_norm) ** 2
        return SignedGrid(self.scale, ring, clients, longest)

    def protect(
        self, vector: NDArray[Any], grid: Grid, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> ProtectedUpload:
        """Clip and round; see `protect_for_centre`."""
        return protect_for_centre(vector, self, ring_bits=ring_of(self, grid), noise=noise)

    def noise_in_sum(self, clients: int) -> float:
        """Return the coordinator's noise, whoever is in the sum."""
        return self.standard_deviation

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> SumNoise:
        """Return what the coordinator adds; see the function of this name."""
        return SumNoise(noise_for_sum(self, dimension, noise))

    def protected(self, dimension: int) -> Protected:
        """Return the sum's noise and the bound after rounding."""
        return Protected(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.rounded_norm(dimension),
            relation=self.relation,
            law=gaussian_of(self.standard_deviation),
        )


def protect_for_centre(
    vector: NDArray[Any], mechanism: CentralNoise, *, ring_bits: int, noise: NoiseSource
) -> ProtectedUpload:
    """Clip and round an update, without noise: the result shows the update.

    Formal guarantee: in steps of the grid the result is an integer vector of squared norm at most
    `squared_norm_after_rounding(C scale, n)`.

    For `ring_bits` see `central_ring_bits`; for the errors see `clip_to_grid`.
    """
    clipped, rounded = clip_to_grid(vector, mechanism, ring_bits=ring_bits, noise=noise)
    levels = in_ring(rounded, ring_bits)
    return ProtectedUpload(levels, clipped.norm, clipped.was_clipped, saturated=0)


def central_ring_bits(mechanism: CentralNoise, *, dimension: int, clients: int) -> int:
    """Return the smallest ring that holds any noised sum of so many clipped updates, 16 to 64 bits.

    A coordinate of honest clients' sum wraps around with probability below 2^-40, over all
    coordinates: their updates may all lie in it, and the noise is bounded as by `noise_reach`.
    Where one wraps around, accuracy is lost and never privacy. `CalibrationError` if even 64 bits
    would wrap around.
    """
    require_positive(dimension=dimension, clients=clients)
    longest = math.sqrt(squared_norm_after_rounding(mechanism.scaled_norm, dimension))
    noise = noise_reach(dimension) * mechanism.standard_deviation * mechanism.scale
    # Rounding the noise to the grid moves it by half a step.
    bits = ring_for(clients * longest + noise + 0.5)
    if bits <= LARGEST_RING:
        return bits
    raise CalibrationError(
        f"the noised sum of {clients} clients wraps around a ring of 64 bits; lower scale"
    )


def noise_for_sum(mechanism: CentralNoise, dimension: int, noise: NoiseSource) -> NDArray[np.int64]:
    """Return the steps that the coordinator adds to the sum of a round, fresh at each call.

    Args:
        mechanism: Of the run.
        dimension: n, coordinates of the sum.
        noise: Where it comes from.

    Raises:
        TypeError: `noise` is not a noise source (a bare generator is not one).
    """
    steps = mechanism.standard_deviation * mechanism.scale
    drawn = require_noise_source(noise).draw(GAUSSIAN, steps, dimension)
    return np.asarray(np.rint(drawn).astype(np.int64))

"""Mechanism `central_noise`: clients clip, the coordinator adds the noise to the sum.

The coordinator is trusted with the bare sum (and, without masks, with every update): against it
nothing is claimed. Against whoever gets the sum only after the noise it is the Gaussian mechanism
(Dwork and Roth 2014, section 3.5.3) at the best ratio of noise to accuracy there is.

Clipped updates are rounded to the integer grid on the condition that their norm stays bounded, so
that quantisation cannot lengthen what was clipped: the bound of the ledger is the one that holds
after rounding. The noise is floating-point, as no accountant amplifies integer noise by sampling.

Where cohorts are drawn in secret, sum and noise are divided by the *planned* size of a cohort. The
size that came out would tell whether somebody was drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy._validate import (
    require_member,
    require_not_negative,
    require_positive,
)
from privacy.distributed import SMALLEST_SCALED_NORM, ring_for
from privacy.errors import CalibrationError
from privacy.events import RELATIONS, Channel, CohortSampling, Relation, Release, Status
from privacy.mechanisms import ProtectedUpload
from privacy.quantisation import LARGEST_RING
from privacy.randomness import NoiseSource, require_noise_source
from privacy.rounding import LARGEST_NORM, clip_to_grid, in_ring, squared_norm_after_rounding


@dataclass(frozen=True, kw_only=True)
class CentralNoise:
    """Clip and round on the client, Gaussian noise on the sum.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise on the sum over C; 0 is allowed, and
            then epsilon is infinite.
        scale: Steps of the grid per unit of the update.
        relation: What a neighbour is: sensitivity is twice the bound after rounding under
            replace_one, else once.
    """

    clipping_norm: float
    noise_multiplier: float
    scale: float
    relation: Relation = "replace_one"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing and grids too coarse for the norm."""
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
        """Of the noise on each coordinate of the sum, in the units of the update."""
        return self.noise_multiplier * self.clipping_norm

    def rounded_norm(self, dimension: int) -> float:
        """Return the bound on an update's L2 norm after rounding, in the units of the update."""
        return math.sqrt(squared_norm_after_rounding(self.scaled_norm, dimension)) / self.scale


def protect_for_centre(
    vector: NDArray[Any], mechanism: CentralNoise, *, ring_bits: int, noise: NoiseSource
) -> ProtectedUpload:
    """Clip and round an update; whoever sees the result sees the update.

    Formal guarantee: in steps of the grid the result is an integer vector of squared norm at most
    `squared_norm_after_rounding(C scale, n)`.

    Args:
        vector: The update as one flat vector of shape (n,).
        mechanism: What to do.
        ring_bits: Size of the ring; see `central_ring_bits`.
        noise: Where the rounding's coins come from.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        TypeError: `noise` is not a noise source (a bare generator is none).
        ValueError: `ring_bits` is not from 2 to 64.
    """
    clipped, rounded = clip_to_grid(vector, mechanism, ring_bits=ring_bits, noise=noise)
    levels = in_ring(rounded, ring_bits)
    return ProtectedUpload(levels, clipped.norm, clipped.was_clipped, saturated=0)


def central_ring_bits(mechanism: CentralNoise, *, dimension: int, clients: int) -> int:
    """Return the smallest ring that holds any sum of so many clipped updates, 16 to 64 bits.

    Raises:
        CalibrationError: Even 64 bits would wrap around.
        ValueError: `dimension` or `clients` is not positive.
    """
    require_positive(dimension=dimension, clients=clients)
    longest = math.sqrt(squared_norm_after_rounding(mechanism.scaled_norm, dimension))
    bits = ring_for(clients * longest)
    if bits <= LARGEST_RING:
        return bits
    raise CalibrationError(
        f"the sum of {clients} clients wraps around a ring of 64 bits; lower scale"
    )


def noise_for_sum(
    mechanism: CentralNoise, dimension: int, noise: NoiseSource
) -> NDArray[np.float64]:
    """Return what the coordinator adds to the sum of a round, fresh at each call.

    Args:
        mechanism: Of the run.
        dimension: n, coordinates of the sum.
        noise: Where it comes from.

    Raises:
        TypeError: `noise` is not a noise source (a bare generator is none).
    """
    return mechanism.standard_deviation * require_noise_source(noise).standard_normal(dimension)


def release_to_centre(
    mechanism: CentralNoise,
    dimension: int,
    *,
    run_id: str,
    round_number: int,
    attempt: int,
    pseudonym: str,
    channel: Channel = "sum",
    status: Status = "reserved",
    cohort: CohortSampling | None = None,
) -> Release:
    """Return the ledger row for one client's part in one centrally noised sum.

    Args:
        mechanism: What protects the sum once it is noised.
        dimension: Coordinates of the update; the bound after rounding depends on it.
        run_id: The run.
        round_number: The round.
        attempt: Which try of it.
        pseudonym: The client, as its ledger calls it.
        channel: The sum; nobody adds noise to anything else and it is refused.
        status: "reserved" before anything is sent.
        cohort: How the round's clients were drawn, where that may amplify.

    Raises:
        ValueError: `channel` is not "sum".
    """
    if channel != "sum":
        raise ValueError(
            f"channel is {channel!r}; it must be 'sum' under 'central_noise', which noises nothing "
            "else"
        )
    return Release(
        mechanism="central_noise",
        standard_deviation=mechanism.standard_deviation,
        clipping_norm=mechanism.rounded_norm(dimension),
        relation=mechanism.relation,
        channel=channel,
        run_id=run_id,
        round_number=round_number,
        attempt=attempt,
        pseudonym=pseudonym,
        status=status,
        cohort=cohort,
    )

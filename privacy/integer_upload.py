"""Mechanism `upload_noise` on the integer grid: the whole noise on the client, drawn exactly.

Clip, scale, round at random on the condition that the norm stays bounded, add a discrete Gaussian
(Canonne, Kamath and Steinke 2020, Theorems 4 and 14). It is `distributed_noise` of a single share:
what leaves is an integer computed from integers, so that attacks on the lowest bits of
floating-point noise (Mironov 2012) have nothing to look at.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from privacy.distributed import DistributedNoise, protect_share, rescaled, ring_of
from privacy.events import Protected, Relation
from privacy.facts import MechanismFacts
from privacy.grids import Grid
from privacy.mechanisms import UPLOAD_NOISE, ProtectedUpload
from privacy.randomness import NO_STATE, NoiseSource, NoiseState


@dataclass(frozen=True, kw_only=True)
class IntegerUploadNoise:
    """Clip, scale, round and add a discrete Gaussian, all on the client.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise over C.
        scale: Steps of the grid per unit of the update.
        relation: What a neighbour is: sensitivity is twice the bound after rounding under
            replace_one, else once.
        facts: What a release means in the ledger.
    """

    clipping_norm: float
    noise_multiplier: float
    scale: float
    relation: Relation = "replace_one"
    facts: MechanismFacts = UPLOAD_NOISE

    def __post_init__(self) -> None:
        """Refuse noise or a grid so coarse that no theorem covers it."""
        _ = self.share

    @cached_property
    def share(self) -> DistributedNoise:
        """The same as the noise of one client that has all of it."""
        return DistributedNoise(
            clipping_norm=self.clipping_norm,
            noise_multiplier=self.noise_multiplier,
            minimum_survivors=1,
            corrupt=0,
            scale=self.scale,
            relation=self.relation,
        )

    @property
    def scaled_norm(self) -> float:
        """C in steps of the grid."""
        return self.share.scaled_norm

    @property
    def standard_deviation(self) -> float:
        """Of the noise on each coordinate, in the units of the update."""
        return self.share.standard_deviation

    @property
    def client_deviation(self) -> float:
        """All of the noise."""
        return self.standard_deviation

    @property
    def divides_by(self) -> Literal["survivors"]:
        """A lost client takes its noise with it, and a mean is over those who are in the sum."""
        return "survivors"

    def around(self, clipping_norm: float) -> IntegerUploadNoise:
        """Return the same noise around another norm."""
        scale = rescaled(self, clipping_norm)
        return dataclasses.replace(self, clipping_norm=clipping_norm, scale=scale)

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the integer grid, in a ring that holds updates and noise."""
        return self.share.grid(dimension, bits=bits, clients=clients)

    def protect(
        self, vector: NDArray[Any], grid: Grid, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> ProtectedUpload:
        """Turn an update into ring elements that may be shown to anybody; see `protect_share`."""
        # The grid is this mechanism's, so an error about it names this one.
        return protect_share(vector, self.share, ring_bits=ring_of(self, grid), noise=noise)

    def noise_in_sum(self, clients: int) -> float:
        """Return all clients' noise together."""
        return self.standard_deviation * math.sqrt(clients)

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> None:
        """Nobody adds anything: all of the noise is in."""
        return None

    def protected(self, dimension: int) -> Protected:
        """Return the noise of one upload, and the bound after rounding."""
        return self.share.protected(dimension)

"""A client that leaves its share of joint noise out, as one that colludes with the server may.

What `distributed_noise` claims holds without the shares of `corrupt` clients. Whoever wants to see
how much is left then needs clients that do so: an audit's canaries, and nobody else.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from privacy.distributed import SMALLEST_SHARE_DEVIATION, DistributedNoise
from privacy.events import Protected, Relation
from privacy.facts import MechanismFacts
from privacy.grids import Grid
from privacy.mechanisms import ProtectedUpload
from privacy.randomness import NoiseSource


@dataclass(frozen=True)
class WithoutShare:
    """A mechanism in all that is said of it and summed, without the noise of its own share.

    Attributes:
        counted: The mechanism, which others follow, and which is charged.
    """

    counted: DistributedNoise

    @property
    def facts(self) -> MechanismFacts:
        """The mechanism's."""
        return self.counted.facts

    @property
    def relation(self) -> Relation:
        """The mechanism's."""
        return self.counted.relation

    @property
    def clipping_norm(self) -> float:
        """The mechanism's."""
        return self.counted.clipping_norm

    @property
    def client_deviation(self) -> float:
        """What a client is expected to add."""
        return self.counted.client_deviation

    @property
    def divides_by(self) -> Literal["survivors"]:
        """The mechanism's."""
        return self.counted.divides_by

    def around(self, clipping_norm: float) -> WithoutShare:
        """Return the same around another norm."""
        return WithoutShare(self.counted.around(clipping_norm))

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the mechanism's, as all are summed on one grid."""
        return self.counted.grid(dimension, bits=bits, clients=clients)

    def protect(self, vector: NDArray[Any], grid: Grid, noise: NoiseSource) -> ProtectedUpload:
        """Clip and round as the mechanism does, and add the smallest share that its grid allows.

        That is 1.5 steps, at 65,536 steps to C nothing that anybody could see.
        """
        counted = self.counted
        steps = counted.standard_deviation * counted.scale / SMALLEST_SHARE_DEVIATION
        # Rounded down, so that a share is not below what is allowed.
        shares = max(counted.shares, math.floor(steps * steps))
        alone = dataclasses.replace(counted, minimum_survivors=counted.corrupt + shares)
        return alone.protect(vector, grid, noise)

    def noise_in_sum(self, clients: int) -> float:
        """Return the mechanism's."""
        return self.counted.noise_in_sum(clients)

    def noise_for_sum(self, dimension: int, noise: NoiseSource) -> None:
        """Nobody adds anything."""
        return None

    def protected(self, dimension: int) -> Protected:
        """Return the mechanism's."""
        return self.counted.protected(dimension)

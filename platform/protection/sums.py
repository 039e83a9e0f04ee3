"""What a client does to the vector that is summed, and the coordinator with the sum.

The order is that of the mechanism: clip the whole difference as one vector with all that is
appended, add noise, put it on the grid that is masked and summed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from platform.errors import RunStopped
from platform.protection.extras import Extras, around
from platform.protection.group_choice import GroupReading
from platform.protection.secure_terms import SecureTerms
from platform.wire.layout import Summed, Totals, UploadLayout
from platform.wire.vectors import Spec, tensor_at
from privacy import (
    NO_STATE,
    ClientMechanism,
    Grid,
    NoiseSource,
    NoiseState,
    ProtectedUpload,
    SignalToNoise,
    UploadSaturated,
    grid_of,
    noise_in_sum,
    protect_upload,
    signal_to_noise,
)
from privacy.secure_aggregation import largest_norm, require_plausible_norm


@dataclass(frozen=True, kw_only=True)
class SumProtection:
    """How the sum of a round is protected.

    Attributes:
        mechanism: What is done to the vector.
        layout: Layout of the vector.
        bits: Bits of a quantised coordinate.
        masked: Whether the sum is taken under secure aggregation.
        clients: Most clients of one sum.
        terms: What the secure sum withstands, None without one.
        extras: What is clipped and noised beside the update.
        hides_size: Whether nothing may depend on how many clients are in a sum.
    """

    mechanism: ClientMechanism
    layout: UploadLayout
    bits: int
    masked: bool
    clients: int = 1
    terms: SecureTerms | None = None
    extras: Extras = field(default_factory=Extras)
    hides_size: bool = False

    @property
    def exact(self) -> bool:
        """Whether updates travel as they are: nothing is done to them and no mask needs a grid."""
        return self.mechanism.clipping_norm is None and not self.masked

    def around(self, clipping_norm: float) -> SumProtection:
        """Return the same around another norm of the update."""
        joint = self.extras.joint_norm(clipping_norm)
        return dataclasses.replace(
            self,
            mechanism=around(self.mechanism, joint),
            extras=dataclasses.replace(self.extras, clipping_norm=clipping_norm),
        )

    def grid(self) -> Grid:
        """Return the grid of the vector that is summed."""
        return self._grid

    @cached_property
    def _grid(self) -> Grid:
        # All clients of a simulation ask for it several times in every round.
        dimension = max(self.layout.protected, 1)
        return grid_of(self.mechanism, dimension, bits=self.bits, clients=self.clients)

    def carry(
        self, vector: NDArray[np.float64], noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> ProtectedUpload:
        """Protect a vector, all that is appended included, as levels of the grid.

        Raises:
            RunStopped: If a coordinate does not fit where nothing is clipped; names the tensor.
        """
        spec = self.layout.spec
        return protect(vector, self.mechanism, self.grid(), noise=noise, state=state, spec=spec)

    def average(self, totals: Totals, planned: int, noise: NoiseSource) -> Summed:
        """Return what becomes of a sum, with the coordinator's noise where that is the mechanism.

        Args:
            totals: The sum.
            planned: Clients that the round was planned for. Where the mechanism says so, sum and
                noise are divided by it, because the number that came out is not noised.
            noise: Where the coordinator's noise comes from.
        """
        added = self.mechanism.noise_for_sum(self.layout.protected, noise)
        sums = totals.sums if added is None else totals.sums + added
        if self.mechanism.divides_by == "survivors":
            return self.layout.average(dataclasses.replace(totals, sums=sums))
        summed = self.layout.average(Totals(sums, planned, planned))
        known = None if self.hides_size else totals.clients or None
        return dataclasses.replace(summed, survivors=known)

    def require_plausible(self, totals: Totals) -> None:
        """Refuse a sum that clipped updates and their noise cannot have made.

        It is all that can be checked of vectors that nobody sees: a longer sum proves that a
        client cheated or the ring wrapped around.

        Raises:
            ProtocolViolation: If the sum is too long.
        """
        mechanism, dimension = self.mechanism, self.layout.protected
        norm, groups = mechanism.clipping_norm, self.extras.groups
        if norm is None or not dimension:
            return
        bound = largest_norm(
            length=dimension,
            cohort_size=totals.clients,
            clipping_norm=norm if groups is None else groups.counts.length(norm),
            noise_standard_deviation=mechanism.client_deviation,
            step=2.0 * self.grid().step,
        )
        require_plausible_norm(totals.sums, bound)

    def group_reading(self, summed: Summed) -> GroupReading | None:
        """Return what a sum tells of its groups, None without groups.

        The floor follows from the noise of a sum of all that were invited: it is public.
        """
        return self.extras.group_reading(summed, noise_in_sum(self.mechanism, self.clients))

    def signal_to_noise(self, summed: Summed, survivors: int, planned: int) -> SignalToNoise | None:
        """Return the aggregate's, None where no noise of known size is in it."""
        deviation = noise_in_sum(self.mechanism, survivors)
        if not deviation or not self.layout.coordinates:
            return None
        size = planned if self.mechanism.divides_by == "planned" else survivors
        divisors = self.layout.divisors(size, size)
        return signal_to_noise(summed.vector * divisors, deviation)


def protect(
    vector: NDArray[np.float64],
    mechanism: ClientMechanism,
    grid: Grid,
    *,
    noise: NoiseSource,
    state: NoiseState,
    spec: Spec,
) -> ProtectedUpload:
    """Apply a mechanism, and name the tensor of a coordinate that does not fit.

    Raises:
        RunStopped: If there is one.
    """
    try:
        return protect_upload(vector, mechanism, grid, noise, state=state)
    except UploadSaturated as error:
        raise RunStopped(
            f"secure_aggregation.value_bound: {error.value_bound:g} is too small for tensor "
            f"{tensor_at(error.index, spec)!r}; raise it"
        ) from error

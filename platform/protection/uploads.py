"""What a client does to its update and its pool entry before either leaves it.

The order is that of the mechanism: clip the whole difference as one vector, add noise, put it on
the grid that is masked and summed. A pool entry travels as the difference to the broadcast too.
Under `same` it is the identical noised vector and no second release; under `independent` it is
noised on its own, with all the noise on the client, and charged on its own. Under `dp_sgd` update
and entry are made of noised steps, which are what is charged, and both only have to be carried.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, LocalResult
from platform.errors import ProtocolError, RunStopped
from platform.protection.extras import Extras, around
from platform.protection.prepared import Prepared as Prepared
from platform.protection.secure_terms import SecureTerms
from platform.wire.entries import (
    LARGEST_COORDINATE,
    entry_base,
    level_type,
    require_same,
    require_storable,
)
from platform.wire.layout import Summed, Totals, UploadLayout
from platform.wire.vectors import Spec, flatten, require_spec, tensor_at, unflatten, vector_length
from privacy import (
    AdaptiveClipping,
    Channel,
    ClientMechanism,
    CohortSampling,
    DpSgd,
    Grid,
    NoisedMetric,
    NoiseSource,
    Release,
    ReleaseKey,
    SignalToNoise,
    UploadSaturated,
    grid_of,
    noise_in_sum,
    protect_upload,
    release_of_upload,
    reserved,
    signal_to_noise,
)
from privacy.secure_aggregation import largest_norm, require_plausible_norm

LEVELS = "levels"


@dataclass(frozen=True)
class Protection:
    """How one run protects uploads.

    Attributes:
        mechanism: What is done to the vector that is summed.
        layout: Layout of that vector.
        pool_spec: The arrays of a pool entry, None without a pool.
        pool_noise: Whether the entry carries the sum's noise or its own.
        bits: Bits of a quantised coordinate.
        masked: Whether the sum is taken under secure aggregation.
        clients: Most clients of one sum.
        terms: What the secure sum withstands, None without one.
        pool_mechanism: What is done to a pool entry under `independent`, where it is not what is
            done to the sum: the noise of an entry must be on the client.
        training: Noise in local steps (`dp_sgd`); the mechanism only carries then.
        adaptive: How the clipping norm follows the clients, None where it is fixed.
        clipping_norm: C of the round as clients are told it, under adaptive clipping only.
        metric: How validation accuracies come with updates, None where they do not.
        update_norm: C of the update alone, where more than the update is clipped and noised.
        hides_size: Whether nothing may depend on how many clients are in a sum.
        charged: Whether a round is; not where all that leaves was released before (`dp_sgd`).
        collection: The protection of the round in which a pool is made once, after all others;
            None without such a pool.
        collects_at: Number of that round.
    """

    mechanism: ClientMechanism
    layout: UploadLayout
    pool_spec: Spec | None
    pool_noise: Literal["same", "independent"]
    bits: int
    masked: bool
    clients: int = 1
    terms: SecureTerms | None = None
    pool_mechanism: ClientMechanism | None = None
    training: DpSgd | None = None
    adaptive: AdaptiveClipping | None = None
    clipping_norm: float | None = None
    metric: NoisedMetric | None = None
    update_norm: float | None = None
    hides_size: bool = False
    charged: bool = True
    collection: Protection | None = None
    collects_at: int | None = None

    @property
    def extras(self) -> Extras:
        """What is clipped and noised beside the update."""
        return Extras(self.adaptive, self.metric, self.update_norm)

    @property
    def exact(self) -> bool:
        """Whether updates travel as they are: nothing is done to them and no mask needs a grid."""
        return self.mechanism.clipping_norm is None and not self.masked

    @property
    def has_client_noise(self) -> bool:
        """Whether what leaves a client for the sum carries noise of its own, anew each attempt."""
        return self.training is not None or self.mechanism.client_deviation > 0.0

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The releases of one client in one round."""
        if not self.charged:
            return ()
        sums: tuple[Channel, ...] = ("sum",) if self.layout.spec else ()
        if self.training is not None:
            # One row for the training covers whatever is made of it, at once or in the collection.
            hands_on = self.pool_spec is not None or self.collection is not None
            return ("sum",) if sums or hands_on else ()
        separate = self.pool_spec is not None and self.pool_noise == "independent"
        if separate or (self.pool_spec is not None and not sums):
            return (*sums, "pool")
        return sums

    @property
    def run_channels(self) -> tuple[Channel, ...]:
        """The releases of one client in the whole run, each channel once."""
        later = () if self.collection is None else self.collection.channels
        return (*self.channels, *(name for name in later if name not in self.channels))

    @property
    def noises_entry(self) -> bool:
        """Whether a pool entry travels as a noised difference; else as it is."""
        return self.entry_mechanism.clipping_norm is not None

    @property
    def entry_mechanism(self) -> ClientMechanism:
        """What is done to a pool entry."""
        return self.mechanism if self.pool_mechanism is None else self.pool_mechanism

    def in_round(self, round_number: int) -> Protection:
        """Return the protection of this round: the collection's in its round, else this one.

        Raises:
            ProtocolError: If the round would follow the collection, after which nothing is sent.
        """
        if self.collection is None or self.collects_at is None or round_number < self.collects_at:
            return self
        if round_number > self.collects_at:
            raise ProtocolError("message: the pool is made already, and nothing is sent after it")
        return self.collection

    def at(self, clipping_norm: float | None) -> Protection:
        """Return the protection of a round with this clipping norm.

        Raises:
            ProtocolError: If a norm is given where it is fixed, is missing, or is no length.
        """
        if (clipping_norm is None) != (self.adaptive is None):
            raise ProtocolError("message: a clipping norm must be given exactly where it adapts")
        if clipping_norm is None or self.adaptive is None:
            return self
        if not 1.0 / LARGEST_COORDINATE < clipping_norm < LARGEST_COORDINATE:
            raise ProtocolError("message: the clipping norm is not a length")
        return dataclasses.replace(
            self,
            mechanism=around(self.mechanism, self.extras.joint_norm(clipping_norm)),
            pool_mechanism=None
            if self.pool_mechanism is None
            else around(self.pool_mechanism, clipping_norm),
            clipping_norm=clipping_norm,
            update_norm=clipping_norm,
        )

    def grid(self) -> Grid:
        """Return the grid of the vector that is summed."""
        dimension = max(self.layout.protected, 1)
        return grid_of(self.mechanism, dimension, bits=self.bits, clients=self.clients)

    def prepare(
        self,
        result: LocalResult,
        broadcast: Arrays,
        noise: NoiseSource,
        validation: float | None = None,
    ) -> Prepared:
        """Protect one client's result.

        Args:
            result: What its training gave.
            broadcast: What it trained from.
            noise: The client's own.
            validation: Its validation accuracy, where that comes with the update.

        Raises:
            ProtocolError: If the accuracy is needed and missing.
            RunStopped: If a coordinate does not fit under mechanism `none`; names the tensor.
            UpdateSpecMismatch: If the method returned other tensors than it announced.
        """
        spec = self.layout.spec
        vector = flatten(result.update, spec)
        if self.exact:
            return Prepared(None, vector, self._exact_entry(result), self.channels)
        levels = self._carry(self.extras.append(vector, validation), noise)
        entry = self._protect_entry(result, broadcast, levels, noise)
        return Prepared(levels, self.grid().dequantise(levels), entry, self.channels)

    def prepare_nothing(self, broadcast: Arrays, noise: NoiseSource) -> Prepared:
        """Protect the zero vector, all that is appended included: a failed round's upload.

        Zero lies in every ball, so noise and charge are any other's. The entry is the broadcast.
        """
        zero, spec = np.zeros(self.layout.protected), self.pool_spec
        levels = None if self.exact else self._carry(zero, noise)
        values = zero if levels is None else self.grid().dequantise(levels)
        if spec is None:
            return Prepared(levels, values, {}, self.channels)
        if levels is not None and self.noises_entry:
            entry = self._noised_entry(np.zeros(vector_length(spec)), levels, noise)
        else:
            entry = unflatten(flatten(entry_base(broadcast, spec), spec), spec)
        return Prepared(levels, values, entry, self.channels)

    def verify_entry(self, entry: Arrays) -> None:
        """Check a pool entry as it arrived, before anything of its round is kept.

        Raises:
            ProtocolError: If levels are not what this run sends.
            UpdateSpecMismatch: If arrays are not those announced.
        """
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            require_spec(entry, spec)
            require_storable(flatten(entry, spec))
        if (LEVELS in entry) is not self.noises_entry:
            raise ProtocolError("message: the pool entry is not protected as this run asks")
        if LEVELS not in entry:
            return
        levels, grid = entry[LEVELS], self._entry_grid()
        if levels.shape != (vector_length(spec),) or levels.dtype != level_type(grid):
            raise ProtocolError("message: the pool entry has another length or type")
        if levels.size and int(levels.max()) > grid.largest_level:
            raise ProtocolError(f"message: a level of the pool entry is above {grid.largest_level}")

    def open_entry(self, entry: Arrays, broadcast: Arrays) -> dict[str, NDArray[np.float32]]:
        """Return a pool entry in absolute terms, from what a client sent."""
        spec = self.pool_spec or {}
        if LEVELS not in entry:
            return unflatten(flatten(entry, spec), spec)
        values = self._entry_grid().dequantise(entry[LEVELS])
        return unflatten(values + flatten(entry_base(broadcast, spec), spec), spec)

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
        if mechanism.clipping_norm is None or not dimension:
            return
        bound = largest_norm(
            length=dimension,
            cohort_size=totals.clients,
            clipping_norm=mechanism.clipping_norm,
            noise_standard_deviation=mechanism.client_deviation,
            step=2.0 * self.grid().step,
        )
        require_plausible_norm(totals.sums, bound)

    def signal_to_noise(self, summed: Summed, survivors: int, planned: int) -> SignalToNoise | None:
        """Return the aggregate's, None where no noise of known size is in it."""
        deviation = noise_in_sum(self.mechanism, survivors)
        if not deviation or not self.layout.coordinates:
            return None
        size = planned if self.mechanism.divides_by == "planned" else survivors
        divisors = self.layout.divisors(size, size)
        return signal_to_noise(summed.vector * divisors, deviation)

    def releases(
        self, key: ReleaseKey, cohort: CohortSampling | None = None
    ) -> tuple[Release, ...]:
        """Return one client's ledger rows for an attempt, reserved.

        Args:
            key: Which client, run, round and attempt; every channel of it has a row.
            cohort: How the round's clients were drawn, where that may amplify.
        """
        keys = [dataclasses.replace(key, channel=channel) for channel in self.channels]
        return tuple(self._release(one, cohort) for one in keys)

    def _release(self, key: ReleaseKey, cohort: CohortSampling | None) -> Release:
        if self.training is not None:
            # Whatever leaves is computed from the noised steps, so their row is the only one.
            return reserved(key, self.training.facts, self.training.protected())
        if key.channel == "pool":
            # An entry has its noise from its owner, whom the draw does not hide.
            dimension = vector_length(self.pool_spec or {})
            return release_of_upload(self.entry_mechanism, dimension, key)
        return release_of_upload(self.mechanism, self.layout.protected, key, cohort)

    def _exact_entry(self, result: LocalResult) -> Arrays:
        if self.pool_spec is None or result.pool_entry is None:
            return {}
        return unflatten(flatten(result.pool_entry, self.pool_spec), self.pool_spec)

    def _entry_grid(self) -> Grid:
        if self.pool_noise == "same" and self.layout.spec:
            return self.grid()
        dimension = max(vector_length(self.pool_spec or {}), 1)
        return grid_of(self.entry_mechanism, dimension, bits=self.bits, clients=1)

    def _protect_entry(
        self,
        result: LocalResult,
        broadcast: Arrays,
        levels: NDArray[np.uint64],
        noise: NoiseSource,
    ) -> Arrays:
        if self.pool_spec is None:
            return {}
        if not self.noises_entry:
            return self._exact_entry(result)
        entry, base = result.pool_entry or {}, entry_base(broadcast, self.pool_spec)
        require_spec(entry, self.pool_spec)
        difference = {name: entry[name] - base[name] for name in self.pool_spec}
        if self.pool_noise == "same":
            require_same(result.update, difference)
        return self._noised_entry(flatten(difference, self.pool_spec), levels, noise)

    def _noised_entry(
        self, difference: NDArray[np.float64], levels: NDArray[np.uint64], noise: NoiseSource
    ) -> Arrays:
        grid = self._entry_grid()
        if self.pool_noise == "independent":
            levels = _protect(difference, self.entry_mechanism, grid, noise, self.pool_spec or {})
        return {LEVELS: levels.astype(level_type(grid))}

    def _carry(self, vector: NDArray[np.float64], noise: NoiseSource) -> NDArray[np.uint64]:
        return _protect(vector, self.mechanism, self.grid(), noise, self.layout.spec)


def _protect(
    vector: NDArray[np.float64],
    mechanism: ClientMechanism,
    grid: Grid,
    noise: NoiseSource,
    spec: Spec,
) -> NDArray[np.uint64]:
    try:
        return protect_upload(vector, mechanism, grid, noise).levels
    except UploadSaturated as error:
        raise RunStopped(
            f"secure_aggregation.value_bound: {error.value_bound:g} is too small for tensor "
            f"{tensor_at(error.index, spec)!r}; raise it"
        ) from error

"""The terms of a run's masked sums, the client's protection of a vector, and the coordinator's sum.

Coordinator and clients compute the terms of secure aggregation from the configuration: graph and
thresholds, once, known to all. A client refuses an invitation with other terms: a lower threshold,
a smaller sum, a thinner graph or a missing signature never reaches the protocol.

The mechanism fixes the order: clip the whole difference with its extras as one vector, add noise,
and put it on the grid that is summed, masked or not.

The coordinator adds its own noise to the sum in the ring, before it decodes or checks anything. So
the outcome of a round is a function of the noised ring element, also if peers have sent wrong
vectors. `NoisedSum` is the only sum that can be opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from platform.config import RunConfig
from platform.errors import ConfigError, ProtocolError, RunStopped
from platform.protection.extras import Extras, GroupReading, around
from platform.wire.codec import Envelope
from platform.wire.layout import Spec, Summed, Totals, UploadLayout, tensor_at
from platform.wire.messages import SecureRound
from privacy import (
    NO_STATE,
    CalibrationError,
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
from privacy.secure_aggregation import (
    Adversary,
    RoundParameters,
    largest_norm,
    plan,
    require_plausible_norm,
)
from privacy.secure_aggregation.parameters import active_threshold


@dataclass(frozen=True, kw_only=True)
class SecureTerms:
    """The terms of every masked sum of a run.

    Attributes:
        clients: Size of a cohort.
        active: Whether the server may lie.
        threshold: Shares that rebuild a secret.
        smallest_sum: Fewest vectors that a sum may hold.
        corrupt: Clients that may collude with the server.
        degree: Neighbours of a client, 0 for the complete graph.
    """

    clients: int
    active: bool
    threshold: int
    smallest_sum: int
    corrupt: int
    degree: int = 0


def smallest_real_sum(config: RunConfig) -> int:
    """Return the fewest vectors of a sum that are not an audit's canaries."""
    return secure_terms(config).smallest_sum - config.canaries


def terms_of_others(config: RunConfig) -> SecureTerms:
    """Return the terms of a run's sums for clients that are not an audit's canaries."""
    terms, canaries = terms_of_sums(config), config.canaries
    return dataclasses.replace(
        terms,
        clients=terms.clients - canaries,
        threshold=terms.threshold - canaries,
        smallest_sum=terms.smallest_sum - canaries,
        corrupt=terms.corrupt - canaries,
    )


def secure_terms(config: RunConfig) -> SecureTerms:
    """Return the terms of a run whose sums are masked; `ConfigError` if no graph withstands it."""
    terms = terms_of_sums(config)
    if terms.active and config.secure_aggregation.enrolment is None:
        raise ConfigError(
            "secure_aggregation.enrolment: is missing; adversary = active needs the file that "
            "says whose keys are whose, as keys that only the server vouches for prove nothing "
            "against it"
        )
    return terms


def terms_of_sums(config: RunConfig) -> SecureTerms:
    """Return the terms of a run whose sums are masked, without a check of the enrolment.

    An audit's canaries count as clients that collude: the terms hold for the others as if the
    canaries were not there, so each number is larger by their number.
    """
    return _regular(config) or _complete(config)


def _complete(config: RunConfig) -> SecureTerms:
    section, clients = config.secure_aggregation, config.cohort_size
    canaries = config.canaries
    active = section.adversary == "active"
    threshold = config.threshold
    least = active_threshold(clients, section.corrupt)
    if active and threshold < least:
        raise ConfigError(
            f"secure_aggregation.threshold: {threshold} of {clients} does not withstand an active "
            f"adversary with secure_aggregation.corrupt = {section.corrupt}; valid: {least} to "
            f"{clients}"
        )
    return SecureTerms(
        clients=clients + canaries,
        active=active,
        threshold=threshold + canaries,
        smallest_sum=max(threshold, config.cohort.minimum) + canaries,
        corrupt=section.corrupt + canaries,
    )


def _regular(config: RunConfig) -> SecureTerms | None:
    """Return the k-regular graph if it is configured, or cheaper; None for the complete graph."""
    section, clients = config.secure_aggregation, config.cohort_size
    if section.adversary == "active" and section.graph == "k_regular":
        raise ConfigError(
            "secure_aggregation.graph: k_regular does not withstand an active adversary; valid: "
            "auto, complete"
        )
    asked = section.graph == "k_regular"
    if section.adversary == "active" or section.graph == "complete" or config.canaries:
        return None
    if section.threshold is not None:
        if asked:
            raise ConfigError(
                f"secure_aggregation.threshold: {section.threshold} is computed from the graph "
                "under graph = k_regular; leave it out"
            )
        return None
    try:
        found = plan(
            clients,
            # Half a client less, rounded up, gives the whole number even if the division rounds.
            corrupt_rate=max(section.corrupt - 0.5, 0.0) / clients,
            dropout_rate=max(section.tolerated_dropout_rate, config.cohort.dropout_rate),
            graph="k_regular" if asked else "auto",
        )
    except CalibrationError as error:
        if asked:
            raise ConfigError(f"secure_aggregation.graph: {error}") from error
        return None
    if not found.degree:
        return None
    smallest = max(found.smallest_sum, config.cohort.minimum)
    _require_enough(config, smallest)
    return SecureTerms(
        clients=clients,
        active=False,
        threshold=found.threshold,
        smallest_sum=smallest,
        corrupt=found.corrupt,
        degree=found.degree,
    )


def _require_enough(config: RunConfig, smallest: int) -> None:
    """Refuse a federation that would go on with fewer clients than the graph's sums need."""
    section = config.federation
    if section is None:
        return
    for key, enough in (("start_with", section.start_with), ("go_on_with", section.go_on_with)):
        if enough is not None and enough < smallest:
            raise ConfigError(
                f"federation.{key}: {enough} clients are fewer than the sum on this graph may be "
                f"of; valid: null, or {smallest} at least (see "
                "secure_aggregation.tolerated_dropout_rate)"
            )


def meets(parameters: RoundParameters, terms: SecureTerms) -> bool:
    """Return whether a round has the run's terms."""
    offered = SecureTerms(
        clients=len(parameters.clients),
        active=parameters.is_active,
        threshold=parameters.threshold,
        smallest_sum=parameters.smallest_sum,
        corrupt=parameters.corrupt,
        degree=parameters.degree,
    )
    return offered == terms


LARGEST_COHORT = 1 << 17
"""Most clients of one round that an invitation may name, so that a number costs no memory."""


@dataclass(frozen=True, eq=False)
class NoisedSum:
    """A round's sum in the ring with all its noise: the only sum that is decoded or checked.

    Attributes:
        levels: uint64 of shape (length,), the sum of all (weighted) levels modulo the ring.
        noise_state: The state from which the coordinator's noise of the run's next sum continues.
    """

    levels: NDArray[np.uint64]
    clients: int
    noise_state: NoiseState = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class SumProtection:
    """How the sum of a round is protected.

    Attributes:
        bits: Bits of a quantised coordinate.
        masked: Whether the sum is taken under secure aggregation.
        clients: Most clients of one sum.
        terms: The terms of the secure sum, None without masks.
        extras: The coordinates that are clipped and noised beside the update.
        hides_size: Whether the number of clients in a sum is secret.
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
        """Whether updates travel unchanged: without a mechanism, and without a mask's grid."""
        needs_grid = self.masked or self.mechanism.facts.is_bare_to_server
        return self.mechanism.clipping_norm is None and not needs_grid

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
        # All clients of a simulation need it several times in every round.
        dimension = max(self.layout.protected, 1)
        return grid_of(self.mechanism, dimension, bits=self.bits, clients=self.clients)

    def parameters(self, envelope: Envelope, seat: SecureRound) -> RoundParameters:
        """Return the protocol's parameters from a client's seat in a message, or `ProtocolError`.

        Both sides use this function, so that equal messages give equal parameters.
        """
        try:
            if not 1 <= seat.index <= seat.clients <= LARGEST_COHORT:
                raise ValueError("the seat is not one of the cohort's")
            ring_bits = self.layout.ring_bits(self.grid(), seat.clients)
            if (seat.vector_length, seat.ring_bits) != (self.layout.length, ring_bits):
                raise ValueError("the vector is not this run's")
            parameters = round_parameters(envelope, seat)
            if self.terms is not None and not meets(parameters, self.terms):
                raise ValueError("the terms of the secure sum are not this run's")
            return parameters
        except (ValueError, CalibrationError) as error:
            raise ProtocolError(f"message: the invitation is not valid: {error}") from error

    def carry(
        self, vector: NDArray[np.float64], noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> ProtectedUpload:
        """Protect a vector with its extras, as levels of the grid; see `protect` for the error."""
        spec = self.layout.spec
        return protect(vector, self.mechanism, self.grid(), noise=noise, state=state, spec=spec)

    def add_up(self, uploads: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
        """Return the sum of the levels of some clients, as a secure sum yields it."""
        total = np.zeros(self.layout.length, np.uint64)
        for levels in uploads:
            # Modulo 2^64, which is a multiple of every ring's size.
            total += levels
        return total & self._modulus(len(uploads))

    def noised(
        self,
        total: NDArray[np.uint64],
        clients: int,
        noise: NoiseSource,
        state: NoiseState = NO_STATE,
    ) -> NoisedSum:
        """Return a sum with the coordinator's noise, if the mechanism has such noise.

        `total` is the sum of the clients' levels, modulo the ring. `state` is the state that the
        noise of the last committed sum left.
        """
        added = self.mechanism.noise_for_sum(self.layout.protected, noise, state)
        if added is None:
            return NoisedSum(total, clients, state)
        # If clients weigh, the sum of their weights follows the protected coordinates.
        noised = total.copy()
        noised[: added.steps.size] += added.steps.astype(np.uint64)
        return NoisedSum(noised & self._modulus(clients), clients, added.state)

    def open(self, noised: NoisedSum) -> Totals:
        """Return the totals of a sum with all its noise; under masks see `require_plausible`."""
        totals = self.layout.open_sum(noised.levels, noised.clients, self.grid())
        if self.masked:
            self.require_plausible(totals)
        return dataclasses.replace(totals, noise_state=noised.noise_state)

    def average(self, totals: Totals, planned: int) -> Summed:
        """Return the average of a sum with all its noise.

        Some mechanisms divide by the number of clients that the round was `planned` for, because
        the number of survivors has no noise.
        """
        if self.mechanism.divides_by == "survivors":
            return self.layout.average(totals)
        summed = self.layout.average(Totals(totals.sums, planned, planned))
        known = None if self.hides_size else totals.clients or None
        return dataclasses.replace(summed, survivors=known)

    def _modulus(self, clients: int) -> np.uint64:
        """Return the ring's largest element, whose bits a sum of so many clients keeps."""
        return np.uint64(2 ** self.layout.ring_bits(self.grid(), clients) - 1)

    def require_plausible(self, totals: Totals) -> None:
        """Refuse a sum that clipped updates and their noise cannot have made.

        Vectors under masks allow no other check: a longer sum proves that a client cheated or that
        the ring wrapped around. The totals must have all noise: a check of a bare sum would leak
        data.
        """
        mechanism, dimension = self.mechanism, self.layout.protected
        norm, groups = mechanism.clipping_norm, self.extras.groups
        if norm is None or not dimension:
            return
        bound = largest_norm(
            length=dimension,
            cohort_size=totals.clients,
            clipping_norm=norm if groups is None else groups.counts.length(norm),
            noise_in_sum=noise_in_sum(mechanism, totals.clients),
            step=2.0 * self.grid().step,
        )
        require_plausible_norm(totals.sums, bound)

    def group_reading(self, summed: Summed) -> GroupReading | None:
        """Return the counts of groups in a sum, None without groups.

        The floor follows from the noise of a sum of all invited clients: it is public.
        """
        return self.extras.group_reading(summed, noise_in_sum(self.mechanism, self.clients))

    def signal_to_noise(self, summed: Summed, survivors: int, planned: int) -> SignalToNoise | None:
        """Return the aggregate's interval, None without noise of known size."""
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
    """Apply a mechanism; `RunStopped` names the tensor of a coordinate that does not fit."""
    try:
        return protect_upload(vector, mechanism, grid, noise, state=state)
    except UploadSaturated as error:
        raise RunStopped(
            f"secure_aggregation.value_bound: {error.value_bound:g} is too small for tensor "
            f"{tensor_at(error.index, spec)!r}; raise it"
        ) from error


def round_parameters(envelope: Envelope, secure: SecureRound) -> RoundParameters:
    """Return the secure aggregation's parameters as a message states them, or `ValueError`."""
    enrolled = secure.enrolled
    identities = () if enrolled is None else enrolled.identities
    return RoundParameters(
        run_id=envelope.run_id,
        round_number=envelope.round_number,
        attempt=envelope.attempt,
        clients=tuple(range(1, secure.clients + 1)),
        threshold=secure.terms.threshold,
        vector_length=secure.vector_length,
        ring_bits=secure.ring_bits,
        corrupt=secure.terms.corrupt,
        adversary=Adversary.ACTIVE if identities else Adversary.SEMI_HONEST,
        identities=identities,
        degree=secure.graph.degree,
        graph_seed=secure.graph.seed,
        smallest_sum=secure.terms.smallest_sum,
        enrolment_serial=0 if enrolled is None else enrolled.serial,
    )

"""Mechanisms on the reals, and the functions through which every mechanism is called.

`upload_noise` is the Gaussian mechanism (Dwork and Roth 2014, section 3.5.3) on the whole upload:
clip to C, add independent Gaussian noise of standard deviation noise_multiplier x C to every
coordinate, quantise. Everything after the noise is post-processing. The noise is floating-point, so
attacks on its lowest bits are not covered.
`none` only quantises, and its epsilon is infinite. Under `dp_sgd` the upload is computed from
noised steps, so it only has to be quantised too. One thing differs: coordinates beyond the bound
are cut and counted, not refused. The noise already covers an error that depends on noised values.

`dp_sgd` protects one record, with constants that the configuration fixes. Differentially private
SGD (Abadi et al. 2016, Algorithm 1): a step takes a Poisson sample of the records, scales each
record's gradient to L2 norm C, adds Gaussian noise of standard deviation noise_multiplier x C to
the sum and divides by a constant. The unit is one record, the client adds the noise, and everything
that is computed from the noised gradients costs nothing more.

No number here may depend on a client's data. A sampling probability B / n or a number of steps
ceil(n / B) would reveal n, which no noise covers; so would a division by the size of the batch that
was drawn.
The training itself is in `privacy.training`, which needs torch.

A mechanism is any object with all members of `ClientMechanism`. `grid_of`, `protect_upload`
and the functions after them hold for all mechanisms, also for those on the integer grid
(`privacy.central`, `privacy.distributed`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal, NoReturn, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privacy._validate import finite_vector, require_member, require_not_negative, require_positive
from privacy.clipping import clip
from privacy.errors import UnknownMechanism, UploadSaturated
from privacy.events import (
    GAUSSIAN,
    NO_NOISE,
    RELATIONS,
    CohortSampling,
    MechanismFacts,
    Protected,
    Relation,
    Release,
    ReleaseKey,
    gaussian_of,
    reserved,
)
from privacy.grids import Grid, Quantiser
from privacy.randomness import NO_STATE, NoiseSource, NoiseState, require_noise_source

_SATURATION_PROBABILITY = 2.0**-41

NONE = MechanismFacts(
    name="none",
    unit=None,
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)
"""What `none` means in a ledger: something left the client without noise."""

UPLOAD_NOISE = MechanismFacts(
    name="upload_noise",
    unit="client",
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)
"""What `upload_noise` means in a ledger: all of the noise is in what one client sends."""


@dataclass(frozen=True, eq=False)
class ProtectedUpload:
    """An upload that is ready to be masked, and what the client alone may know about it.

    Attributes:
        levels: uint64 of shape (n,): the only part that may leave the client.
        norm: L2 norm before clipping. Private.
        was_clipped: Whether the update was scaled. Private.
        saturated: How many noised coordinates lay beyond the quantiser's bound. Private.
        state: What the client's next upload of the run is protected with. Secret; empty unless the
            mechanism declares `keeps_state`.
    """

    levels: NDArray[np.uint64]
    norm: float
    was_clipped: bool
    saturated: int
    state: NoiseState = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class SumNoise:
    """What the coordinator adds to a sum.

    Attributes:
        steps: int64 of shape (n,), in steps of the grid.
        state: What its noise of the run's next sum goes on from. Secret; empty unless the mechanism
            declares `keeps_state`.
    """

    steps: NDArray[np.int64]
    state: NoiseState = field(default_factory=dict, repr=False)


class NoisedByClients:
    """What mechanisms share under which the clients add all noise, and the coordinator none."""

    @property
    def divides_by(self) -> Literal["survivors"]:
        """Divide by who is in the sum: a lost client's noise is missing as well."""
        return "survivors"

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> None:
        """Return None: the coordinator adds nothing."""
        return None


@dataclass(frozen=True)
class NoProtection(NoisedByClients):
    """Mechanism `none`: the upload is quantised as it is, and epsilon is infinite.

    Attributes:
        value_bound: Largest absolute coordinate that can be carried.
        relation: Recorded with every release; without noise it changes nothing.
        cuts: Whether a coordinate beyond the bound is cut to it and counted, as under `dp_sgd`,
            instead of refused.
        facts: What a release means in the ledger.
    """

    value_bound: float
    relation: Relation = "replace_one"
    cuts: bool = False
    facts: MechanismFacts = NONE

    def __post_init__(self) -> None:
        """Refuse a bound out of range."""
        require_positive(value_bound=self.value_bound)
        require_member(RELATIONS, relation=self.relation)

    @property
    def clipping_norm(self) -> None:
        """Nothing is clipped."""
        return None

    @property
    def client_deviation(self) -> float:
        """No noise."""
        return 0.0

    def around(self, clipping_norm: float) -> NoReturn:
        """Refuse: nothing is clipped."""
        raise UnknownMechanism("NoProtection clips nothing, so it has no other clipping_norm")

    def reach(self, dimension: int) -> float:
        """Return the bound of the configuration."""
        require_positive(dimension=dimension)
        return self.value_bound

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return evenly spaced levels up to the bound."""
        return Quantiser(self.reach(dimension), bits)

    def protect(
        self,
        vector: NDArray[Any],
        grid: Grid,
        noise: NoiseSource | None,
        state: NoiseState = NO_STATE,
    ) -> ProtectedUpload:
        """Quantise; see `privacy.protect_upload`.

        Raises:
            NonFiniteUpdate: A coordinate is NaN or infinite.
            UploadSaturated: A coordinate is beyond the bound and is not to be cut; the error
                carries the index of the worst.
        """
        finite, quantiser = finite_vector(vector), _quantiser(self, grid)
        quantised = quantiser.quantise(finite)
        if quantised.saturated and not self.cuts:
            raise UploadSaturated(
                "a coordinate is beyond secure_aggregation.value_bound "
                f"{quantiser.value_bound:g}; raise the bound",
                index=int(np.abs(finite).argmax()),
                value_bound=quantiser.value_bound,
            )
        norm = float(np.linalg.norm(finite))
        return ProtectedUpload(quantised.levels, norm, False, quantised.saturated)

    def noise_in_sum(self, clients: int) -> float:
        """Return 0."""
        return 0.0

    def protected(self, dimension: int) -> Protected:
        """Return that there is neither noise nor bound."""
        return Protected(
            standard_deviation=0.0, clipping_norm=0.0, relation=self.relation, law=NO_NOISE
        )


@dataclass(frozen=True)
class UploadNoise(NoisedByClients):
    """Mechanism `upload_noise`: clip the upload and add Gaussian noise to it on the client.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise over C; 0 is allowed, and then epsilon
            is infinite.
        relation: What a neighbour is: sensitivity is 2C under replace_one, else C.
        facts: What a release means in the ledger.
    """

    clipping_norm: float
    noise_multiplier: float
    relation: Relation = "replace_one"
    facts: MechanismFacts = UPLOAD_NOISE

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_positive(clipping_norm=self.clipping_norm)
        require_not_negative(noise_multiplier=self.noise_multiplier)
        require_member(RELATIONS, relation=self.relation)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on each coordinate, in the units of the update."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def client_deviation(self) -> float:
        """All of the noise."""
        return self.standard_deviation

    def around(self, clipping_norm: float) -> UploadNoise:
        """Return the same noise around another norm."""
        return dataclasses.replace(self, clipping_norm=clipping_norm)

    def reach(self, dimension: int) -> float:
        """Return how far from zero a noised coordinate may lie: C and the reach of the noise.

        Args:
            dimension: n, coordinates of the upload, at least 1.
        """
        return self.clipping_norm + noise_reach(dimension) * self.standard_deviation

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return evenly spaced levels, as the noise is on the reals."""
        return Quantiser(self.reach(dimension), bits)

    def protect(
        self,
        vector: NDArray[Any],
        grid: Grid,
        noise: NoiseSource | None,
        state: NoiseState = NO_STATE,
    ) -> ProtectedUpload:
        """Clip, add noise and quantise, in the order that the guarantee needs.

        Formal guarantee: `levels` is a function of the Gaussian mechanism's output with sensitivity
        2C (replace_one) or C (add_or_remove_one) and `standard_deviation`, provided that
        `noise.protects`.

        Raises:
            NonFiniteUpdate: A coordinate is NaN or infinite.
            TypeError: Noise is needed and `noise` is not a noise source.
        """
        quantiser = _quantiser(self, grid)
        clipped = clip(vector, self.clipping_norm)
        noised = clipped.vector
        if self.standard_deviation:
            source = require_noise_source(noise)
            noised = noised + source.draw(GAUSSIAN, self.standard_deviation, noised.size)
        quantised = quantiser.quantise(noised)
        return ProtectedUpload(
            quantised.levels, clipped.norm, clipped.was_clipped, quantised.saturated
        )

    def noise_in_sum(self, clients: int) -> float:
        """Return all clients' noise together."""
        return self.standard_deviation * math.sqrt(clients)

    def protected(self, dimension: int) -> Protected:
        """Return noise and norm of one upload."""
        return Protected(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.clipping_norm,
            relation=self.relation,
            law=gaussian_of(self.standard_deviation),
        )


FloatMechanism = NoProtection | UploadNoise
"""What is done to an upload on the reals, before it is quantised."""


def noise_reach(dimension: int) -> float:
    """Return how many deviations n Gaussians all stay within, but for a probability of 2^-41.

    By the union bound over coordinates some noise passes k of them with probability at most
    2 n Phi(-k).
    """
    require_positive(dimension=dimension)
    return -float(ndtri(_SATURATION_PROBABILITY / (2.0 * dimension)))


def wrong_grid(mechanism: object, grid: Grid) -> TypeError:
    """Return the error that a grid is not one of this mechanism's."""
    return TypeError(f"a {type(grid).__name__} is not the grid of {type(mechanism).__name__}")


def _quantiser(mechanism: FloatMechanism, grid: Grid) -> Quantiser:
    if not isinstance(grid, Quantiser):
        raise wrong_grid(mechanism, grid)
    return grid


DP_SGD = MechanismFacts(
    name="dp_sgd",
    unit="record",
    is_in_steps=True,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)
"""What `dp_sgd` means in a ledger: all that leaves is computed from noised steps."""


@dataclass(frozen=True, kw_only=True)
class DpSgd:
    """Noise in every local step: the same numbers for every client, whatever it holds.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients over
            `clipping_norm`; 0 is allowed, and then epsilon is infinite.
        clipping_norm: C, the largest L2 norm of one record's gradient over all trained parameters
            together.
        sampling_probability: With which each record is in a batch, on its own coin; above 0.
        steps: Optimiser steps of one fit, each one composition.
        expected_batch_size: What the noised sum is divided by, in place of the size drawn.
        relation: What a neighbour is: one record more or less (sensitivity C), or another one in
            its place (2C).
        facts: What a release means in the ledger.
    """

    noise_multiplier: float
    clipping_norm: float
    sampling_probability: float
    steps: int
    expected_batch_size: float
    relation: Relation = "add_or_remove_one"
    facts: MechanismFacts = DP_SGD

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_not_negative(noise_multiplier=self.noise_multiplier)
        require_positive(
            clipping_norm=self.clipping_norm,
            steps=self.steps,
            expected_batch_size=self.expected_batch_size,
        )
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability is {self.sampling_probability}; it must be above 0 and at "
                "most 1"
            )
        require_member(RELATIONS, relation=self.relation)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on each coordinate of the sum of clipped gradients."""
        return self.noise_multiplier * self.clipping_norm

    def protected(self) -> Protected:
        """Return one fit, in the numbers of its ledger row.

        Upload and pool entry are computed from what training gave, so one row covers both, as it
        covers the personal state that later rounds start from.
        """
        return Protected(
            standard_deviation=self.standard_deviation,
            clipping_norm=self.clipping_norm,
            relation=self.relation,
            law=gaussian_of(self.standard_deviation),
            sampling_probability=self.sampling_probability,
            count=self.steps,
        )


class ClientMechanism(Protocol):
    """What happens to one vector between a client and the sum, and what its ledger row says.

    What it clips (`clipping_norm`, `around`), what it adds (`protect`, `client_deviation`,
    `noise_for_sum`), what it releases (`facts`, `protected`), what the sum carries (`grid`,
    `noise_in_sum`) and how a lost client changes that (`divides_by`).
    """

    @property
    def facts(self) -> MechanismFacts:
        """What a release means in the ledger."""
        ...

    @property
    def relation(self) -> Relation:
        """What a neighbour is."""
        ...

    @property
    def clipping_norm(self) -> float | None:
        """C, in the units of the update; None where nothing is clipped."""
        ...

    @property
    def client_deviation(self) -> float:
        """Of the noise that leaves one client on each coordinate, in the units of the update."""
        ...

    @property
    def divides_by(self) -> Literal["survivors", "planned"]:
        """What a sum is divided by: clients that are in it, or those that it was planned for."""
        ...

    def around(self, clipping_norm: float) -> Self:
        """Return the same mechanism around another norm, at the same cost."""
        ...

    def grid(self, dimension: int, *, bits: int, clients: int) -> Grid:
        """Return the grid on which so many coordinates of so many clients travel and are summed."""
        ...

    def protect(
        self, vector: NDArray[Any], grid: Grid, noise: NoiseSource, state: NoiseState
    ) -> ProtectedUpload:
        """Clip, add the client's noise by `noise.draw`, and put the result on the grid.

        The state is what the same client's last upload of the run left, empty before the first.
        """
        ...

    def noise_in_sum(self, clients: int) -> float:
        """Return the deviation of all noise on a coordinate of a finished sum of so many."""
        ...

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState
    ) -> SumNoise | None:
        """Return what the coordinator adds to a sum, None where it adds nothing.

        It is added in the ring, before the sum is decoded or checked. The state is what the noise
        of the run's last committed sum left, empty before the first.
        """
        ...

    def protected(self, dimension: int) -> Protected:
        """Return the numbers of the ledger row of one upload of so many coordinates."""
        ...


def require_mechanism(mechanism: object) -> ClientMechanism:
    """Return the object; `UnknownMechanism` if it lacks a member of `ClientMechanism`."""
    missing: list[str] = []
    if not _has_all(cast("Hashable", type(mechanism))):
        missing = [name for name in _asked() if not hasattr(mechanism, name)]
    if missing:
        raise UnknownMechanism(
            f"{type(mechanism).__name__} is no mechanism for uploads: it has no "
            f"{', '.join(missing)}"
        )
    # Not by `isinstance`, which collects a protocol's names anew each time.
    return cast("ClientMechanism", mechanism)


@lru_cache(maxsize=64)
def _has_all(kind: Hashable) -> bool:
    """Return whether every instance of a type has all members of a mechanism."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return all(hasattr(kind, name) or name in fields for name in _asked())


@cache
def _asked() -> tuple[str, ...]:
    """Return the names of a mechanism's members."""
    return tuple(sorted(name for name in vars(ClientMechanism) if not name.startswith("_")))


def grid_of(mechanism: ClientMechanism, dimension: int, *, bits: int, clients: int) -> Grid:
    """Return the grid on which a mechanism's uploads travel.

    Args:
        mechanism: What is done to the upload.
        dimension: Its number of coordinates, at least 1.
        bits: Of a coordinate, where it is quantised after noise on the reals.
        clients: Most clients of one sum, where the noise lives on the grid itself.

    Raises:
        CalibrationError: No ring holds the sum.
        UnknownMechanism: It is no mechanism.
    """
    return require_mechanism(mechanism).grid(dimension, bits=bits, clients=clients)


def protect_upload(
    vector: NDArray[Any],
    mechanism: ClientMechanism,
    grid: Grid,
    noise: NoiseSource,
    *,
    state: NoiseState = NO_STATE,
) -> ProtectedUpload:
    """Apply a mechanism to an upload. Who may see the result depends on the mechanism.

    Args:
        vector: The update as one flat vector of shape (n,): all tensors, difference to what was
            broadcast.
        mechanism: What to do.
        grid: From `grid_of`, for the same mechanism.
        noise: Where noise and rounding come from.
        state: What the same client's last upload of the run left; empty before the first.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        UploadSaturated: Under `NoProtection` a coordinate is beyond the bound.
        TypeError: `noise` is not a noise source, or `grid` is of another kind.
        UnknownMechanism: It is no mechanism, or one that keeps a state without declaring so.
        ValueError: `grid` has another scale, so the sum would be opened wrongly.
    """
    # Here, because a mechanism that draws no noise itself would not check it.
    require_noise_source(noise)
    protected = require_mechanism(mechanism).protect(vector, grid, noise, state)
    if protected.state and not mechanism.facts.keeps_state:
        # Its state would be lost, so that every round's noise would be drawn like the first.
        raise UnknownMechanism(f"{mechanism.facts.name} keeps a state and declares none")
    return protected


def release_of_upload(
    mechanism: ClientMechanism,
    dimension: int,
    key: ReleaseKey,
    cohort: CohortSampling | None = None,
) -> Release:
    """Return the ledger row for one upload, reserved.

    Args:
        mechanism: What protects it.
        dimension: Coordinates of the update.
        key: Which release it is.
        cohort: How the round's clients were drawn, where that may amplify.

    Raises:
        UnknownMechanism: It is no mechanism.
        ValueError: The mechanism does not protect this channel, or a cohort is given that cannot
            amplify it.
    """
    found = require_mechanism(mechanism)
    return reserved(key, found.facts, found.protected(dimension), cohort)


def with_clipping_norm(mechanism: ClientMechanism, clipping_norm: float) -> ClientMechanism:
    """Return the same mechanism around another norm: noise and grid go with it.

    Noise multiplier and norm in steps of the grid stay, so a release costs what it did. A new scale
    would change that by some 1e-5, and could pass the budget that the noise was calibrated to.

    Raises:
        UnknownMechanism: Nothing is clipped under it.
        ValueError: `clipping_norm` is not finite and positive, or too small for any grid.
    """
    require_positive(clipping_norm=clipping_norm)
    return require_mechanism(mechanism).around(clipping_norm)


def noise_in_sum(mechanism: ClientMechanism, clients: int) -> float:
    """Return the standard deviation of the noise on each coordinate of a sum of so many uploads.

    Rounding to the grid is not counted. 0 where there is none.
    """
    return require_mechanism(mechanism).noise_in_sum(clients)

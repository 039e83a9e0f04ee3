"""Mechanisms: what is done to an upload on the client before it is masked and sent.

`upload_noise` is the Gaussian mechanism (Dwork and Roth 2014, section 3.5.3) on the whole upload:
clip to C, add independent Gaussian noise of standard deviation noise_multiplier x C to every
coordinate, quantise. Everything after the noise is post-processing. The noise is floating-point, so
attacks on its lowest bits are not covered.
`none` only quantises, and costs infinity. Under `dp_sgd` an upload is made of noised steps and only
has to be carried, so it is treated the same but for saturation, which is counted there and not
refused: an error that depends on values that were noised tells nothing more than they do.

`privacy.uploads` is the one door to these and to the mechanisms on the integer grid.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privacy._validate import (
    finite_vector,
    require_member,
    require_not_negative,
    require_positive,
)
from privacy.clipping import clip
from privacy.errors import UnknownMechanism, UploadSaturated
from privacy.events import RELATIONS, Protected, Relation
from privacy.facts import MechanismFacts
from privacy.grids import Grid
from privacy.noise_laws import GAUSSIAN, NO_NOISE, gaussian_of
from privacy.quantisation import Quantiser
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
"""What `none` means in a ledger: something left, and nothing bounds what it tells."""

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


@dataclass(frozen=True)
class NoProtection:
    """Mechanism `none`: the upload is quantised as it is, and epsilon is infinite.

    Attributes:
        value_bound: Largest absolute coordinate that can be carried.
        relation: Kept so that every release names one; it changes nothing here.
        cuts: Whether a coordinate beyond the bound is cut to it and counted, as under `dp_sgd`, in
            place of being refused.
        facts: What a release means in the ledger.
    """

    value_bound: float
    relation: Relation = "replace_one"
    cuts: bool = False
    facts: MechanismFacts = NONE

    def __post_init__(self) -> None:
        """Refuse a bound that carries nothing."""
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

    @property
    def divides_by(self) -> Literal["survivors"]:
        """A mean is over those who are in the sum."""
        return "survivors"

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
        return _carry(finite_vector(vector), _quantiser(self, grid), cuts=self.cuts)

    def noise_in_sum(self, clients: int) -> float:
        """Return 0."""
        return 0.0

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> None:
        """Nobody adds anything."""
        return None

    def protected(self, dimension: int) -> Protected:
        """Return that there is neither noise nor bound."""
        return Protected(
            standard_deviation=0.0, clipping_norm=0.0, relation=self.relation, law=NO_NOISE
        )


@dataclass(frozen=True)
class UploadNoise:
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
        """Refuse numbers that mean nothing."""
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

    @property
    def divides_by(self) -> Literal["survivors"]:
        """A lost client takes its noise with it, and a mean is over those who are in the sum."""
        return "survivors"

    def around(self, clipping_norm: float) -> UploadNoise:
        """Return the same noise around another norm."""
        return dataclasses.replace(self, clipping_norm=clipping_norm)

    def reach(self, dimension: int) -> float:
        """Return as far as a noised coordinate may reach: C and the reach of the noise.

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
            TypeError: Noise is needed and `noise` is not a noise source (a bare generator is none).
        """
        quantiser = _quantiser(self, grid)
        clipped = clip(vector, self.clipping_norm)
        noised = clipped.vector + _draw(self.standard_deviation, clipped.vector.size, noise)
        quantised = quantiser.quantise(noised)
        return ProtectedUpload(
            quantised.levels, clipped.norm, clipped.was_clipped, quantised.saturated
        )

    def noise_in_sum(self, clients: int) -> float:
        """Return all clients' noise together."""
        return self.standard_deviation * math.sqrt(clients)

    def noise_for_sum(
        self, dimension: int, noise: NoiseSource, state: NoiseState = NO_STATE
    ) -> None:
        """Nobody adds anything: all of the noise is in."""
        return None

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
    """Return the standard deviations that no Gaussian of n passes but with probability 2^-41.

    By the union bound over coordinates some noise passes k of them with probability at most
    2 n Phi(-k).

    Args:
        dimension: n, at least 1.
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


def _draw(standard_deviation: float, size: int, noise: NoiseSource | None) -> NDArray[np.float64]:
    if standard_deviation == 0.0:
        return np.zeros(size)
    return require_noise_source(noise).draw(GAUSSIAN, standard_deviation, size)


def _carry(vector: NDArray[np.float64], quantiser: Quantiser, *, cuts: bool) -> ProtectedUpload:
    quantised = quantiser.quantise(vector)
    if quantised.saturated and not cuts:
        worst = int(np.abs(vector).argmax())
        raise UploadSaturated(
            f"a coordinate is beyond secure_aggregation.value_bound {quantiser.value_bound:g}; "
            "raise the bound",
            index=worst,
            value_bound=quantiser.value_bound,
        )
    return ProtectedUpload(
        quantised.levels, float(np.linalg.norm(vector)), False, quantised.saturated
    )

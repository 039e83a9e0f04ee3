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

from dataclasses import dataclass
from typing import Any

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
from privacy.errors import UploadSaturated
from privacy.events import RELATIONS, Channel, Relation, Release, Status
from privacy.quantisation import Quantiser
from privacy.randomness import NoiseSource, require_noise_source

_SATURATION_PROBABILITY = 2.0**-41


@dataclass(frozen=True)
class NoProtection:
    """Mechanism `none`: the upload is quantised as it is, and epsilon is infinite.

    Attributes:
        value_bound: Largest absolute coordinate that can be carried.
        relation: Kept so that every release names one; it changes nothing here.
        cuts: Whether a coordinate beyond the bound is cut to it and counted, as under `dp_sgd`, in
            place of being refused.
    """

    value_bound: float
    relation: Relation = "replace_one"
    cuts: bool = False

    def __post_init__(self) -> None:
        """Refuse a bound that carries nothing."""
        require_positive(value_bound=self.value_bound)
        require_member(RELATIONS, relation=self.relation)


@dataclass(frozen=True)
class UploadNoise:
    """Mechanism `upload_noise`: clip the upload and add Gaussian noise to it on the client.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise over C; 0 is allowed, and then epsilon
            is infinite.
        relation: What a neighbour is: sensitivity is 2C under replace_one, else C.
    """

    clipping_norm: float
    noise_multiplier: float
    relation: Relation = "replace_one"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        require_positive(clipping_norm=self.clipping_norm)
        require_not_negative(noise_multiplier=self.noise_multiplier)
        require_member(RELATIONS, relation=self.relation)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on each coordinate, in the units of the update."""
        return self.noise_multiplier * self.clipping_norm


FloatMechanism = NoProtection | UploadNoise
"""What is done to an upload on the reals, before it is quantised."""


@dataclass(frozen=True, eq=False)
class ProtectedUpload:
    """An upload that is ready to be masked, and what the client alone may know about it.

    Attributes:
        levels: uint64 of shape (n,): the only part that may leave the client.
        norm: L2 norm before clipping. Private.
        was_clipped: Whether the update was scaled. Private.
        saturated: How many noised coordinates lay beyond the quantiser's bound. Private.
    """

    levels: NDArray[np.uint64]
    norm: float
    was_clipped: bool
    saturated: int


def protect(
    vector: NDArray[Any],
    mechanism: FloatMechanism,
    quantiser: Quantiser,
    noise: NoiseSource | None,
) -> ProtectedUpload:
    """Apply a mechanism to an upload, in the order that its guarantee needs.

    Formal guarantee under `UploadNoise`: `levels` is a function of the Gaussian mechanism's output
    with sensitivity 2C (replace_one) or C (add_or_remove_one) and the mechanism's standard
    deviation, provided that `noise.protects`. Under `NoProtection` there is none.

    Args:
        vector: The update as one flat vector of shape (n,): all tensors, difference to what was
            broadcast.
        mechanism: What to do.
        quantiser: How coordinates become integers; take its bound from `value_bound`.
        noise: Where the noise comes from; may be None only where none is drawn.

    Returns:
        The integers to mask and send, with what stays on the client.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        UploadSaturated: Under `NoProtection` a coordinate is beyond the quantiser's bound and is
            not to be cut; the error carries the index of the worst.
        TypeError: Noise is needed and `noise` is not a noise source (a bare generator is none).
    """
    if isinstance(mechanism, NoProtection):
        return _carry(finite_vector(vector), quantiser, cuts=mechanism.cuts)
    clipped = clip(vector, mechanism.clipping_norm)
    noised = clipped.vector + _draw(mechanism.standard_deviation, clipped.vector.size, noise)
    quantised = quantiser.quantise(noised)
    return ProtectedUpload(quantised.levels, clipped.norm, clipped.was_clipped, quantised.saturated)


def _draw(standard_deviation: float, size: int, noise: NoiseSource | None) -> NDArray[np.float64]:
    if standard_deviation == 0.0:
        return np.zeros(size)
    return standard_deviation * require_noise_source(noise).standard_normal(size)


def _carry(vector: NDArray[np.float64], quantiser: Quantiser, *, cuts: bool) -> ProtectedUpload:
    quantised = quantiser.quantise(vector)
    if quantised.saturated and not cuts:
        worst = int(np.abs(vector).argmax())
        raise UploadSaturated(
            f"{quantised.saturated} of {vector.size} coordinates are beyond "
            f"secure_aggregation.value_bound {quantiser.value_bound:g}, the worst at {worst}; "
            "raise the bound",
            index=worst,
            saturated=quantised.saturated,
        )
    return ProtectedUpload(
        quantised.levels, float(np.linalg.norm(vector)), False, quantised.saturated
    )


def value_bound(mechanism: FloatMechanism, dimension: int) -> float:
    """Return the quantiser's bound: as far as a protected coordinate may reach.

    A clipped coordinate is within C. By the union bound over coordinates the noise passes k
    standard deviations with probability at most 2 n Phi(-k); k is chosen to make that 2^-40 / 2.

    Args:
        mechanism: What is done to the upload.
        dimension: n, its number of coordinates, at least 1.

    Returns:
        `C + k sd` under `UploadNoise`, with which some coordinate saturates with probability below
        2^-40; the bound of the configuration under `NoProtection`.

    Raises:
        ValueError: `dimension` is not positive.
    """
    require_positive(dimension=dimension)
    if isinstance(mechanism, NoProtection):
        return mechanism.value_bound
    headroom = -float(ndtri(_SATURATION_PROBABILITY / (2.0 * dimension)))
    return mechanism.clipping_norm + headroom * mechanism.standard_deviation


def release(
    mechanism: FloatMechanism,
    *,
    channel: Channel,
    run_id: str,
    round_number: int,
    attempt: int,
    pseudonym: str,
    status: Status = "reserved",
) -> Release:
    """Return the ledger row for one upload under `mechanism`, reserved unless said otherwise.

    Args:
        mechanism: What protects the upload.
        channel: "sum", also for a pool entry that is the very same noised vector; "pool" for one
            with noise of its own.
        run_id: The run.
        round_number: The round.
        attempt: Which try of it.
        pseudonym: The client, as its ledger calls it.
        status: "reserved" before anything is sent.
    """
    noised = mechanism if isinstance(mechanism, UploadNoise) else None
    return Release(
        mechanism="upload_noise" if noised else "none",
        standard_deviation=noised.standard_deviation if noised else 0.0,
        clipping_norm=noised.clipping_norm if noised else 0.0,
        relation=mechanism.relation,
        channel=channel,
        run_id=run_id,
        round_number=round_number,
        attempt=attempt,
        pseudonym=pseudonym,
        status=status,
    )

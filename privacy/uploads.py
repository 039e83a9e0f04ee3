"""One door to every mechanism that treats a client's upload: how it is carried, noised and charged.

The mechanisms themselves are in modules of their own; here is only which function belongs to
which. One that is not listed is refused by the type checker and, at run time, by
`UnknownMechanism`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NoReturn

from numpy.typing import NDArray

from privacy._validate import require_positive
from privacy.central import CentralNoise, central_ring_bits, protect_for_centre, release_to_centre
from privacy.distributed import (
    DistributedNoise,
    protect_share,
    release_of_share,
    required_ring_bits,
)
from privacy.errors import UnknownMechanism
from privacy.events import Channel, CohortSampling, Release
from privacy.grids import Grid, SignedGrid
from privacy.integer_upload import (
    IntegerUploadNoise,
    protect_integer_upload,
    release_of_integer_upload,
)
from privacy.mechanisms import (
    NoProtection,
    ProtectedUpload,
    UploadNoise,
    protect,
    release,
    value_bound,
)
from privacy.quantisation import Quantiser
from privacy.randomness import NoiseSource, require_noise_source

ClientMechanism = NoProtection | UploadNoise | IntegerUploadNoise | DistributedNoise | CentralNoise
"""What can be done to an upload on the client."""

NoisyMechanism = UploadNoise | IntegerUploadNoise | DistributedNoise | CentralNoise
"""Those whose uploads cost a finite epsilon."""


def grid_of(mechanism: ClientMechanism, dimension: int, *, bits: int, clients: int) -> Grid:
    """Return the grid on which a mechanism's uploads travel.

    Args:
        mechanism: What is done to the upload.
        dimension: Its number of coordinates, at least 1.
        bits: Of a coordinate, where it is quantised after noise on the reals.
        clients: Most clients of one sum, where the noise lives on the grid itself.

    Raises:
        CalibrationError: No ring holds the sum.
    """
    match mechanism:
        case NoProtection() | UploadNoise():
            return Quantiser(value_bound(mechanism, dimension), bits)
        case IntegerUploadNoise():
            share = mechanism.share
            ring = required_ring_bits(share, dimension=dimension, clients=clients)
            return SignedGrid(mechanism.scale, ring, clients)
        case DistributedNoise():
            ring = required_ring_bits(mechanism, dimension=dimension, clients=clients)
            return SignedGrid(mechanism.scale, ring, clients)
        case CentralNoise():
            ring = central_ring_bits(mechanism, dimension=dimension, clients=clients)
            return SignedGrid(mechanism.scale, ring, clients)
    _refuse(mechanism)


def protect_upload(
    vector: NDArray[Any], mechanism: ClientMechanism, grid: Grid, noise: NoiseSource
) -> ProtectedUpload:
    """Apply a mechanism to an upload; what the result may be shown to differs, see `Release`.

    Args:
        vector: The update as one flat vector of shape (n,): all tensors, difference to what was
            broadcast.
        mechanism: What to do.
        grid: From `grid_of`, for the same mechanism.
        noise: Where noise and rounding come from.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        UploadSaturated: Under `NoProtection` a coordinate is beyond the bound.
        TypeError: `noise` is not a noise source, or `grid` is of another kind.
        ValueError: `grid` has another scale, so the sum would be opened wrongly.
    """
    require_noise_source(noise)
    match mechanism:
        case NoProtection() | UploadNoise():
            if not isinstance(grid, Quantiser):
                raise _wrong_kind(mechanism, grid)
            return protect(vector, mechanism, grid, noise)
        case IntegerUploadNoise():
            ring = _ring_of(mechanism, grid)
            return protect_integer_upload(vector, mechanism, ring_bits=ring, noise=noise)
        case DistributedNoise():
            ring = _ring_of(mechanism, grid)
            return protect_share(vector, mechanism, ring_bits=ring, noise=noise)
        case CentralNoise():
            ring = _ring_of(mechanism, grid)
            return protect_for_centre(vector, mechanism, ring_bits=ring, noise=noise)
    _refuse(mechanism)


def _ring_of(mechanism: IntegerUploadNoise | DistributedNoise | CentralNoise, grid: Grid) -> int:
    if not isinstance(grid, SignedGrid):
        raise _wrong_kind(mechanism, grid)
    if grid.scale != mechanism.scale:
        raise ValueError(f"the grid's scale is {grid.scale:g}; it must be {mechanism.scale:g}")
    return grid.bits


def _wrong_kind(mechanism: ClientMechanism, grid: Grid) -> TypeError:
    return TypeError(f"a {type(grid).__name__} is not the grid of {type(mechanism).__name__}")


def release_of_upload(
    mechanism: ClientMechanism,
    dimension: int,
    *,
    channel: Channel,
    run_id: str,
    round_number: int,
    attempt: int,
    pseudonym: str,
    cohort: CohortSampling | None = None,
) -> Release:
    """Return the ledger row for one upload, reserved.

    Args:
        mechanism: What protects it.
        dimension: Coordinates of the update.
        channel: Where it goes.
        run_id: The run.
        round_number: The round.
        attempt: Which try of it.
        pseudonym: The client, as its ledger calls it.
        cohort: How the round's clients were drawn; under `CentralNoise` only.

    Raises:
        ValueError: The channel is none of the mechanism's, or a cohort is given beside another.
    """
    if cohort is not None and not isinstance(mechanism, CentralNoise):
        raise ValueError(f"cohort must be None under {type(mechanism).__name__}")
    key: dict[str, Any] = {
        "run_id": run_id,
        "round_number": round_number,
        "attempt": attempt,
        "pseudonym": pseudonym,
    }
    match mechanism:
        case NoProtection() | UploadNoise():
            return release(mechanism, channel=channel, **key)
        case IntegerUploadNoise():
            return release_of_integer_upload(mechanism, dimension, channel=channel, **key)
        case DistributedNoise():
            return release_of_share(mechanism, dimension, channel=channel, **key)
        case CentralNoise():
            return release_to_centre(mechanism, dimension, channel=channel, cohort=cohort, **key)
    _refuse(mechanism)


def with_clipping_norm(mechanism: NoisyMechanism, clipping_norm: float) -> NoisyMechanism:
    """Return the same mechanism around another norm: noise and grid go with it.

    Noise multiplier and norm in steps of the grid stay, so a release costs what it did and what
    was calibrated to a budget stays within it; a scale chosen anew would leave it by some 1e-5.

    Raises:
        UnknownMechanism: Nothing is clipped under it.
        ValueError: `clipping_norm` is not finite and positive, or too small for any grid.
    """
    require_positive(clipping_norm=clipping_norm)
    match mechanism:
        case UploadNoise():
            return dataclasses.replace(mechanism, clipping_norm=clipping_norm)
        case IntegerUploadNoise() | DistributedNoise() | CentralNoise():
            scale = mechanism.scaled_norm / clipping_norm
            return dataclasses.replace(mechanism, clipping_norm=clipping_norm, scale=scale)
    _refuse(mechanism)


def noise_in_sum(mechanism: ClientMechanism, clients: int) -> float:
    """Return the standard deviation of the noise on each coordinate of a sum of so many uploads.

    Rounding to the grid is not counted. 0 where there is none.
    """
    match mechanism:
        case NoProtection():
            return 0.0
        case UploadNoise() | IntegerUploadNoise():
            return mechanism.standard_deviation * math.sqrt(clients)
        case DistributedNoise():
            return mechanism.share_deviation / mechanism.scale * math.sqrt(clients)
        case CentralNoise():
            return mechanism.standard_deviation
    _refuse(mechanism)


def _refuse(mechanism: object) -> NoReturn:
    raise UnknownMechanism(f"{type(mechanism).__name__} is no mechanism for uploads")

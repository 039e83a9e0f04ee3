"""Mechanism `upload_noise` on the integer grid: the whole noise on the client, drawn exactly.

Clip, scale, round at random on the condition that the norm stays bounded, add a discrete Gaussian
(Canonne, Kamath and Steinke 2020, Theorems 4 and 14). It is `distributed_noise` of a single share:
what leaves is an integer computed from integers, so that attacks on the lowest bits of
floating-point noise (Mironov 2012) have nothing to look at.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from privacy.distributed import DistributedNoise, protect_share, release_of_share
from privacy.events import Channel, Relation, Release, Status
from privacy.mechanisms import ProtectedUpload
from privacy.randomness import NoiseSource


@dataclass(frozen=True, kw_only=True)
class IntegerUploadNoise:
    """Clip, scale, round and add a discrete Gaussian, all on the client.

    Attributes:
        clipping_norm: C, in the units of the update.
        noise_multiplier: Standard deviation of the noise over C.
        scale: Steps of the grid per unit of the update.
        relation: What a neighbour is: sensitivity is twice the bound after rounding under
            replace_one, else once.
    """

    clipping_norm: float
    noise_multiplier: float
    scale: float
    relation: Relation = "replace_one"

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


def protect_integer_upload(
    vector: NDArray[Any], mechanism: IntegerUploadNoise, *, ring_bits: int, noise: NoiseSource
) -> ProtectedUpload:
    """Turn an update into ring elements that may be shown to anybody; see `protect_share`."""
    return protect_share(vector, mechanism.share, ring_bits=ring_bits, noise=noise)


def release_of_integer_upload(
    mechanism: IntegerUploadNoise,
    dimension: int,
    *,
    run_id: str,
    round_number: int,
    attempt: int,
    pseudonym: str,
    channel: Channel = "sum",
    status: Status = "reserved",
) -> Release:
    """Return the ledger row for one upload, reserved unless said otherwise.

    Args:
        mechanism: What protects it.
        dimension: Coordinates of the update; the bound after rounding depends on it.
        run_id: The run.
        round_number: The round.
        attempt: Which try of it.
        pseudonym: The client, as its ledger calls it.
        channel: Where it goes; unlike a share it may go to the pool.
        status: "reserved" before anything is sent.
    """
    row = release_of_share(
        mechanism.share,
        dimension,
        run_id=run_id,
        round_number=round_number,
        attempt=attempt,
        pseudonym=pseudonym,
        status=status,
    )
    return dataclasses.replace(row, mechanism="upload_noise", channel=channel)

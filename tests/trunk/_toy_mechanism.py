"""A privacy mechanism that is not of this package, as whoever adds one would write it: one file.

It clips and adds Gaussian noise on the client like `upload_noise`, as the sum of two draws, so that
its bytes are nobody else's and its price is known.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from platform.mechanisms import Circumstances, Mechanism, Settings
from privacy import (
    GAUSSIAN,
    MechanismFacts,
    Protected,
    ProtectedUpload,
    Quantiser,
    clip,
    gaussian_of,
)

FACTS = MechanismFacts(
    name="toy_noise",
    unit="client",
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=False,
)


@dataclass(frozen=True)
class ToyNoise:
    """Clip to C and add two draws of noise_multiplier x C / sqrt(2) each."""

    clipping_norm: float
    noise_multiplier: float
    relation: str
    facts: MechanismFacts = FACTS
    divides_by: str = "survivors"

    @property
    def client_deviation(self) -> float:
        return self.noise_multiplier * self.clipping_norm

    def around(self, clipping_norm: float) -> ToyNoise:
        return dataclasses.replace(self, clipping_norm=clipping_norm)

    def grid(self, dimension: int, *, bits: int, clients: int) -> Quantiser:
        return Quantiser(self.clipping_norm + 12.0 * self.client_deviation, bits)

    def protect(self, vector: Any, grid: Any, noise: Any, state: Any) -> ProtectedUpload:
        clipped = clip(vector, self.clipping_norm)
        size, deviation = clipped.vector.size, self.client_deviation / math.sqrt(2.0)
        draws = [noise.draw(GAUSSIAN, deviation, size) for _ in range(2)]
        sent = grid.quantise(clipped.vector + np.sum(draws, axis=0))
        return ProtectedUpload(sent.levels, clipped.norm, clipped.was_clipped, sent.saturated)

    def noise_in_sum(self, clients: int) -> float:
        return self.client_deviation * math.sqrt(clients)

    def noise_for_sum(self, dimension: int, noise: Any, state: Any) -> None:
        return None

    def protected(self, dimension: int) -> Protected:
        return Protected(
            standard_deviation=self.client_deviation,
            clipping_norm=self.clipping_norm,
            relation=self.relation,
            law=gaussian_of(self.client_deviation),
        )


def build(settings: Settings) -> ToyNoise:
    return ToyNoise(settings.norm, settings.multiplier, settings.relation)


def caveats(circumstances: Circumstances) -> Iterator[str]:
    yield "toy_noise is for tests and for nobody's data"


TOY_NOISE = Mechanism(
    facts=FACTS,
    relations=("replace_one",),
    distributions=("gaussian",),
    upload=build,
    entry=build,
    training=None,
    caveats=caveats,
)

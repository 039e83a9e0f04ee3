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
from privacy import MechanismFacts, Protected, ProtectedUpload, Quantiser, clip

FACTS = MechanismFacts(
    name="toy_noise",
    unit="client",
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    on_the_grid="never",
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

    def protect(self, vector: Any, grid: Any, noise: Any) -> ProtectedUpload:
        clipped = clip(vector, self.clipping_norm)
        draws = sum(noise.standard_normal(clipped.vector.size) for _ in range(2))
        noised = clipped.vector + self.client_deviation / math.sqrt(2.0) * np.asarray(draws)
        sent = grid.quantise(noised)
        return ProtectedUpload(sent.levels, clipped.norm, clipped.was_clipped, sent.saturated)

    def noise_in_sum(self, clients: int) -> float:
        return self.client_deviation * math.sqrt(clients)

    def noise_for_sum(self, dimension: int, noise: Any) -> None:
        return None

    def protected(self, dimension: int) -> Protected:
        return Protected(
            standard_deviation=self.client_deviation,
            clipping_norm=self.clipping_norm,
            relation=self.relation,
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

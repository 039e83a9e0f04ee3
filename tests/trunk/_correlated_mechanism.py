"""A mechanism whose noise is correlated over rounds, in one file: z_t - z_(t-1) / 2.

Each client adds it, or the coordinator adds it to the sum.

No accountant here prices such noise. So it claims nothing, and a run with it costs infinity.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from platform.mechanisms import Mechanism, Settings, no_caveats
from privacy import (
    GAUSSIAN,
    NO_NOISE,
    MechanismFacts,
    Protected,
    ProtectedUpload,
    Quantiser,
    SumNoise,
    clip,
)

FACTS = MechanismFacts(
    name="correlated",
    unit=None,
    is_in_steps=False,
    is_shared_out=False,
    is_bare_to_server=False,
    may_amplify=False,
    keeps_state=True,
)
PREVIOUS = "previous"
DEVIATION = 0.01
STEPS = 200.0
"""Of the coordinator's draws, in steps of the grid."""

Calls = list[tuple[Any, Any]]
"""For each upload the draw that it goes on from, None where it is a client's first, and its own."""


@dataclass(frozen=True)
class Correlated:
    """Add a draw, and take off half of the one before; tests read from `calls` what was drawn."""

    value_bound: float
    clipping_norm: float | None
    relation: str
    facts: MechanismFacts
    calls: Calls = field(compare=False, repr=False)
    at_centre: bool = False
    divides_by: str = "survivors"

    @property
    def client_deviation(self) -> float:
        return 0.0 if self.at_centre else DEVIATION

    def around(self, clipping_norm: float) -> Correlated:
        return dataclasses.replace(self, clipping_norm=clipping_norm)

    def grid(self, dimension: int, *, bits: int, clients: int) -> Quantiser:
        return Quantiser(self.value_bound, bits)

    def protect(self, vector: Any, grid: Any, noise: Any, state: Any) -> ProtectedUpload:
        update = np.asarray(vector, np.float64)
        if self.clipping_norm is not None:
            update = clip(update, self.clipping_norm).vector
        if self.at_centre:
            return ProtectedUpload(grid.quantise(update).levels, 0.0, False, 0)
        drawn, previous = noise.draw(GAUSSIAN, DEVIATION, update.size), state.get(PREVIOUS)
        self.calls.append((previous, drawn))
        added = drawn if previous is None else drawn - previous / 2.0
        sent = grid.quantise(update + added)
        norm = float(np.linalg.norm(update))
        return ProtectedUpload(sent.levels, norm, False, sent.saturated, {PREVIOUS: drawn})

    def noise_in_sum(self, clients: int) -> float:
        return 0.0

    def noise_for_sum(self, dimension: int, noise: Any, state: Any) -> SumNoise | None:
        if not self.at_centre:
            return None
        drawn, previous = noise.draw(GAUSSIAN, STEPS, dimension), state.get(PREVIOUS)
        self.calls.append((previous, drawn))
        added = drawn if previous is None else drawn - previous / 2.0
        return SumNoise(np.rint(added).astype(np.int64), {PREVIOUS: drawn})

    def protected(self, dimension: int) -> Protected:
        return Protected(
            standard_deviation=0.0, clipping_norm=0.0, relation=self.relation, law=NO_NOISE
        )


def correlated(calls: Calls, *, at_centre: bool = False) -> Mechanism:
    """The mechanism, which notes what it draws."""

    def build(settings: Settings) -> Correlated:
        norm = settings.clipping_norm
        relation, bound = settings.relation, settings.value_bound
        return Correlated(bound, norm, relation, FACTS, calls, at_centre)

    return Mechanism(
        facts=FACTS,
        relations=("replace_one",),
        distributions=(),
        upload=build,
        entry=None,
        training=None,
        caveats=no_caveats,
    )

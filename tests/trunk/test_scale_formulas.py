"""The formulas of docs/results/scale.md agree with the frames and the simulation."""

from __future__ import annotations

import pytest

from benchmarks._scale_formulas import byte_counts, uses
from benchmarks._scale_simulation import simulate
from benchmarks.scale import Round


@pytest.mark.slow
def test_a_small_round_costs_what_the_formulas_say() -> None:
    """Bytes added up where they arrive, and uses counted where the protocol calls a primitive."""
    found = simulate("regular", 30, tokens=1, rate=0.1)
    names = ("kind", "clients", "lost", "length", "bits", "degree", "threshold")
    round_ = Round(**{name: found[name] for name in names})
    assert found["lost"] == 3
    for stage, said in byte_counts(round_).items():
        # A few digits in headers are as long as they are.
        assert abs(found[stage] - said) <= 0.02 * said, stage
    for name, said in uses(round_).items():
        assert found[f"used {name}"] == said, name

"""Facts that a ledger row can hold beyond the plain ones, for tests to vary."""

from __future__ import annotations

from typing import Any

INTEGER_NOISE: dict[str, Any] = {
    "noise_kind": "skellam",
    "share_deviation": 12.5,
    "shares": 7,
    "dimension": 512,
    "corrupt": 2,
}
COHORT: dict[str, Any] = {
    "cohort_kind": "fixed_size",
    "cohort_size": 5,
    "cohort_population": 40,
    "cohort_drawn": False,
}
SAMPLED: dict[str, Any] = {"sampling": "poisson", "sampling_probability": 0.125, "count": 300}

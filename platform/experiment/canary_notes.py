"""What must be said of a run with canaries, in words: first, and beside its other numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def lower_text(bound: float) -> str:
    """Return a lower bound, rounded down."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def canary_warnings(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what must be said first of canaries: they show more than is claimed, or nothing."""
    if found is None:
        return
    if found["is_blind"]:
        yield (
            "BLIND: what this run's own canaries sent is not in its model, or less than half of "
            "it; their audit says nothing of any epsilon"
        )
        return
    seen, claimed = found["lower_bound"], found["claimed"]
    shown = f"epsilon is at least {lower_text(seen)} where {claimed:.2f} is claimed"
    if found["is_refuted"]:
        yield (
            f"REFUTED by this run's own canaries: {shown}; so much would be seen of a right run "
            "less than once in a million. Do not rely on any epsilon of this run"
        )
    elif found["is_above_claim"]:
        yield (
            f"ABOVE THE CLAIM: by this run's own canaries {shown}; one right run in twenty shows "
            "as much. Run it again, and rely on no epsilon of it before"
        )


def canary_notes(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what a report must say of canaries, whatever they showed."""
    if found is None:
        return
    yield (
        f"{found['canaries']} canary clients of an audit were in every sum, are charged in the "
        "ledger, and are counted in cohorts, but in no mean, in no smallest sum and in no noise "
        "that is claimed; they moved the final model beside what it learnt, by "
        f"{100 * found['share_of_noise']:.0f}% of the length of its noise, so accuracy is "
        "not that of a run without them"
    )

"""What must be said of a run with canaries, in words: first, and beside its other numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any


def canary_warnings(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what must be said first of a run whose canaries show more than is claimed."""
    if found is None:
        return
    seen, claimed = found["lower_bound"], found["claimed"]
    # Down, as it is a lower bound.
    shown = f"epsilon is at least {floor(100 * seen) / 100:.2f} where {claimed:.2f} is claimed"
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
        "that is claimed; what they added to each round's sum is "
        f"{100 * found['share_of_noise']:.1f}% of its noise in length, so accuracy is not that of "
        "a run without them"
    )

"""What every accountant says about one ledger, side by side, for reports."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable

from privacy._validate import require_probability
from privacy.accounting.composition import Composition, compose
from privacy.accounting.headline import price
from privacy.errors import UnsupportedEvent
from privacy.events import Release

_SLOW = 0.2
"""Noise over C below which privacy loss distributions take minutes."""

TABLE: tuple[str, ...] = ("exact", "pld", "rdp", "prv")
"""Whom a table asks; `prv` is for comparison and never speaks for a run."""


def accountant_table(releases: Iterable[Release], delta: float) -> dict[str, float | str]:
    """Price one client's releases by every accountant, cohorts as what was drawn.

    That is how the observer's bound comes about; against anybody else hand in rows without cohort.
    Loads torch and Opacus for `prv`.

    Args:
        releases: The ledger of one client, in any order; what is not charged is skipped.
        delta: Strictly between 0 and 1.

    Returns:
        By name of the accountant an upper bound on epsilon, or "n/a: " and the reason.

    Raises:
        UnsupportedEvent: Relations are mixed, or no accountant knows a mechanism.
        ValueError: `delta` is not valid.
    """
    require_probability(delta=delta)
    composition = compose(releases)
    return {name: entry(composition, delta, name) for name in TABLE}


def entry(composition: Composition, delta: float, name: str) -> float | str:
    """Price a composition by the accountant of that name, or give "n/a: " and its reason."""
    try:
        return _price(composition, delta, name)
    except UnsupportedEvent as error:
        return f"n/a: {error}"


def _price(composition: Composition, delta: float, name: str) -> float:
    if not composition.is_noised:
        return math.inf
    if composition.is_empty:
        return 0.0
    if name == "pld" and _is_slow(composition):
        raise UnsupportedEvent("it takes minutes at so little noise, and exact is as tight")
    if name == "exact" or name == "pld" or name == "rdp":
        return price(composition, delta, name).epsilon
    adapter = importlib.import_module("privacy.training.prv")
    return float(adapter.epsilon(composition, delta))


def _is_slow(composition: Composition) -> bool:
    others = composition.integer_terms or composition.fixed_size_terms or composition.is_sampled
    return not others and min(term.noise_to_clip for term in composition.terms) < _SLOW

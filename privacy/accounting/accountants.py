"""The accountants: the one whose epsilon a report quotes, and all of them side by side.

The first of `exact`, `pld` and `rdp` that supports *every* event of a ledger speaks. The exact
formula supports plain Gaussian releases; where it does, none of the others can be lower. An event
that nobody supports raises: there is no silent fallback to a number that is not a bound.

`accountant_table` asks every accountant about one ledger.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from privacy._validate import require_member, require_probability
from privacy.accounting import gaussian
from privacy.accounting.composition import Composition, compose
from privacy.errors import UnsupportedEvent
from privacy.events import Release

Accountant = Literal["auto", "exact", "pld", "rdp"]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)


@dataclass(frozen=True)
class EpsilonResult:
    """An epsilon and who computed it.

    Attributes:
        epsilon: 0 where nothing was released or delta alone covers it, infinity where anything was
            without noise.
        accountant: "exact", "pld" or "rdp", never "auto".
    """

    epsilon: float
    accountant: str


def epsilon(
    releases: Iterable[Release], delta: float, accountant: Accountant = "auto"
) -> EpsilonResult:
    """Price one client's releases.

    Rows are taken at their word: two equal rows are two releases, as a resend has no second row.
    Results are cached by the multiset of what was charged. A row with a cohort counts as drawn by
    chance, which holds against the observer only; see `epsilons`.

    Args:
        releases: The ledger of one client, in any order; what is not charged is skipped.
        delta: Strictly between 0 and 1.
        accountant: One by name, or "auto" for the rule above.

    Returns:
        Epsilon, cumulative over all releases, with the accountant that gave it.

    Raises:
        UnsupportedEvent: The accountant, or under "auto" every one, cannot bound a release.
        ValueError: `delta` or `accountant` is not valid.
    """
    require_probability(delta=delta)
    require_member(ACCOUNTANTS, accountant=accountant)
    return price(compose(releases), delta, accountant)


@functools.lru_cache(maxsize=4096)
def price(composition: Composition, delta: float, accountant: Accountant) -> EpsilonResult:
    """Price a composition; see `epsilon`, which checks the arguments."""
    if accountant == "auto":
        return first_supporting(composition, delta, ("exact", "pld", "rdp"))
    if not composition.is_noised:
        return EpsilonResult(math.inf, accountant)
    if composition.is_empty:
        return EpsilonResult(0.0, accountant)
    if accountant == "exact":
        return EpsilonResult(gaussian.epsilon(composition, delta), accountant)
    # dp_accounting takes half a second to import, and the exact formula needs none of it.
    from privacy.accounting.adapters import pld_epsilon, rdp_epsilon

    found = (pld_epsilon if accountant == "pld" else rdp_epsilon)(composition, delta)
    return EpsilonResult(found, accountant)


def first_supporting(
    composition: Composition, delta: float, accountants: tuple[Accountant, ...]
) -> EpsilonResult:
    """Price by the first accountant that supports every event; `UnsupportedEvent` if none does."""
    reasons: list[str] = []
    for accountant in accountants:
        try:
            return price(composition, delta, accountant)
        except UnsupportedEvent as error:
            reasons.append(f"{accountant}: {error}")
    raise UnsupportedEvent("no accountant bounds this ledger; " + "; ".join(reasons))


_SLOW = 0.2
"""Noise over C below which privacy loss distributions take minutes."""

TABLE: tuple[str, ...] = ("exact", "pld", "rdp", "prv")
"""Whom a table asks; `prv` is for comparison and never speaks for a run."""


def accountant_table(releases: Iterable[Release], delta: float) -> dict[str, float | str]:
    """Price one client's releases by every accountant.

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
        if not composition.is_noised:
            return math.inf
        if composition.is_empty:
            return 0.0
        others = composition.integer_terms or composition.fixed_size_terms or composition.is_sampled
        if name == "pld" and not others:
            if min(term.noise_to_clip for term in composition.terms) < _SLOW:
                raise UnsupportedEvent("it takes minutes at so little noise, and exact is as tight")
        if name == "exact" or name == "pld" or name == "rdp":
            return price(composition, delta, name).epsilon
        adapter = importlib.import_module("privacy.training.opacus_adapters")
        return float(adapter.prv_epsilon(composition, delta))
    except UnsupportedEvent as error:
        return f"n/a: {error}"

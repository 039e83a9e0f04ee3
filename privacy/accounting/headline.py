"""The number that a report prints: which accountant speaks, and what it says.

The first of `exact`, `pld` and `rdp` that supports *every* event of a ledger speaks. The exact
formula supports plain Gaussian releases; where it does, none of the others can be lower. An event
that nobody supports raises: there is no silent fallback to a number that is not a bound.
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
    adapter = importlib.import_module(f"privacy.accounting.{accountant}")
    return EpsilonResult(adapter.epsilon(composition, delta), accountant)


def first_supporting(
    composition: Composition, delta: float, accountants: tuple[Accountant, ...]
) -> EpsilonResult:
    """Price a composition by the first accountant that supports every event of it.

    Raises:
        UnsupportedEvent: None does; the message has every reason.
    """
    reasons: list[str] = []
    for accountant in accountants:
        try:
            return price(composition, delta, accountant)
        except UnsupportedEvent as error:
            reasons.append(f"{accountant}: {error}")
    raise UnsupportedEvent("no accountant bounds this ledger; " + "; ".join(reasons))

"""Stopping before overspending: the accountant is asked first, then anything is sent.

A limit also holds for releases that are chosen one by one by what earlier ones gave where it is a
*filter*, a limit on one number that adds up. For plain Gaussian releases epsilon at a fixed delta
grows with mu alone, so a limit on it is one on the sum of mu^2, and what is composed fully
adaptively under such a limit costs what that mu costs (Smith and Thakurta 2022; Koskela, Tobaben
and Honkela 2023; for Renyi divergences of one order Feldman and Zrnic 2021). Of equal releases a
limit allows a certain number, and fewer of them are a part of that many. For mixed kinds epsilon is
minimised over orders, or computed from a whole distribution, and no theorem here makes a limit on
it a filter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

from privacy._validate import require_positive
from privacy.accounting.composition import compose, no_cohort
from privacy.accounting.headline import Accountant
from privacy.accounting.running import RunningLedger
from privacy.errors import BudgetExhausted
from privacy.events import Release

_TOLERANCE = 1e-9
"""Relative; only so that a run calibrated to its budget is not stopped by the last bit."""
MOST_ROUNDS = 10_000
"""Up to which rounds are counted that would still fit."""


def filter_of(releases: Iterable[Release]) -> Literal["gaussian", "equal"] | None:
    """Return by what a limit on the epsilon of these releases is a filter; None by nothing here.

    Args:
        releases: The ledger of one client.

    Raises:
        UnsupportedEvent: If they have no composition.
    """
    found = compose(releases, no_cohort)
    if found.integer_terms or found.is_sampled:
        return "equal" if len(found.terms) + len(found.integer_terms) == 1 else None
    return "gaussian" if found.is_noised else None


def require_affordable(
    spent: RunningLedger | Iterable[Release],
    planned: Iterable[Release],
    delta: float,
    *,
    target_epsilon: float,
    accountant: Accountant = "auto",
    limit_name: str = "privacy.target_epsilon",
) -> None:
    """Raise unless every client stays within `target_epsilon` after the planned releases.

    Call it before anything of the round is sent. The adversary is the strongest one against whom
    a client's mechanisms claim anything, see `claimed_epsilon`.

    Args:
        spent: The ledger so far, reservations included.
        planned: What the next round would add; a resend is not a new release and is not planned.
        delta: Strictly between 0 and 1.
        target_epsilon: What the whole ledger may cost.
        accountant: One by name, or "auto".
        limit_name: The key of the configuration that sets the target, for the message.

    Raises:
        BudgetExhausted: The planned releases would pass the target by more than 1e-9 of it.
        UnsupportedEvent: A release cannot be bounded, so nothing can be promised.
        ValueError: `delta` or `target_epsilon` is not valid.
    """
    require_positive(target_epsilon=target_epsilon)
    ledger = spent if isinstance(spent, RunningLedger) else RunningLedger(spent)
    cost = ledger.claimed_with(planned, delta, accountant).epsilon
    if cost > target_epsilon * (1.0 + _TOLERANCE):
        raise BudgetExhausted(
            f"{limit_name} is {target_epsilon:g} and the planned releases would bring "
            f"epsilon to {cost:.6g} at delta {delta:g}; nothing was sent",
            epsilon=cost,
            target_epsilon=target_epsilon,
        )


def affordable_rounds(
    spent: RunningLedger,
    planned: Iterable[Release],
    delta: float,
    *,
    target_epsilon: float,
    accountant: Accountant = "auto",
    likely: int = 1,
    most: int = MOST_ROUNDS,
) -> int:
    """Return how often the planned releases fit beside what was spent, by `require_affordable`.

    The accountant is asked about each number, as epsilon does not grow evenly: what is left of a
    target, divided by the price of one round, is not how many rounds are left.

    Args:
        spent: The ledger so far, reservations included.
        planned: What one round would add.
        delta: Strictly between 0 and 1.
        target_epsilon: What the whole ledger may cost.
        accountant: One by name, or "auto".
        likely: Where the search begins; it takes few steps if the answer is near.
        most: The largest answer: so many, or more.

    Raises:
        UnsupportedEvent: A release cannot be bounded, so nothing can be promised.
        ValueError: `delta` or `target_epsilon` is not valid, or nothing is planned.
    """
    once = list(planned)
    if not once:
        raise ValueError("planned is empty; what costs nothing fits without end")

    def fits(rounds: int) -> bool:
        added = [dataclasses.replace(row, count=row.count * rounds) for row in once]
        try:
            require_affordable(
                spent, added, delta, target_epsilon=target_epsilon, accountant=accountant
            )
        except BudgetExhausted:
            return False
        return True

    return _last_fit(fits, min(max(likely, 1), most), most)


def _last_fit(fits: Callable[[int], bool], start: int, most: int) -> int:
    """Return the largest number up to `most` that fits, 0 if 1 does not: gallop, then bisect."""
    low, high, step = start, start, 1
    if fits(start):
        # `low` fits; look for a `high` that does not.
        while low == high:
            if low >= most:
                return most
            high = min(low + step, most)
            if fits(high):
                low, step = high, 2 * step
    else:
        # `high` does not fit; look for a `low` that does.
        while low == high:
            low = max(high - step, 0)
            if low and not fits(low):
                high, step = low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

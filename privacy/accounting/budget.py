"""Stopping before overspending: the accountant is asked first, then anything is sent."""

from __future__ import annotations

from collections.abc import Iterable

from privacy._validate import require_positive
from privacy.accounting.headline import Accountant
from privacy.accounting.running import RunningLedger
from privacy.errors import BudgetExhausted
from privacy.events import Release

_TOLERANCE = 1e-9
"""Relative; only so that a run calibrated to its budget is not stopped by the last bit."""


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

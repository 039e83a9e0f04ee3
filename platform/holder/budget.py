"""The data holder's own view of what was spent: from its own ledger, at its own delta.

It is priced exactly as the client prices itself before it answers an invitation, against the
strongest adversary against whom the mechanisms claim anything. Where no accountant can compose what
the ledger holds there is no number, and the reason is in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform.holder.settings import OwnLimits
from platform.mechanisms import BUILT_IN
from platform.protection.ledger_rows import as_releases
from privacy import Release, RunningLedger, UnknownMechanism, UnsupportedEvent
from storage import ClientStore, LedgerRow


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What one run cost the holder, or all of them together.

    Attributes:
        run_id: The run; None for all.
        mechanisms: Names of those that were charged for.
        releases: How often something left the client, or may have.
        epsilon: At the holder's delta; infinite without noise, None where nobody can price it.
        problem: Why nobody can; None where there is a number.
        limit: The holder's own; None without.
    """

    run_id: str | None
    mechanisms: tuple[str, ...]
    releases: int
    epsilon: float | None
    problem: str | None
    limit: float | None

    @property
    def left(self) -> float | None:
        """Epsilon up to the limit, at least 0; None without a limit or a number."""
        if self.limit is None or self.epsilon is None:
            return None
        return max(self.limit - self.epsilon, 0.0)


@dataclass(frozen=True)
class Account:
    """All that a holder has spent.

    Attributes:
        runs: By the run's name.
        total: Of all runs together, which is less than the sum of the runs'.
    """

    runs: tuple[Spending, ...]
    total: Spending


def account_of(rows: Sequence[LedgerRow], limits: OwnLimits) -> Account:
    """Price a client's own ledger.

    Args:
        rows: All of it, of any number of runs.
        limits: The holder's.
    """
    by_run: dict[str, list[LedgerRow]] = {}
    for row in rows:
        by_run.setdefault(row.run_id, []).append(row)
    runs = [
        _spending(run_id, by_run[run_id], limits, limits.epsilon_per_run)
        for run_id in sorted(by_run)
    ]
    return Account(tuple(runs), _spending(None, rows, limits, limits.epsilon_total))


def own_account(store: ClientStore, limits: OwnLimits) -> Account:
    """Price the ledger of a holder's own store, of which nothing else is read."""
    return account_of(store.rows(), limits)


def _spending(
    run_id: str | None, rows: Sequence[LedgerRow], limits: OwnLimits, limit: float | None
) -> Spending:
    charged = [row for row in rows if row.status != "aborted"]
    epsilon, problem = _price(rows, limits.delta)
    return Spending(
        run_id=run_id,
        mechanisms=tuple(sorted({row.mechanism for row in charged})),
        releases=len(charged),
        epsilon=epsilon,
        problem=problem,
        limit=limit,
    )


def _price(rows: Sequence[LedgerRow], delta: float) -> tuple[float | None, str | None]:
    nothing_planned: tuple[Release, ...] = ()
    try:
        spent = RunningLedger(as_releases(rows, BUILT_IN))
        return spent.claimed_with(nothing_planned, delta).epsilon, None
    except (UnsupportedEvent, UnknownMechanism) as error:
        return None, str(error)

"""A client's own limit: what it lets itself be charged, whatever the coordinator asks.

The coordinator stops a run before it overspends, from its own ledger. A client does not rely on
that: before it answers an invitation it prices its own ledger, of this run and of all runs on the
same data, and takes no part in a round that would pass a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform.mechanisms import BUILT_IN, Mechanisms
from platform.protection.ledger_rows import as_releases
from privacy import Accountant, Release, require_affordable
from storage import LedgerRow


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may spend.

    Attributes:
        delta: Of every epsilon.
        accountant: Who prices.
        target_epsilon: Limit of one run, None without.
        lifetime_budget: Limit of all runs on the same data, None without.
        mechanisms: All that a row may name; earlier runs may have had others than this one.
    """

    delta: float
    accountant: Accountant
    target_epsilon: float | None = None
    lifetime_budget: float | None = None
    mechanisms: Mechanisms = BUILT_IN

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.target_epsilon is not None or self.lifetime_budget is not None

    def require(self, run_id: str, ledger: Sequence[LedgerRow], planned: Sequence[Release]) -> None:
        """Refuse what would pass a limit.

        Args:
            run_id: The run that asks.
            ledger: The rows of one or several clients, each over its whole life.
            planned: What the next attempt would add; of it what is in the ledger already is the
                same release once more and free.

        Raises:
            BudgetExhausted: Naming the limit.
            UnsupportedEvent: If the rows of two runs cannot be composed, so that nothing can be
                promised.
        """
        known = {_key(row) for row in ledger}
        fresh = [release for release in planned if _key(release) not in known]
        mine = [row for row in ledger if row.run_id == run_id]
        self._require(mine, fresh, "privacy.target_epsilon", self.target_epsilon)
        self._require(ledger, fresh, "privacy.lifetime_budget", self.lifetime_budget)

    def _require(
        self, spent: Sequence[LedgerRow], fresh: Sequence[Release], name: str, limit: float | None
    ) -> None:
        if limit is None or not fresh:
            return
        require_affordable(
            as_releases(spent, self.mechanisms),
            fresh,
            self.delta,
            target_epsilon=limit,
            accountant=self.accountant,
            limit_name=name,
        )


def _key(row: LedgerRow | Release) -> tuple[str, int, int, str, str]:
    return row.run_id, row.round_number, row.attempt, row.pseudonym, row.channel

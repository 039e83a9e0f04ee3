"""A client's own limit: what it lets itself be charged, whatever the coordinator asks.

The coordinator stops a run before it overspends, from its own ledger. A client does not rely on
that: before it answers an invitation it prices its own ledger, of this run and of all runs on the
same data, and takes no part in a round that would pass a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform.mechanisms import BUILT_IN, Mechanisms
from privacy import Accountant, Release, RunningLedger, require_affordable


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may spend.

    Attributes:
        delta: Of every epsilon.
        accountant: Who prices.
        target_epsilon: Limit of one run, None without.
        lifetime_budget: Limit of all runs on the same data, None without.
        mechanisms: All that a row may name; earlier runs may have had others than this one.
        target_key: The key that sets the limit of one run, for the message.
        lifetime_key: The key that sets the limit of all runs, for the message.
    """

    delta: float
    accountant: Accountant
    target_epsilon: float | None = None
    lifetime_budget: float | None = None
    mechanisms: Mechanisms = BUILT_IN
    target_key: str = "privacy.target_epsilon"
    lifetime_key: str = "privacy.lifetime_budget"

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.target_epsilon is not None or self.lifetime_budget is not None

    def require(self, run: RunningLedger, life: RunningLedger, planned: Sequence[Release]) -> None:
        """Refuse what would pass a limit.

        Args:
            run: What one or several clients have spent in the run that asks.
            life: What they have spent in their whole life, that run included.
            planned: What the next attempt would add; not what is in the ledger already, which is
                the same release once more and free.

        Raises:
            BudgetExhausted: Naming the limit.
            UnsupportedEvent: If the rows of two runs cannot be composed, so that nothing can be
                promised.
        """
        self._require(run, planned, self.target_key, self.target_epsilon)
        self._require(life, planned, self.lifetime_key, self.lifetime_budget)

    def _require(
        self, spent: RunningLedger, planned: Sequence[Release], name: str, limit: float | None
    ) -> None:
        if limit is None or not planned:
            return
        require_affordable(
            spent,
            planned,
            self.delta,
            target_epsilon=limit,
            accountant=self.accountant,
            limit_name=name,
        )

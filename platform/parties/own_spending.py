"""What a client has spent in its run, counted on from message to message.

Reading its whole ledger for every invitation would take longer the longer a run is. A release is
written with a session, in one transaction, or not at all: so what was counted at one session is all
of the run's ledger for as long as that session is the newest. Wherever it is not, the ledger is
read anew; a client that is a new process at every message does so every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from platform.protection.ledger_rows import as_releases
from platform.protection.limits import Limits
from privacy import Release, RunningLedger
from storage import ClientStore, SessionRecord


@dataclass(kw_only=True)
class OwnSpending:
    """One client's spending in one run.

    Attributes:
        store: The client's.
        run_id: The run.
        limits: What the client lets itself be charged.
    """

    store: ClientStore
    run_id: str
    limits: Limits
    _after: SessionRecord | None = field(default=None, init=False, repr=False)
    _counted: RunningLedger | None = field(default=None, init=False, repr=False)
    _others: tuple[SessionRecord, ...] = field(default=(), init=False, repr=False)
    _elsewhere: RunningLedger | None = field(default=None, init=False, repr=False)

    def require(self, newest: SessionRecord | None, planned: Sequence[Release]) -> None:
        """Refuse an attempt that would pass a limit.

        Args:
            newest: The session now.
            planned: What the attempt would add; of it what is in the ledger already is the same
                release once more and free.

        Raises:
            BudgetExhausted: Naming the limit.
            UnsupportedEvent: If nothing can be promised.
        """
        if not planned:
            return
        place = planned[0].round_number, planned[0].attempt
        known = {row.channel for row in self.store.rows(self.run_id, place)}
        fresh = [release for release in planned if release.channel not in known]
        if self._counted is None or self._after != newest:
            self._counted = RunningLedger(
                as_releases(self.store.rows(self.run_id), self.limits.mechanisms)
            )
            self._after = newest
        self.limits.require(self._counted, self._life(self._counted), fresh)

    def _life(self, spent: RunningLedger) -> RunningLedger:
        """Return what the client has spent in all runs, with what it has spent in this one."""
        if self.limits.lifetime_budget is None:
            return spent
        # A release is written with a session there too.
        others = self.store.sessions.of_other_runs(self.run_id)
        if self._elsewhere is None or others != self._others:
            rows = [row for row in self.store.rows() if row.run_id != self.run_id]
            self._elsewhere = RunningLedger(as_releases(rows, self.limits.mechanisms))
            self._others = others
        return RunningLedger.joined((self._elsewhere, spent))

    def require_still(self, newest: SessionRecord | None, planned: Sequence[Release]) -> None:
        """Refuse a release that a limit of all runs leaves no room for any more.

        The client may have been invited by several runs, each of which could afford one attempt
        alone. To be called in the transaction that writes the release.

        Raises:
            BudgetExhausted: Naming the limit.
            UnsupportedEvent: If nothing can be promised.
        """
        if self.limits.lifetime_budget is not None:
            self.require(newest, planned)

    def follow(
        self, before: SessionRecord | None, after: SessionRecord, added: Sequence[Release]
    ) -> None:
        """Go on with the session that took another's place, and with what was written with it.

        If that is not committed the session is not `after`, and the ledger is read anew.
        """
        if self._counted is not None and self._after == before:
            self._counted.add(added)
            self._after = after

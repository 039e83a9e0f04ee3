"""A client's own ledger: its spending in a run, and how it catches up after a backup.

Reading the whole ledger for every invitation would take longer the longer a run is, so a client
counts on from message to message. It writes a release with a session, in one transaction. So the
count at one session is the whole ledger of the run as long as that session is the newest. At any
other session the client reads the ledger again. A client that is a new process at every message
always reads it again.

A client whose store came back from a backup has lost its record of later releases, so it takes over
the coordinator's. It only adds rows: known charges stay, finished attempts stay finished, and a
coordinator that charges too much makes the client take part in less. The client alone cannot find
out that a coordinator states too little. So only its owner starts this, with charges that the
coordinators' operators handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from platform.errors import ConfigError
from platform.protection.charging import Limits, as_releases
from platform.wire.charges import Charges
from privacy import Release, RunningLedger
from storage import ClientStore, InvalidRecordError, SessionRecord


@dataclass(kw_only=True)
class OwnSpending:
    """One client's spending in one run.

    Attributes:
        store: The client's store.
        run_id: The run.
        limits: The most that the client may be charged.
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

        `newest` is the session now. A planned release that is already in the ledger is the same
        release again, and free.

        Raises:
            BudgetExhausted: If it would pass a limit; the message names the limit.
            UnsupportedEvent: If no accountant can price the rows together.
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
        """Return the client's spending in all runs, with its spending in this run."""
        if self.limits.lifetime_budget is None:
            return spent
        # Other runs write a release with a session too.
        others = self.store.sessions.of_other_runs(self.run_id)
        if self._elsewhere is None or others != self._others:
            rows = [row for row in self.store.rows() if row.run_id != self.run_id]
            self._elsewhere = RunningLedger(as_releases(rows, self.limits.mechanisms))
            self._others = others
        return RunningLedger.joined((self._elsewhere, spent))

    def require_still(self, newest: SessionRecord | None, planned: Sequence[Release]) -> None:
        """Refuse a release if the limit of all runs has no more room for it.

        Several runs may have invited the client, and each could afford one attempt alone. Call this
        in the transaction that writes the release.

        Raises:
            BudgetExhausted: If it would pass a limit; the message names the limit.
            UnsupportedEvent: If no accountant can price the rows together.
        """
        if self.limits.lifetime_budget is not None:
            self.require(newest, planned)

    def follow(
        self, before: SessionRecord | None, after: SessionRecord, added: Sequence[Release]
    ) -> None:
        """Count on from the session that replaced another, with the releases written with it.

        If the transaction is not committed, the newest session is not `after`, and the client reads
        the ledger again.
        """
        if self._counted is not None and self._after == before:
            self._counted.add(added)
            self._after = after


def catch_up(store: ClientStore, handed: Sequence[Charges], now: datetime) -> int:
    """Take over the coordinators' charges, and let the client take part again.

    The store was restored from a backup. `handed` has the charges of each coordinator in whose runs
    the client has taken part since.

    Returns:
        How many charges were added to the client's own ledger.

    Raises:
        ConfigError: If the charges are another client's, or lack or contradict a row of the
            client's own ledger; then nothing has changed.
    """
    since = store.restoring.pending_since()
    if since is None:
        raise ConfigError("CHARGES: this client's store has nothing to catch up with")
    if not handed:
        raise ConfigError("CHARGES: there are none; valid are those of each coordinator")
    for charges in handed:
        # Older charges would lack what the lost store released until then.
        if charges.made < datetime.fromisoformat(since):
            raise ConfigError(
                f"CHARGES: they were made at {charges.made.isoformat()}, before the store was "
                f"restored at {since}; valid are later ones"
            )
    stated = {run_id for charges in handed for run_id in charges.runs}
    for session in store.sessions.of_other_runs(""):
        if session.run_id not in stated:
            raise ConfigError(
                f"CHARGES: run {session.run_id}, in which this client has taken part, is not in "
                "them; valid are those of each coordinator"
            )
    try:
        with store.atomically():
            added = sum([_take_over(store, charges) for charges in handed])
            store.restoring.settle(now)
    except InvalidRecordError as error:
        raise ConfigError(f"CHARGES: {error}") from error
    return added


def _take_over(store: ClientStore, charges: Charges) -> int:
    own = store.identity.pseudonym
    if charges.pseudonym != own:
        raise ConfigError(f"CHARGES: they are of client {charges.pseudonym!r}; valid: {own!r}")
    for run_id, run in charges.runs.items():
        stated = {(row.round_number, row.attempt, row.channel) for row in run.rows}
        for row in store.rows(run_id):
            if (row.round_number, row.attempt, row.channel) not in stated:
                raise ConfigError(
                    f"CHARGES: they lack round {row.round_number}, attempt {row.attempt} of run "
                    f"{run_id}, which this client's own ledger has; they were made from an older "
                    "copy of the coordinator's database"
                )
    charged = [row for run in charges.runs.values() for row in run.rows]
    newest = {run_id: run.newest for run_id, run in charges.runs.items()}
    return store.restoring.take_over(charged, newest)

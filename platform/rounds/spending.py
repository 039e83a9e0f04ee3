"""The price of a round, written down before anything is sent, and the charges so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from platform.errors import ConfigError
from platform.protection.charging import as_releases, as_row, charged_elsewhere, rows_that_count
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.plan import RoundPlan
from platform.rounds.run import Run
from platform.wire.charges import Charges, RunCharges
from privacy import (
    CohortSampling,
    Epsilons,
    Release,
    ReleaseKey,
    RunningLedger,
    accountant_table,
    claimed_epsilon,
)
from storage import AuditHead, LedgerRow, UnitOfWork


@dataclass(kw_only=True)
class Spending:
    """The spending of one run.

    The coordinator reads the run's ledger once and then counts on, because reading all of it in
    every round would slow down long runs. Every change of the ledger moves the end of the run's
    audit chain. So the count is valid at one end, and at any other end the ledger is read again. In
    the same way, the clients' spending in other runs is valid at the ends of those runs' chains.

    Attributes:
        run: The run.
    """

    run: Run
    _counted: RunningLedger | None = field(default=None, init=False, repr=False)
    _head: AuditHead | None = field(default=None, init=False, repr=False)
    _elsewhere: RunningLedger | None = field(default=None, init=False, repr=False)
    _ends: Mapping[str, AuditHead] = field(default_factory=dict, init=False, repr=False)

    def reserve(self, uow: UnitOfWork, plan: RoundPlan) -> None:
        """Price an attempt, then write its spend to the ledger, before anything leaves a client.

        Args:
            uow: The transaction in which the attempt is opened.
            plan: The attempt, a new one.

        Raises:
            BudgetExhausted: If the round would pass the target; nothing is written.
        """
        run = self.run
        planned = self._releases(plan)
        if not planned:
            return
        pseudonyms = sorted({release.pseudonym for release in planned})
        spent = self._spent(uow)
        run.terms.budget.require(spent, self._spent_in_life(uow, pseudonyms, spent), planned)
        uow.ledger.reserve([as_row(release) for release in planned])
        AuditTrail(uow.audit, run.run_id).reserved(planned)
        spent.add(planned)
        # The count is valid at no end of the chain until `follow` names the transaction's end.
        self._head = None

    def follow(self, uow: UnitOfWork) -> None:
        """Declare the count valid at the end that a transaction gives the audit chain.

        Call it last, and only if the transaction changed the ledger by `reserve` and by releases
        alone. If the transaction is not committed, the chain has another end.
        """
        if self._counted is not None:
            self._head = uow.audit.head(self.run.source)

    def price(self) -> Epsilons:
        """Return the worst client's epsilon against each adversary, for the ledger as it is now."""
        run, budget = self.run, self.run.terms.budget
        with run.records.read() as uow:
            spent = self._spent(uow)
        return spent.epsilons(budget.delta, budget.accountant)

    def accountants(self) -> dict[str, float | str]:
        """Return every accountant's price of the worst client, as if drawn in every round."""
        run, budget = self.run, self.run.terms.budget
        with run.records.read() as uow:
            releases = as_releases(uow.ledger.rows(run.source), self.run.terms.config.mechanisms)
        ledgers: dict[str, list[Release]] = {}
        for release in releases:
            bare = dataclasses.replace(release, cohort=None)
            ledgers.setdefault(release.pseudonym, []).append(bare)
        worst = max(
            ledgers.values(),
            key=lambda ledger: claimed_epsilon(ledger, budget.delta, budget.accountant).epsilon,
            default=[],
        )
        return accountant_table(worst, budget.delta)

    def _spent(self, uow: UnitOfWork) -> RunningLedger:
        source, head = self.run.source, uow.audit.head(self.run.source)
        if self._counted is None or self._head != head:
            rows = uow.ledger.rows(source)
            self._counted = RunningLedger(as_releases(rows, self.run.terms.config.mechanisms))
            self._head = head
        return self._counted

    def _spent_in_life(
        self, uow: UnitOfWork, pseudonyms: Sequence[str], spent: RunningLedger
    ) -> RunningLedger:
        if self.run.terms.budget.lifetime_budget is None:
            return spent
        config, source = self.run.terms.config, self.run.source
        ends = uow.audit.heads()
        ends.pop(source, None)
        if self._elsewhere is None or ends != self._ends:
            everybody = tuple(self.run.roll.pseudonyms.values())
            rows = rows_that_count(uow, config, source, everybody)
            self._elsewhere = charged_elsewhere(config, rows, everybody)
            self._ends = ends
        return RunningLedger.joined((self._elsewhere, spent), pseudonyms)

    def _releases(self, plan: RoundPlan) -> list[Release]:
        run, roll = self.run, self.run.roll
        # The cost of a secret draw does not depend on its result, so all clients are charged as if
        # they were drawn. Rows, prices and the round that ends the run tell nothing of the draw.
        charged = [client for client in plan.cohort if client not in plan.empty]
        terms = run.terms
        sampling: CohortSampling | None = None
        if terms.cohort_kind is not None:
            charged = list(roll.pseudonyms)
            sampling = CohortSampling(
                kind=terms.cohort_kind,
                size=terms.config.cohort_size,
                population=terms.config.task.clients,
                is_drawn=True,
            )
        return [
            release
            for client in charged
            for release in plan.protection.releases(
                ReleaseKey(
                    run_id=run.run_id,
                    round_number=plan.round_number,
                    attempt=plan.attempt,
                    pseudonym=roll.pseudonyms[client],
                ),
                sampling,
            )
        ]


def charges_of(uow: UnitOfWork, pseudonym: str, now: datetime) -> Charges:
    """Return a client's charges in all runs, without free rows.

    A row is free if its attempt was aborted before anything left a client, or if an early version
    wrote it for a client that was not drawn. The attempts of free rows still count as over.

    Args:
        uow: A view of the database.
        pseudonym: The client's.
        now: The time, with a time zone.

    Raises:
        ConfigError: If the ledger knows no such client.
    """
    by_run: dict[str, list[LedgerRow]] = {}
    for row in uow.ledger.rows_of([pseudonym]):
        by_run.setdefault(row.run_id, []).append(row)
    if not by_run:
        raise ConfigError(
            f"PSEUDONYM: {pseudonym!r} has no row in the ledger; valid is a client's pseudonym, as "
            "its own store and the ledger have it"
        )
    runs: dict[str, RunCharges] = {}
    for run_id, rows in by_run.items():
        newest = max((row.round_number, row.attempt) for row in rows)
        begun = uow.attempts.newest(run_id)
        if begun is not None:
            newest = max(newest, (begun.round_number, begun.attempt))
        charged = (row for row in rows if row.status != "aborted" and row.cohort_drawn is not False)
        runs[run_id] = RunCharges(newest, tuple(row.as_own() for row in charged))
    return Charges(pseudonym, now, runs)

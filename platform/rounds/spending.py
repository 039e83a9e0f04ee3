"""What a round will cost, asked and written down before anything is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from platform.protection.ledger_rows import as_releases, as_row
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.plan import RoundPlan
from platform.rounds.run import Run
from privacy import (
    CohortSampling,
    Epsilons,
    Release,
    accountant_table,
    claimed_epsilon,
    epsilons,
)
from storage import LedgerRow, UnitOfWork


@dataclass(frozen=True)
class Spending:
    """The spending of one run."""

    run: Run

    def reserve(self, uow: UnitOfWork, plan: RoundPlan, protection: Protection) -> None:
        """Price an attempt, then writes its spend to the ledger; nothing has left anybody yet.

        Args:
            uow: The transaction in which the attempt is opened.
            plan: The attempt, a new one.
            protection: How uploads are protected in this round.

        Raises:
            BudgetExhausted: If the round would pass the target; nothing is written.
        """
        run = self.run
        planned = self._releases(plan, protection)
        if not planned:
            return
        rows = uow.ledger.rows(run.run_id)
        pseudonyms = sorted({release.pseudonym for release in planned})
        run.terms.budget.limits.require(run.run_id, self._spent(uow, rows, pseudonyms), planned)
        uow.ledger.reserve([as_row(release) for release in planned])
        AuditTrail(uow.audit, run.run_id).reserved(planned)

    def price(self) -> Epsilons:
        """Return epsilon against each adversary for the ledger as it stands, the worst client's."""
        run, budget = self.run, self.run.terms.budget
        with run.records.read() as uow:
            releases = as_releases(uow.ledger.rows(run.source))
        return epsilons(releases, budget.delta, budget.accountant)

    def accountants(self) -> dict[str, float | str]:
        """Return what every accountant says about the worst client, in every round it was in."""
        run, budget = self.run, self.run.terms.budget
        with run.records.read() as uow:
            releases = as_releases(uow.ledger.rows(run.source))
        ledgers: dict[str, list[Release]] = {}
        for release in releases:
            if release.cohort is None or release.cohort.is_drawn:
                bare = dataclasses.replace(release, cohort=None)
                ledgers.setdefault(release.pseudonym, []).append(bare)
        worst = max(
            ledgers.values(),
            key=lambda ledger: claimed_epsilon(ledger, budget.delta, budget.accountant).epsilon,
            default=[],
        )
        return accountant_table(worst, budget.delta)

    def _spent(
        self, uow: UnitOfWork, rows: Sequence[LedgerRow], pseudonyms: Sequence[str]
    ) -> Sequence[LedgerRow]:
        if self.run.terms.budget.lifetime_budget is None:
            return rows
        return uow.ledger.rows_of(pseudonyms)

    def _releases(self, plan: RoundPlan, protection: Protection) -> list[Release]:
        run, everybody = self.run, self.run.roll.clients
        # What a secret draw costs does not depend on how it came out, so all have a row.
        charged = plan.cohort if run.terms.cohort_kind is None else everybody
        return [
            release
            for client in charged
            for release in protection.releases(
                run_id=run.run_id,
                round_number=plan.round_number,
                attempt=plan.attempt,
                pseudonym=run.roll.pseudonyms[client],
                cohort=self._sampling(is_drawn=client in plan.cohort),
            )
        ]

    def _sampling(self, *, is_drawn: bool) -> CohortSampling | None:
        terms = self.run.terms
        if terms.cohort_kind is None:
            return None
        return CohortSampling(
            kind=terms.cohort_kind,
            size=terms.config.cohort_size,
            population=terms.config.task.clients,
            is_drawn=is_drawn,
        )

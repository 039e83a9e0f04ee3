"""What a round will cost, asked and written down before anything is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from platform.protection.ledger_rows import as_releases, as_row
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.plan import RoundPlan
from platform.rounds.wiring import Wiring
from privacy import (
    CohortSampling,
    Epsilons,
    Release,
    ReleaseKey,
    accountant_table,
    claimed_epsilon,
    epsilons,
)
from storage import LedgerRow, UnitOfWork


@dataclass(frozen=True)
class Spending:
    """The spending of one run."""

    wiring: Wiring

    def reserve(self, uow: UnitOfWork, plan: RoundPlan, protection: Protection) -> None:
        """Price an attempt, then writes its spend to the ledger; nothing has left anybody yet.

        Args:
            uow: The transaction in which the attempt is opened.
            plan: The attempt, a new one.
            protection: How uploads are protected in this round.

        Raises:
            BudgetExhausted: If the round would pass the target; nothing is written.
        """
        wiring = self.wiring
        planned = self._releases(plan, protection)
        if not planned:
            return
        rows = uow.ledger.rows(wiring.run_id)
        pseudonyms = sorted({release.pseudonym for release in planned})
        wiring.budget.limits.require(wiring.run_id, self._spent(uow, rows, pseudonyms), planned)
        uow.ledger.reserve([as_row(release) for release in planned])
        AuditTrail(uow.audit, wiring.run_id).reserved(planned)

    def price(self) -> Epsilons:
        """Return epsilon against each adversary for the ledger as it stands, the worst client's."""
        wiring, budget = self.wiring, self.wiring.budget
        with wiring.database.unit_of_work(read_only=True) as uow:
            releases = as_releases(uow.ledger.rows(wiring.source), wiring.config.mechanisms)
        return epsilons(releases, budget.delta, budget.accountant)

    def accountants(self) -> dict[str, float | str]:
        """Return what every accountant says about the worst client, in every round it was in."""
        wiring, budget = self.wiring, self.wiring.budget
        with wiring.database.unit_of_work(read_only=True) as uow:
            releases = as_releases(uow.ledger.rows(wiring.source), wiring.config.mechanisms)
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
        if self.wiring.budget.lifetime_budget is None:
            return rows
        return uow.ledger.rows_of(pseudonyms)

    def _releases(self, plan: RoundPlan, protection: Protection) -> list[Release]:
        wiring = self.wiring
        everybody = tuple(wiring.population.clients)
        # What a secret draw costs does not depend on how it came out, so all have a row.
        charged = plan.cohort if wiring.cohort_kind is None else everybody
        return [
            release
            for client in charged
            for release in protection.releases(
                ReleaseKey(
                    run_id=wiring.run_id,
                    round_number=plan.round_number,
                    attempt=plan.attempt,
                    pseudonym=wiring.population.pseudonyms[client],
                ),
                self._sampling(is_drawn=client in plan.cohort),
            )
        ]

    def _sampling(self, *, is_drawn: bool) -> CohortSampling | None:
        wiring = self.wiring
        if wiring.cohort_kind is None:
            return None
        return CohortSampling(
            kind=wiring.cohort_kind,
            size=wiring.config.cohort_size,
            population=wiring.config.task.clients,
            is_drawn=is_drawn,
        )

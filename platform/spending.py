"""What a round will cost, asked and written down before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform.audit_trail import AuditTrail
from platform.ledger import as_releases, as_row
from platform.storing import transaction
from platform.wiring import Wiring
from privacy import Epsilons, Release, epsilons, require_affordable
from storage import LedgerRow


@dataclass(frozen=True)
class Spending:
    """The spending of one run."""

    wiring: Wiring

    def reserve(self, round_number: int, cohort: Sequence[str]) -> int:
        """Prices a round, then writes its spend to the ledger; nothing has left anybody yet.

        Returns:
            The number of the attempt to make.

        Raises:
            BudgetExhausted: If the round would pass the target; nothing is written.
        """
        wiring = self.wiring
        with transaction(wiring.database) as uow:
            rows = uow.ledger.rows(wiring.run_id)
            attempt, repeated = self.next_attempt(rows, round_number)
            planned = self._releases(round_number, attempt, cohort)
            if planned and not repeated:
                self._require_affordable(rows, planned)
                uow.ledger.reserve([as_row(release) for release in planned])
                AuditTrail(uow.audit, wiring.run_id).reserved(planned)
        return attempt

    def next_attempt(self, rows: Sequence[LedgerRow], round_number: int) -> tuple[int, bool]:
        """The attempt to make, and whether it repeats an interrupted one, which is free.

        An attempt can be repeated where its vector will be the same again: without noise, or with
        noise from a seed. Noise from the operating system is fresh, hence a second release.
        """
        mine = [row for row in rows if row.round_number == round_number]
        last = max((row.attempt for row in mine), default=0)
        interrupted = any(row.attempt == last and row.status == "reserved" for row in mine)
        privacy = self.wiring.config.privacy
        reproducible = privacy.mechanism == "none" or privacy.noise_source == "seeded"
        return (last, True) if interrupted and reproducible else (last + 1, False)

    def price(self) -> Epsilons:
        """Epsilon against each adversary for the ledger as it stands, the worst client's."""
        wiring, budget = self.wiring, self.wiring.budget
        with wiring.database.unit_of_work(read_only=True) as uow:
            releases = as_releases(uow.ledger.rows(wiring.run_id))
        return epsilons(releases, budget.delta, budget.accountant)

    def _releases(self, round_number: int, attempt: int, cohort: Sequence[str]) -> list[Release]:
        wiring = self.wiring
        return [
            release
            for client in cohort
            for release in wiring.protection.releases(
                run_id=wiring.run_id,
                round_number=round_number,
                attempt=attempt,
                pseudonym=wiring.population.pseudonyms[client],
            )
        ]

    def _require_affordable(self, rows: Sequence[LedgerRow], planned: Sequence[Release]) -> None:
        budget = self.wiring.budget
        if budget.target_epsilon is not None:
            require_affordable(
                as_releases(rows),
                planned,
                budget.delta,
                target_epsilon=budget.target_epsilon,
                accountant=budget.accountant,
            )

"""Attempts at rounds: charged and opened in one transaction, carried out once, closed for good.

Whatever fixed an attempt is written down before anything is sent, so that a coordinator which is
started again goes on with the very same one: same cohort, same messages, no second charge. Only
an attempt that was given up is followed by another, with fresh noise and a charge of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from platform.config.randomness import stream
from platform.disk.transactions import transaction
from platform.errors import RoundAborted, RunStopped
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.cohort import draw_cohort
from platform.rounds.journal import DatabaseJournal
from platform.rounds.observing import Observer
from platform.rounds.plan import RoundOutcome, RoundPlan
from platform.rounds.pool import serve_experts
from platform.rounds.progress import Progress
from platform.rounds.runner import Experts
from platform.rounds.spending import Spending
from platform.rounds.wiring import Wiring
from privacy.secure_aggregation.graph import SEED_BYTES
from storage import AttemptRecord, PoolEntry, UnitOfWork


@dataclass(frozen=True)
class Attempts:
    """The attempts of one run.

    Attributes:
        wiring: The run.
        observer: Who watches it.
        spending: What attempts cost.
    """

    wiring: Wiring
    observer: Observer
    spending: Spending

    def carry_out(
        self, round_number: int, progress: Progress, protection: Protection
    ) -> tuple[RoundPlan, RoundOutcome | RoundAborted]:
        """Try until a round yields something: each time a new cohort, new keys and a new charge.

        Returns:
            The last try, and why it was aborted if even that was.

        Raises:
            BudgetExhausted: If a try cannot be afforded; nothing of it is written.
            RunStopped: If the open attempt is of another round.
        """
        retries = self.wiring.config.cohort.retries
        while True:
            pool = self._live_pool()
            plan = self._open(round_number, progress, protection, pool)
            self.observer.round_started(round_number, len(plan.cohort))
            try:
                return plan, self._attempt(plan, progress, pool)
            except RoundAborted as error:
                if not may_repeat(protection, error):
                    # It stays open until the round is kept without a result.
                    return plan, error
                self._abort(plan, error)
                if not retries:
                    return plan, error
            retries -= 1

    def newest_at(self, round_number: int | None) -> AttemptRecord | None:
        """Return the run's newest attempt if it is at this round, open or not."""
        newest = self._newest()
        return newest if newest is not None and newest.round_number == round_number else None

    def _open(
        self,
        round_number: int,
        progress: Progress,
        protection: Protection,
        pool: Sequence[PoolEntry],
    ) -> RoundPlan:
        """Return the attempt that is open, or a new one, charged and opened at once."""
        newest = self._newest()
        if newest is not None and newest.is_open:
            if newest.round_number != round_number:
                raise RunStopped(
                    f"run {self.wiring.run_id}: an attempt at round {newest.round_number} is open, "
                    f"but round {round_number} is the next; the database is not as it was left"
                )
            return self._plan(newest, progress, pool)
        attempt = 1
        if newest is not None and newest.round_number == round_number:
            attempt = newest.attempt + 1
        plan = self._plan(self._draw(round_number, attempt), progress, pool)
        with transaction(self.wiring.database) as uow:
            self.spending.reserve(uow, plan, protection)
            fixed = {
                "cohort": list(plan.cohort),
                "graph_seed": plan.graph_seed.hex(),
                # Only of the collection: what it follows is known to nobody else until its end.
                "ended_early": progress.ended_early,
            }
            uow.attempts.open(plan.run_id, round_number, attempt, fixed)
            AuditTrail(uow.audit, plan.run_id).round_opened(plan)
            self.spending.follow(uow)
        return plan

    def _newest(self) -> AttemptRecord | None:
        with self.wiring.database.unit_of_work(read_only=True) as uow:
            return uow.attempts.newest(self.wiring.run_id)

    def _draw(self, round_number: int, attempt: int) -> AttemptRecord:
        wiring = self.wiring
        names = tuple(wiring.population.clients)
        cohort = names
        if round_number != wiring.protection.collects_at:
            cohort = draw_cohort(wiring.config, names, round_number, attempt)
        terms = wiring.protection.in_round(round_number).terms
        # Drawn once the cohort is fixed, so that nobody could choose a place in the graph.
        seed = secrets.token_bytes(SEED_BYTES) if terms is not None and terms.degree else b""
        fixed = {"cohort": list(cohort), "graph_seed": seed.hex()}
        return AttemptRecord(round_number, attempt, fixed, is_open=True)

    def _plan(
        self, record: AttemptRecord, progress: Progress, pool: Sequence[PoolEntry]
    ) -> RoundPlan:
        wiring, config, rules = self.wiring, self.wiring.config, self.wiring.pool_rules
        fixed: Mapping[str, Any] = record.plan
        collects = rules is not None and record.round_number == wiring.protection.collects_at
        terms = wiring.protection.in_round(record.round_number).terms
        return RoundPlan(
            wiring.run_id,
            record.round_number,
            record.attempt,
            tuple(fixed["cohort"]),
            progress.committed,
            minimum=rules.minimum if rules is not None and collects else config.cohort.minimum,
            threshold=None if terms is None else terms.threshold,
            corrupt=0 if terms is None else terms.corrupt,
            generations=tuple(sorted({entry.generation for entry in pool})),
            size=None if collects else config.cohort_size,
            clipping_norm=None if collects else progress.clipping_norm,
            smallest_sum=0 if terms is None else terms.smallest_sum,
            degree=0 if terms is None else terms.degree,
            identities=wiring.population.identities,
            enrolment_serial=wiring.population.enrolment_serial,
            graph_seed=bytes.fromhex(fixed["graph_seed"]),
            collects=collects,
        )

    def _attempt(
        self, plan: RoundPlan, progress: Progress, pool: Sequence[PoolEntry]
    ) -> RoundOutcome:
        wiring, method = self.wiring, self.wiring.method
        is_secret = wiring.config.has_secret_cohorts and not plan.collects
        if is_secret and not plan.cohort:
            return wiring.runner.noise_alone(plan)
        try:
            return wiring.runner.run(
                plan,
                lambda client: method.broadcast(progress.state, client),
                self._experts(plan, pool),
                DatabaseJournal(wiring.database, plan.run_id, plan.round_number, plan.attempt),
            )
        except RoundAborted as error:
            if is_secret and error.phase == "masked_input":
                # Nobody is left, and lost clients count as zero; redrawing would tell of the draw.
                return wiring.runner.noise_alone(plan)
            raise

    def _experts(self, plan: RoundPlan, pool: Sequence[PoolEntry]) -> Experts:
        rules = self.wiring.pool_rules
        if rules is None or rules.policy.fixed:
            return lambda handles: ()
        rng = stream(self.wiring.config.seed, "experts", plan.round_number)
        return lambda handles: serve_experts(pool, handles, rules, rng)

    def _live_pool(self) -> Sequence[PoolEntry]:
        if self.wiring.pool_rules is None:
            return ()
        with self.wiring.database.unit_of_work(read_only=True) as uow:
            return uow.pool.entries(self.wiring.run_id)

    def _abort(self, plan: RoundPlan, error: RoundAborted) -> None:
        """Free what provably left nobody; all else stays charged."""
        wiring, run_id = self.wiring, self.wiring.run_id
        channels = wiring.protection.in_round(plan.round_number).channels
        with transaction(wiring.database) as uow:
            if channels and not error.uploads_asked:
                uow.ledger.set_status(run_id, plan.round_number, plan.attempt, "aborted")
            close_if_open(uow, plan)
            AuditTrail(uow.audit, run_id).round_aborted(plan, error)


def close_if_open(uow: UnitOfWork, plan: RoundPlan) -> None:
    """End an attempt, unless it was given up before."""
    newest = uow.attempts.newest(plan.run_id)
    if newest is not None and newest.is_open:
        uow.attempts.close(plan.run_id, plan.round_number, plan.attempt)


def may_repeat(protection: Protection, error: RoundAborted) -> bool:
    """Return whether an aborted round may be tried again.

    Not where a masked vector without noise of its own may have left anybody: clients send it in
    one attempt of a round, as two sums of the same vectors differ by what one client sent.
    """
    return not protection.masked or protection.has_client_noise or not error.uploads_asked

"""The run: round after round, with the ledger before everything that leaves a client.

An attempt's spend is priced and written before its first message; its state, metrics, ledger
status, pool entries and audit entries are one transaction. A run can stop at any point and go on:
what was committed stays, and the interrupted attempt is repeated where its vector will be the same
again, else replaced by a new one, which is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from methods import Aggregate, Arrays
from platform.attempt import RoundOutcome, RoundPlan, Traffic
from platform.audit_trail import AuditTrail
from platform.codec import decode_arrays, encode_arrays
from platform.cohort import draw_cohort
from platform.errors import RoundAborted, RunStopped
from platform.evaluation import Accuracy, Measured, RoundMeasures, measure
from platform.layout import Summed
from platform.messages import Attempt
from platform.observing import Observer
from platform.pool import encode_entry, serve_experts
from platform.protection import Protection
from platform.randomness import stream
from platform.records import round_document
from platform.round import Experts
from platform.spending import Spending
from platform.storing import transaction
from platform.transport import ClientId
from platform.vectors import unflatten
from platform.wiring import Wiring
from privacy import BudgetExhausted
from storage import PoolEntry, UnitOfWork


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        completed: Number of committed rounds.
        committed: For each client the last committed attempt that its update is part of.
        state: The server state after it.
        clipping_norm: Of the next round, where it adapts.
        ended_early: Why the rounds ended before the last, None where they did not.
        uncollected: Why a pool that is made once was not, None where it was, or is not to be.
    """

    completed: int
    committed: Mapping[ClientId, Attempt]
    state: Arrays
    clipping_norm: float | None = None
    ended_early: str | None = None
    uncollected: str | None = None


class Federation:
    """One run of a simulation."""

    def __init__(self, wiring: Wiring, observer: Observer) -> None:
        """Takes everything the run needs and who watches it."""
        self._wiring = wiring
        self._observer = observer
        self._spending = Spending(wiring)

    def run_rounds(self) -> Progress:
        """Runs the rounds that are missing, and the collection where the pool is made once.

        Raises:
            RunStopped: If a round was aborted; the run can be resumed.
        """
        wiring, rounds = self._wiring, self._wiring.config.rounds
        progress = self._begin()
        self._observer.run_started(wiring.run_id, rounds, min(progress.completed, rounds))
        for round_number in range(progress.completed + 1, rounds + 1):
            try:
                progress = self._round(round_number, progress)
            except BudgetExhausted as error:
                reason = f"ended before round {round_number}: {error}"
                progress = replace(progress, ended_early=reason)
                break
        number = wiring.protection.collects_at
        if number is None or progress.completed >= number:
            return progress
        return self._collection(number, progress)

    def measure(self, state: Arrays, committed: Mapping[ClientId, Attempt]) -> Measured:
        """Every client's accuracy once these attempts are committed.

        On its own images only, unless this round may be chosen and then needs all numbers.
        """
        wiring, plan = self._wiring, self._wiring.evaluation
        if wiring.config.evaluation.selection == "last":
            plan = plan.own_only()
        return measure(wiring.method, wiring.models(state, committed), plan)

    def validate(self, state: Arrays, committed: Mapping[ClientId, Attempt]) -> Accuracy | None:
        """Every client's accuracy on its validation images, None without any."""
        wiring, sets = self._wiring, self._wiring.evaluation.validation
        if not sets:
            return None
        models = wiring.models(state, committed)
        return measure(wiring.method, models, wiring.evaluation.on(sets)).local

    def initial_state(self) -> Arrays:
        """The server state before the first round."""
        seed = self._wiring.config.seed_of("initialisation")
        return self._wiring.method.init_server(stream(seed, "server"))

    def _begin(self) -> Progress:
        wiring = self._wiring
        with transaction(wiring.database) as uow:
            rounds, latest = uow.rounds.all(wiring.run_id), uow.states.latest(wiring.run_id)
            AuditTrail(uow.audit, wiring.run_id).run_begins(len(rounds))
            uow.runs.set_status(wiring.run_id, "running")
        if not rounds or latest is None:
            return Progress(0, {}, self.initial_state(), wiring.protection.clipping_norm)
        committed: dict[ClientId, Attempt] = {}
        for row in rounds:
            survivors = row.document["survivors"]
            committed.update(dict.fromkeys(survivors, (row.round_number, row.attempt)))
        last = rounds[-1]
        return Progress(
            last.round_number,
            committed,
            decode_arrays(latest.blob),
            last.document["next_clipping_norm"],
            # What a run says at its end must not depend on whether it was interrupted before.
            last.document.get("ended_early"),
            last.document.get("uncollected"),
        )

    def _round(self, round_number: int, progress: Progress) -> Progress:
        started = self._wiring.clock()
        protection = self._wiring.protection.at(progress.clipping_norm)
        plan, outcome = self._attempts(round_number, progress, protection)
        if isinstance(outcome, RoundAborted):
            self._give_up(plan, outcome)
        entries = self._open_entries(protection, outcome, progress.state)
        state = self._server_update(round_number, progress.state, outcome, [e for _, e in entries])
        norm = protection.extras.next_clipping_norm(outcome.clipped_fraction)
        after = replace(progress, state=state, clipping_norm=norm)
        return self._keep(plan, outcome, after, entries, started)

    def _collection(self, number: int, progress: Progress) -> Progress:
        """The round in which the pool is made, from all clients; the server state stays.

        A run goes on without a pool where this fails; only the ledger says whether a run that
        ended early can afford it.
        """
        started = self._wiring.clock()
        if not progress.completed:
            return replace(progress, uncollected="no round was completed")
        protection = self._wiring.protection.in_round(number)
        try:
            bare = replace(progress, clipping_norm=None)
            plan, outcome = self._attempts(number, bare, protection)
        except BudgetExhausted as error:
            return replace(progress, uncollected=str(error))
        if isinstance(outcome, RoundAborted):
            outcome = RoundOutcome(
                (), Summed(np.zeros(0), 0.0), None, (), str(outcome), Traffic(0, 0)
            )
        entries = self._open_entries(protection, outcome, progress.state)
        after = replace(progress, uncollected=outcome.entries_void)
        return self._keep(plan, outcome, after, entries, started)

    def _keep(
        self,
        plan: RoundPlan,
        outcome: RoundOutcome,
        after: Progress,
        entries: Sequence[tuple[bytes, Arrays]],
        started: float,
    ) -> Progress:
        """Measures a round that succeeded, commits it, and tells of it."""
        clock, mine = self._wiring.clock, (plan.round_number, plan.attempt)
        committed = {**after.committed, **dict.fromkeys(outcome.survivors, mine)}
        after = replace(after, completed=plan.round_number, committed=committed)
        trained = clock()
        measures = self._evaluate(plan, after)
        measured = clock()
        document = round_document(
            plan,
            outcome,
            measures,
            self._spending.price(),
            seconds=clock() - started,
            withholds_cohort=self._wiring.cohort_kind is not None,
        )
        kept = {
            **document,
            "next_clipping_norm": after.clipping_norm,
            "protocol": None if measures.test is None else measures.test.document(),
            "measuring_seconds": measured - trained,
            "ended_early": after.ended_early,
            "uncollected": after.uncollected,
        }
        self._commit(plan, outcome, after.state, entries, kept)
        self._observer.round_finished(document)
        return after

    def _attempts(
        self, round_number: int, progress: Progress, protection: Protection
    ) -> tuple[RoundPlan, RoundOutcome | RoundAborted]:
        """Tries until a round yields something: each time a new cohort, new keys and a new charge.

        Returns:
            The last try, and why it was aborted if even that was.

        Raises:
            BudgetExhausted: If a try cannot be afforded; nothing of it is written.
        """
        wiring = self._wiring
        attempt, repeated = self._spending.next_attempt(round_number)
        names, retries = tuple(wiring.population.clients), wiring.config.cohort.retries
        while True:
            cohort = names
            if round_number != wiring.protection.collects_at:
                cohort = draw_cohort(wiring.config, names, round_number, attempt)
            self._observer.round_started(round_number, len(cohort))
            if not repeated:
                self._spending.reserve(round_number, attempt, cohort, protection)
            pool = self._live_pool()
            plan = self._plan(round_number, attempt, cohort, progress, pool=pool)
            try:
                return plan, self._attempt(plan, progress.state, pool)
            except RoundAborted as error:
                self._abort(plan, error)
                if not retries:
                    return plan, error
            attempt, repeated, retries = attempt + 1, False, retries - 1

    def _give_up(self, plan: RoundPlan, error: RoundAborted) -> NoReturn:
        run_id = self._wiring.run_id
        with transaction(self._wiring.database) as uow:
            uow.runs.set_status(run_id, "interrupted")
        raise RunStopped(
            f"round {plan.round_number} was aborted in phase {error.phase}: {error}; "
            f"resume with --resume {run_id}"
        ) from error

    def _plan(
        self,
        round_number: int,
        attempt: int,
        cohort: tuple[ClientId, ...],
        progress: Progress,
        *,
        pool: Sequence[PoolEntry],
    ) -> RoundPlan:
        wiring, config, rules = self._wiring, self._wiring.config, self._wiring.pool_rules
        collects = rules is not None and round_number == wiring.protection.collects_at
        terms = wiring.protection.in_round(round_number).terms
        plan = RoundPlan(
            wiring.run_id,
            round_number,
            attempt,
            cohort,
            progress.committed,
            minimum=rules.minimum if rules is not None and collects else config.cohort.minimum,
            threshold=None if terms is None else terms.threshold,
            corrupt=0 if terms is None else terms.corrupt,
            generations=tuple(sorted({entry.generation for entry in pool})),
            size=None if collects else config.cohort_size,
            clipping_norm=progress.clipping_norm,
            smallest_sum=0 if terms is None else terms.smallest_sum,
            degree=0 if terms is None else terms.degree,
            identities=wiring.population.identities,
            collects=collects,
        )
        with transaction(wiring.database) as uow:
            AuditTrail(uow.audit, wiring.run_id).round_opened(plan)
        return plan

    def _attempt(self, plan: RoundPlan, state: Arrays, pool: Sequence[PoolEntry]) -> RoundOutcome:
        wiring, method = self._wiring, self._wiring.method
        is_poisson = wiring.config.cohort.sampling == "poisson" and not plan.collects
        if is_poisson and len(plan.cohort) < plan.minimum:
            return wiring.runner.noise_alone(plan)
        try:
            return wiring.runner.run(
                plan, lambda client: method.broadcast(state, client), self._experts(plan, pool)
            )
        except RoundAborted:
            if is_poisson:
                # Redrawing would tell how many had been drawn.
                return wiring.runner.noise_alone(plan)
            raise

    def _experts(self, plan: RoundPlan, pool: Sequence[PoolEntry]) -> Experts:
        rules = self._wiring.pool_rules
        if rules is None or rules.policy.fixed:
            return lambda handles: ()
        rng = stream(self._wiring.config.seed, "experts", plan.round_number)
        return lambda handles: serve_experts(pool, handles, rules, rng)

    def _live_pool(self) -> Sequence[PoolEntry]:
        if self._wiring.pool_rules is None:
            return ()
        with self._wiring.database.unit_of_work(read_only=True) as uow:
            return uow.pool.entries(self._wiring.run_id)

    def _abort(self, plan: RoundPlan, error: RoundAborted) -> None:
        """Frees what provably left nobody; all else stays charged."""
        wiring, run_id = self._wiring, self._wiring.run_id
        channels = wiring.protection.in_round(plan.round_number).channels
        with transaction(wiring.database) as uow:
            if channels and not error.uploads_asked:
                uow.ledger.set_status(run_id, plan.round_number, plan.attempt, "aborted")
            AuditTrail(uow.audit, run_id).round_aborted(plan, error)

    def _open_entries(
        self, protection: Protection, outcome: RoundOutcome, state: Arrays
    ) -> list[tuple[bytes, Mapping[str, Any]]]:
        # An entry travels as the difference to what this round broadcast.
        base = self._wiring.method.broadcast(state)
        return [(e.handle, protection.open_entry(e.entry, base)) for e in outcome.entries]

    def _server_update(
        self, round_number: int, state: Arrays, outcome: RoundOutcome, pool: Sequence[Arrays]
    ) -> Arrays:
        wiring, spec = self._wiring, self._wiring.protection.layout.spec
        individual = outcome.individual
        aggregate = Aggregate(
            unflatten(outcome.summed.vector, spec),
            outcome.summed.total_weight,
            cohort_size=int(outcome.summed.total_weight)
            if wiring.config.has_secret_cohorts
            else len(outcome.survivors),
            population=wiring.config.task.clients,
            individual=None
            if individual is None
            else {client: unflatten(vector, spec) for client, vector in individual.items()},
        )
        rng = stream(wiring.config.seed, "server", round_number)
        return wiring.method.server_update(state, aggregate, pool, rng)

    def _evaluate(self, plan: RoundPlan, after: Progress) -> RoundMeasures:
        every, rounds = self._wiring.config.evaluation.every, self._wiring.config.rounds
        if plan.round_number % every and plan.round_number < rounds:
            return RoundMeasures()
        state, committed = after.state, after.committed
        return RoundMeasures(self.measure(state, committed), self.validate(state, committed))

    def _commit(
        self,
        plan: RoundPlan,
        outcome: RoundOutcome,
        state: Arrays,
        entries: Sequence[tuple[bytes, Arrays]],
        document: Mapping[str, Any],
    ) -> None:
        wiring, run_id = self._wiring, self._wiring.run_id
        number, attempt = plan.round_number, plan.attempt
        settled = self._settled(plan, outcome)
        pseudonyms = [wiring.population.pseudonyms[client] for client in settled]
        channels = wiring.protection.in_round(number).channels
        blob = None if plan.collects else encode_arrays(state)
        stored = {**document, "survivors": list(outcome.survivors)}
        with transaction(wiring.database) as uow:
            if blob is not None:
                uow.states.save(run_id, number, blob)
            uow.rounds.add(run_id, number, attempt, stored)
            if channels:
                # A lost client's row stays reserved, hence charged: what it sent is not known.
                uow.ledger.set_status(run_id, number, attempt, "released", pseudonyms=pseudonyms)
            self._commit_pool(uow, number, entries)
            trail = AuditTrail(uow.audit, run_id)
            trail.round_committed(plan, outcome, document=stored, state=blob)

    def _settled(self, plan: RoundPlan, outcome: RoundOutcome) -> list[ClientId]:
        """Whose rows are final: the survivors' and, where all are charged, who was not drawn."""
        if self._wiring.cohort_kind is None:
            return list(outcome.survivors)
        lost = set(plan.cohort) - set(outcome.survivors)
        return [client for client in self._wiring.population.clients if client not in lost]

    def _commit_pool(
        self, uow: UnitOfWork, round_number: int, entries: Sequence[tuple[bytes, Arrays]]
    ) -> None:
        rules, run_id = self._wiring.pool_rules, self._wiring.run_id
        if rules is None:
            return
        if entries:
            stored = [(handle, encode_entry(entry)) for handle, entry in entries]
            uow.pool.add_generation(run_id, round_number, stored)
        uow.pool.keep_generations(run_id, rules.generations)

"""The run: round after round, with the ledger before everything that leaves a client.

An attempt's spend is priced and written before its first message; its state, metrics, ledger
status, pool entries and audit entries are one transaction. A run can stop at any point and go on:
what was committed stays, and the interrupted attempt is continued where it was, never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from methods import Aggregate, Arrays
from platform.config.randomness import stream
from platform.disk.transactions import transaction
from platform.errors import RoundAborted, RunStopped
from platform.parties.evaluation import Accuracy, Measured, RoundMeasures, measure
from platform.protection.uploads import Protection
from platform.rounds.attempts import Attempts, close_if_open, may_repeat
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import round_document
from platform.rounds.observing import Observer
from platform.rounds.plan import RoundOutcome, RoundPlan, Traffic
from platform.rounds.progress import Progress
from platform.rounds.spending import Spending
from platform.rounds.wiring import Wiring
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.experts import encode_entry
from platform.wire.layout import Summed
from platform.wire.messages import Attempt
from platform.wire.transport import ClientId
from platform.wire.vectors import unflatten
from privacy import BudgetExhausted
from storage import UnitOfWork


class Federation:
    """One run of a simulation."""

    def __init__(self, wiring: Wiring, observer: Observer) -> None:
        """Take everything the run needs and who watches it."""
        self._wiring = wiring
        self._observer = observer
        self._spending = Spending(wiring)
        self._attempts = Attempts(wiring, observer, self._spending)

    def run_rounds(self) -> Progress:
        """Run the rounds that are missing, and the collection where the pool is made once.

        Raises:
            RunStopped: If a round was aborted; the run can be resumed.
        """
        wiring, rounds = self._wiring, self._wiring.config.rounds
        progress = self._begin()
        self._observer.run_started(wiring.run_id, rounds, min(progress.completed, rounds))
        number = wiring.protection.collects_at
        collecting = self._attempts.newest_at(number)
        if collecting is not None:
            # The rounds were over when it was opened, also where not all of them had been held.
            progress = replace(progress, ended_early=collecting.plan["ended_early"])
        else:
            progress = self._hold_rounds(progress)
        if number is None or progress.completed >= number:
            return progress
        return self._collection(number, progress)

    def _hold_rounds(self, progress: Progress) -> Progress:
        for round_number in range(progress.completed + 1, self._wiring.config.rounds + 1):
            try:
                progress = self._round(round_number, progress)
            except BudgetExhausted as error:
                reason = f"ended before round {round_number}: {error}"
                return replace(progress, ended_early=reason)
        return progress

    def measure(self, state: Arrays, committed: Mapping[ClientId, Attempt]) -> Measured:
        """Return every client's accuracy once these attempts are committed.

        On its own images only, unless this round may be chosen and then needs all numbers.
        """
        wiring, plan = self._wiring, self._wiring.evaluation
        if wiring.config.evaluation.selection == "last":
            plan = plan.own_only()
        return measure(wiring.method, wiring.models(state, committed), plan)

    def validate(self, state: Arrays, committed: Mapping[ClientId, Attempt]) -> Accuracy | None:
        """Return every client's accuracy on its validation images, None without any."""
        wiring, sets = self._wiring, self._wiring.evaluation.validation
        if not sets:
            return None
        models = wiring.models(state, committed)
        return measure(wiring.method, models, wiring.evaluation.on(sets)).local

    def initial_state(self) -> Arrays:
        """Return the server state before the first round."""
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
        plan, outcome = self._attempts.carry_out(round_number, progress, protection)
        if isinstance(outcome, RoundAborted):
            self._give_up(plan, outcome, progress)
        entries = self._open_entries(protection, outcome, progress.state)
        state = self._server_update(round_number, progress.state, outcome, [e for _, e in entries])
        norm = protection.extras.next_clipping_norm(outcome.clipped_fraction)
        after = replace(progress, state=state, clipping_norm=norm)
        return self._keep(plan, outcome, after, entries, started)

    def _collection(self, number: int, progress: Progress) -> Progress:
        """Return the round in which the pool is made, from all clients; the server state stays.

        A run goes on without a pool where this fails; only the ledger says whether a run that
        ended early can afford it.
        """
        started = self._wiring.clock()
        if not progress.completed:
            return replace(progress, uncollected="no round was completed")
        protection = self._wiring.protection.in_round(number)
        try:
            plan, outcome = self._attempts.carry_out(number, progress, protection)
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
        *,
        lost: str | None = None,
    ) -> Progress:
        """Measure a round that is over, commits it, and tells of it."""
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
            "lost": lost,
        }
        self._commit(plan, outcome, after.state, entries, kept)
        self._observer.round_finished(document)
        return after

    def _give_up(self, plan: RoundPlan, error: RoundAborted, progress: Progress) -> NoReturn:
        """Stop a run whose round was aborted; one that may not be repeated has no result."""
        run_id, number = self._wiring.run_id, plan.round_number
        is_lost = not may_repeat(self._wiring.protection, error)
        if is_lost:
            nothing = Summed(np.zeros(0), 0.0)
            outcome = RoundOutcome((), nothing, None, (), None, Traffic(0, 0))
            self._keep(plan, outcome, progress, (), self._wiring.clock(), lost=str(error))
        with transaction(self._wiring.database) as uow:
            uow.runs.set_status(run_id, "interrupted")
        follows = "it stays without a result; " if is_lost else ""
        raise RunStopped(
            f"round {number} was aborted in phase {error.phase}: {error}; {follows}"
            f"resume with --resume {run_id}"
        ) from error

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
            if wiring.protection.mechanism.divides_by == "planned"
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
            close_if_open(uow, plan)
            trail = AuditTrail(uow.audit, run_id)
            if document["lost"] is None:
                trail.round_committed(plan, outcome, document=stored, state=blob)
            else:
                trail.round_lost(plan, document["lost"], document=stored, state=blob)

    def _settled(self, plan: RoundPlan, outcome: RoundOutcome) -> list[ClientId]:
        """Return whose rows are final.

        The survivors' and, where all are charged, who was not drawn.
        """
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

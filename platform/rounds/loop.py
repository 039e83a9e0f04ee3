"""The run: round after round, with the ledger written before anything leaves a client.

The coordinator prices and writes an attempt's spend before the attempt's first message. It commits
state, metrics, ledger status, pool entries and audit entries in one transaction. A run can stop at
any point and go on: committed rounds stay, and the coordinator continues the interrupted attempt
where it stopped. It never repeats an attempt.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from methods import Aggregate, Arrays, Groups
from platform.config.randomness import stream
from platform.disk.log_files import salted
from platform.errors import RoundAborted, RunStopped, TooFewLeft
from platform.protection.extras import GroupReading
from platform.rounds.attempts import Attempts, Spending, close_if_open, may_repeat
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import round_document
from platform.rounds.observing import Observer
from platform.rounds.plan import RoundOutcome, RoundPlan
from platform.rounds.run import Progress, Run, RunTerms, decode_state, encode_state
from platform.wire.codec import Attempt, encode_arrays
from platform.wire.layout import Summed, unflatten
from platform.wire.transport import ClientId
from privacy import BudgetExhausted
from storage import UnitOfWork


def aggregate_of(
    terms: RunTerms,
    summed: Summed,
    survivors: int,
    individual: Mapping[ClientId, NDArray[np.float64]] | None,
    *,
    groups: GroupReading | None = None,
) -> Aggregate:
    """Return the part of a round that the method's server sees.

    `individual` has each survivor's vector, where the server sees them.
    """
    spec = terms.protection.layout.spec
    planned = terms.protection.mechanism.divides_by == "planned"
    return Aggregate(
        unflatten(summed.vector, spec),
        summed.total_weight,
        cohort_size=int(summed.total_weight) if planned else survivors,
        population=terms.config.task.clients,
        individual=None
        if individual is None
        else {client: unflatten(vector, spec) for client, vector in individual.items()},
        groups=None if groups is None else Groups(groups.counts, groups.floor),
    )


_NOTHING = Summed(np.zeros(0), 0.0)


class Federation:
    """The rounds of one run."""

    def __init__(
        self, run: Run, observer: Observer, admit: Callable[[], None] = lambda: None
    ) -> None:
        """Take the run, its observer, and the function that lets clients in before a round."""
        self._admit = admit
        self._run = run
        self._observer = observer
        self._spending = Spending(run=run)
        self._attempts = Attempts(run, observer, self._spending)

    def run_rounds(self) -> Progress:
        """Run the rounds that are missing, and the collection of a pool that is made once.

        If the collection comes before the rounds and fails, no round is held. After `RunStopped`
        the run can be resumed.
        """
        # Present objects live as long as the run, so full garbage collections need not visit them.
        # With torch and its models loaded such a collection takes half a second and more, and a
        # masked round among a hundred clients makes enough objects for one every dozen rounds.
        gc.freeze()
        try:
            return self._run_rounds()
        finally:
            gc.unfreeze()

    def _run_rounds(self) -> Progress:
        run, training = self._run, self._run.terms.training_rounds
        progress = self._begin()
        over = sum(number <= progress.completed for number in training)
        self._observer.run_started(run.run_id, len(training), over)
        collects_at = run.terms.protection.collects_at
        collecting = None if collects_at == 1 else self._attempts.newest_at(collects_at)
        if collecting is not None:
            # The rounds were over when the collection was opened, even if some were never held.
            progress = replace(progress, ended_early=collecting.plan["ended_early"])
        else:
            for number in range(progress.completed + 1, training.stop):
                self._admit()
                try:
                    progress = self._round(number, progress)
                except (BudgetExhausted, TooFewLeft) as error:
                    reason = f"ended before round {number}: {error}"
                    progress = replace(progress, ended_early=reason)
                    break
        if collects_at is None or collects_at == 1 or progress.completed >= collects_at:
            return progress
        return self._collection(collects_at, progress)

    def _begin(self) -> Progress:
        run_id = self._run.run_id
        with self._run.records.write() as uow:
            rounds, latest = uow.rounds.all(run_id), uow.states.latest(run_id)
            AuditTrail(uow.audit, run_id).run_begins(len(rounds))
            uow.runs.set_status(run_id, "running")
        if not rounds or latest is None:
            return Progress(
                completed=0,
                committed={},
                state=self._attempts.start(),
                clipping_norm=self._run.terms.protection.clipping_norm,
            )
        committed: dict[ClientId, Attempt] = {}
        for row in rounds:
            survivors = row.document["survivors"]
            committed.update(dict.fromkeys(survivors, (row.round_number, row.attempt)))
        last, (state, noise_state) = rounds[-1], decode_state(latest.blob)
        return Progress(
            completed=last.round_number,
            committed=committed,
            state=state,
            noise_state=noise_state,
            clipping_norm=last.document["next_clipping_norm"],
            # An interruption must not change the report at the run's end.
            ended_early=last.document.get("ended_early"),
            uncollected=last.document.get("uncollected"),
        )

    def _round(self, number: int, progress: Progress) -> Progress:
        """Hold a round, or the collection that makes the pool before the rounds.

        Both need a result before the next round. A collection does not change the server state.
        """
        started, terms = self._run.clock(), self._run.terms
        plan, outcome = self._attempts.carry_out(number, progress)
        if isinstance(outcome, RoundAborted):
            self._give_up(plan, outcome, progress)
        entries = self._open_entries(plan, outcome, progress.state)
        if number in terms.training_rounds:
            aggregate = aggregate_of(
                terms,
                outcome.summed,
                plan.counted(outcome.survivors),
                outcome.individual,
                groups=outcome.readings.groups,
            )
            pool, rng = [entry for _, entry in entries], stream(terms.config.seed, "server", number)
            progress = replace(
                progress,
                state=terms.method.server_update(progress.state, aggregate, pool, rng),
                clipping_norm=plan.protection.extras.next_clipping_norm(
                    outcome.readings.clipped_fraction
                ),
                noise_state=outcome.noise_state or progress.noise_state,
            )
        return self._keep(plan, outcome, progress, entries, started=started)

    def _collection(self, number: int, progress: Progress) -> Progress:
        """Make the pool after the last round, from all clients; the server state does not change.

        If this fails, the run goes on without a pool. For a run that ended early, the ledger
        decides whether the run can afford the collection.
        """
        started = self._run.clock()
        if not progress.completed:
            return replace(progress, uncollected="no round was completed")
        try:
            plan, outcome = self._attempts.carry_out(number, progress)
        except (BudgetExhausted, TooFewLeft) as error:
            return replace(progress, uncollected=str(error))
        if isinstance(outcome, RoundAborted):
            outcome = RoundOutcome(summed=_NOTHING, entries_void=str(outcome))
        entries = self._open_entries(plan, outcome, progress.state)
        after = replace(progress, uncollected=outcome.entries_void)
        return self._keep(plan, outcome, after, entries, started=started)

    def _keep(
        self,
        plan: RoundPlan,
        outcome: RoundOutcome,
        after: Progress,
        entries: Sequence[tuple[bytes, Arrays]],
        *,
        started: float,
        lost: str | None = None,
    ) -> Progress:
        """Measure a round that is over, commit it, and tell the observer."""
        clock, mine = self._run.clock, (plan.round_number, plan.attempt)
        committed = {**after.committed, **dict.fromkeys(outcome.survivors, mine)}
        after = replace(
            after, completed=plan.round_number, committed=committed, ahead=outcome.keys_ahead(plan)
        )
        trained = clock()
        measures = self._run.measure(self._run, plan.round_number, after)
        measured = clock()
        document = round_document(
            plan,
            outcome,
            measures,
            self._spending.price(),
            seconds=clock() - started,
            withholds_cohort=self._run.terms.cohort_kind is not None,
        )
        kept = {
            **document,
            "next_clipping_norm": after.clipping_norm,
            "protocol": measures["protocol"],
            "measuring_seconds": measured - trained,
            "ended_early": after.ended_early,
            "uncollected": after.uncollected,
            "lost": lost,
        }
        self._commit(plan, outcome, after, entries, document=kept)
        self._observer.round_finished(document)
        return after

    def _give_up(self, plan: RoundPlan, error: RoundAborted, progress: Progress) -> NoReturn:
        """Stop a run whose round was aborted; first record a round that may not be repeated."""
        run_id, number = self._run.run_id, plan.round_number
        is_lost = not may_repeat(plan, error)
        if is_lost:
            nothing, now = RoundOutcome(summed=_NOTHING), self._run.clock()
            self._keep(plan, nothing, progress, (), started=now, lost=str(error))
        with self._run.records.write() as uow:
            uow.runs.set_status(run_id, "interrupted")
        follows = "it stays without a result; " if is_lost else ""
        raise RunStopped(
            f"round {number} was aborted in phase {error.phase}: {error}; {follows}"
            f"resume with --resume {run_id}"
        ) from error

    def _open_entries(
        self, plan: RoundPlan, outcome: RoundOutcome, state: Arrays
    ) -> list[tuple[bytes, Mapping[str, Any]]]:
        # An entry travels as the difference to what this round broadcast.
        base = self._run.terms.method.broadcast(state)
        open_entry = plan.protection.open_entry
        return [(handle, open_entry(entry, base)) for handle, entry in outcome.entries]

    def _commit(
        self,
        plan: RoundPlan,
        outcome: RoundOutcome,
        after: Progress,
        entries: Sequence[tuple[bytes, Arrays]],
        *,
        document: Mapping[str, Any],
    ) -> None:
        run, run_id = self._run, self._run.run_id
        number, attempt = plan.round_number, plan.attempt
        # A collection does not change the state, but a resumed run reads it from round 1's row.
        made = not plan.collects or number == 1
        blob = encode_state(after.state, after.noise_state) if made else None
        stored = {**document, "survivors": list(outcome.survivors)}
        settled: Iterable[ClientId] = outcome.survivors
        if run.terms.cohort_kind is not None:
            # After a secret draw all rows are final: an open row would tell who was lost.
            stored, settled = salted(stored), run.roll.pseudonyms
        pseudonyms = [run.roll.pseudonyms[client] for client in settled]
        with run.records.write() as uow:
            if blob is not None:
                uow.states.save(run_id, number, blob)
            uow.rounds.add(run_id, number, attempt, stored)
            if plan.protection.channels:
                # A lost client may have sent something: its row stays reserved, hence charged.
                uow.ledger.set_status(run_id, number, attempt, "released", pseudonyms=pseudonyms)
            self._commit_pool(uow, number, entries)
            close_if_open(uow, plan)
            trail = AuditTrail(uow.audit, run_id)
            if document["lost"] is None:
                trail.round_committed(plan, outcome, document=stored, state=blob)
            else:
                trail.round_lost(plan, document["lost"], document=stored, state=blob)
            self._spending.follow(uow)

    def _commit_pool(
        self, uow: UnitOfWork, round_number: int, entries: Sequence[tuple[bytes, Arrays]]
    ) -> None:
        rules, run_id = self._run.terms.pool_rules, self._run.run_id
        if rules is None:
            return
        if entries:
            stored = [(handle, encode_arrays(entry)) for handle, entry in entries]
            uow.pool.add_generation(run_id, round_number, stored)
        uow.pool.keep_generations(run_id, rules.generations)

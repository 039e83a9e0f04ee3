"""The run: round after round, with the ledger before everything that leaves a client.

An attempt's spend is priced and written before its first message. Its state, metrics, ledger
status, pool entries and audit entries are one transaction. A run can stop at any point and go on:
what was committed stays, and the interrupted attempt goes on where it was and is never repeated.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from methods import Aggregate, Arrays, Groups
from platform.config.randomness import stream
from platform.disk.log_files import salted
from platform.errors import RoundAborted, RunStopped, TooFewLeft
from platform.protection.extras import GroupReading
from platform.protection.uploads import Protection
from platform.rounds.attempts import Attempts, close_if_open, may_repeat
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.documents import round_document
from platform.rounds.observing import Observer
from platform.rounds.plan import RoundOutcome, RoundPlan
from platform.rounds.run import Progress, Run, RunTerms, decode_state, encode_state
from platform.rounds.spending import Spending
from platform.wire.codec import Attempt
from platform.wire.layout import Summed, encode_entry, unflatten
from platform.wire.transport import ClientId
from privacy import BudgetExhausted
from storage import UnitOfWork


@contextmanager
def only_of_rounds() -> Iterator[None]:
    """Leave out of garbage collections what is there already: it lives as long as the run.

    With torch and its models loaded a full collection takes half a second and more, and a masked
    round among a hundred clients makes enough objects for one in every dozen rounds.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def aggregate_of(
    terms: RunTerms,
    summed: Summed,
    survivors: int,
    individual: Mapping[ClientId, NDArray[np.float64]] | None,
    *,
    groups: GroupReading | None = None,
) -> Aggregate:
    """Return what the method's server is shown of a round.

    Args:
        terms: The run's.
        summed: What the sum yields.
        survivors: How many clients are in it.
        individual: Each survivor's vector, where the server sees them.
        groups: What the sum tells of its groups, where clients are in some.
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
        """Take all that the run needs, who watches it, and what lets in clients before a round."""
        self._admit = admit
        self._run = run
        self._observer = observer
        self._spending = Spending(run=run)
        self._attempts = Attempts(run, observer, self._spending)

    def run_rounds(self) -> Progress:
        """Run the rounds that are missing, and the collection where the pool is made once.

        Without the entries of a collection that comes before them no round is held.

        Raises:
            RunStopped: If a round was aborted; the run can be resumed.
        """
        with only_of_rounds():
            return self._run_rounds()

    def _run_rounds(self) -> Progress:
        run, training = self._run, self._run.terms.training_rounds
        progress = self._begin()
        over = sum(number <= progress.completed for number in training)
        self._observer.run_started(run.run_id, len(training), over)
        number = run.terms.protection.collects_at
        if number == 1:
            return self._hold_rounds(progress)
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
        collects_at, last = self._run.terms.protection.collects_at, self._run.terms.training_rounds
        for round_number in range(progress.completed + 1, last.stop):
            self._admit()
            hold = self._opening if round_number == collects_at else self._round
            try:
                progress = hold(round_number, progress)
            except (BudgetExhausted, TooFewLeft) as error:
                reason = f"ended before round {round_number}: {error}"
                return replace(progress, ended_early=reason)
        return progress

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
            # What a run says at its end must not depend on whether it was interrupted before.
            ended_early=last.document.get("ended_early"),
            uncollected=last.document.get("uncollected"),
        )

    def _round(self, round_number: int, progress: Progress) -> Progress:
        started = self._run.clock()
        protection = self._run.terms.protection.at(progress.clipping_norm)
        plan, outcome = self._attempts.carry_out(round_number, progress, protection)
        if isinstance(outcome, RoundAborted):
            self._give_up(plan, outcome, progress)
        entries = self._open_entries(protection, outcome, progress.state)
        state = self._server_update(round_number, progress.state, outcome, [e for _, e in entries])
        norm = protection.extras.next_clipping_norm(outcome.readings.clipped_fraction)
        noise_state = outcome.noise_state or progress.noise_state
        after = replace(progress, state=state, clipping_norm=norm, noise_state=noise_state)
        return self._keep(plan, outcome, after, entries, started=started)

    def _opening(self, number: int, progress: Progress) -> Progress:
        """Make the pool that the rounds are held with, from all clients; the server state stays.

        Like any round it must have a result before the next is held.
        """
        started = self._run.clock()
        protection = self._run.terms.protection.in_round(number)
        plan, outcome = self._attempts.carry_out(number, progress, protection)
        if isinstance(outcome, RoundAborted):
            self._give_up(plan, outcome, progress)
        entries = self._open_entries(protection, outcome, progress.state)
        return self._keep(plan, outcome, progress, entries, started=started)

    def _collection(self, number: int, progress: Progress) -> Progress:
        """Make the pool after the last round, from all clients; the server state stays.

        A run goes on without a pool where this fails; only the ledger says whether a run that
        ended early can afford it.
        """
        started = self._run.clock()
        if not progress.completed:
            return replace(progress, uncollected="no round was completed")
        protection = self._run.terms.protection.in_round(number)
        try:
            plan, outcome = self._attempts.carry_out(number, progress, protection)
        except (BudgetExhausted, TooFewLeft) as error:
            return replace(progress, uncollected=str(error))
        if isinstance(outcome, RoundAborted):
            outcome = RoundOutcome(summed=_NOTHING, entries_void=str(outcome))
        entries = self._open_entries(protection, outcome, progress.state)
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
        """Measure a round that is over, commit it, and tell of it."""
        clock, mine = self._run.clock, (plan.round_number, plan.attempt)
        committed = {**after.committed, **dict.fromkeys(outcome.survivors, mine)}
        after = replace(
            after,
            completed=plan.round_number,
            committed=committed,
            ahead=outcome.keys_ahead(plan),
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
        """Stop a run whose round was aborted; one that may not be repeated has no result."""
        run_id, number = self._run.run_id, plan.round_number
        is_lost = not may_repeat(self._run.terms.protection.in_round(number), error)
        if is_lost:
            outcome = RoundOutcome(summed=_NOTHING)
            now = self._run.clock()
            self._keep(plan, outcome, progress, (), started=now, lost=str(error))
        with self._run.records.write() as uow:
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
        base = self._run.terms.method.broadcast(state)
        return [(e.handle, protection.open_entry(e.entry, base)) for e in outcome.entries]

    def _server_update(
        self, round_number: int, state: Arrays, outcome: RoundOutcome, pool: Sequence[Arrays]
    ) -> Arrays:
        terms, canaries = self._run.terms, set(self._run.terms.config.canary_names)
        survivors = sum(client not in canaries for client in outcome.survivors)
        aggregate = aggregate_of(
            terms,
            outcome.summed,
            survivors,
            outcome.individual,
            groups=outcome.readings.groups,
        )
        rng = stream(terms.config.seed, "server", round_number)
        return terms.method.server_update(state, aggregate, pool, rng)

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
        channels = run.terms.protection.in_round(number).channels
        # A collection leaves the state as it was; the first round's row is where it is found again.
        made = not plan.facts.collects or number == 1
        blob = encode_state(after.state, after.noise_state) if made else None
        stored = {**document, "survivors": list(outcome.survivors)}
        settled: Iterable[ClientId] = outcome.survivors
        if run.terms.cohort_kind is not None:
            # Of a secret draw all rows are final: one that stays open would tell who was lost.
            stored, settled = salted(stored), run.roll.pseudonyms
        pseudonyms = [run.roll.pseudonyms[client] for client in settled]
        with run.records.write() as uow:
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
            self._spending.follow(uow)

    def _commit_pool(
        self, uow: UnitOfWork, round_number: int, entries: Sequence[tuple[bytes, Arrays]]
    ) -> None:
        rules, run_id = self._run.terms.pool_rules, self._run.run_id
        if rules is None:
            return
        if entries:
            stored = [(handle, encode_entry(entry)) for handle, entry in entries]
            uow.pool.add_generation(run_id, round_number, stored)
        uow.pool.keep_generations(run_id, rules.generations)

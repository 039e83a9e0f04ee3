"""Attempts at rounds: drawn, charged and opened in one transaction, carried out, closed for good.

The coordinator writes down all that fixes an attempt before it sends anything: also its price, in
the ledger. So when it is started again, it continues the same attempt: same cohort, same messages,
no second charge. It opens another attempt only after it gave up the last one, with fresh noise and
a charge of its own.

Under `central_noise` the accountant may count the sampling of clients as privacy. For that, only
the coordinator may know the cohort, and the sum is released for any number of survivors. The
coordinator then draws the cohort from the operating system's entropy, unless the run is a
simulation with seeded noise. In all other runs it draws the cohort from the run's seed, and
sampling counts for nothing.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from methods import Arrays
from platform.config import RunConfig
from platform.config.randomness import stream
from platform.disk.log_files import salted
from platform.errors import ConfigError, RoundAborted, RunStopped, TooFewLeft
from platform.protection.charging import (
    as_releases,
    as_row,
    charged_elsewhere,
    is_charged,
    rows_that_count,
)
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.observing import Observer
from platform.rounds.plan import Following, RoundOutcome, RoundPlan, SecurePlan
from platform.rounds.pool import ResidentPool
from platform.rounds.run import Progress, Roll, Run
from platform.rounds.runner import AHEAD, DatabaseJournal, Experts, RoundRunner, encode_keys
from platform.wire.charges import Charges, RunCharges
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.messages import MaskGraph, SumTerms
from platform.wire.transport import ClientId, Losses
from privacy import (
    CohortSampling,
    Epsilons,
    NoiseSource,
    Release,
    ReleaseKey,
    RunningLedger,
    SeededNoise,
    SystemNoise,
    accountant_table,
    claimed_epsilon,
)
from privacy.secure_aggregation.parameters import SEED_BYTES
from storage import AttemptRecord, AuditHead, LedgerRow, UnitOfWork


@dataclass(kw_only=True)
class Spending:
    """The spending of one run.

    The coordinator reads the run's ledger once and then counts on, because reading all of it in
    every round would slow down long runs. Every change of the ledger moves the end of the run's
    audit chain. So the count is valid at one end, and at any other end the ledger is read again. In
    the same way, the clients' spending in other runs is valid at the ends of those runs' chains.
    """

    run: Run
    _counted: RunningLedger | None = field(default=None, init=False, repr=False)
    _head: AuditHead | None = field(default=None, init=False, repr=False)
    _elsewhere: RunningLedger | None = field(default=None, init=False, repr=False)
    _ends: Mapping[str, AuditHead] = field(default_factory=dict, init=False, repr=False)

    def reserve(self, uow: UnitOfWork, plan: RoundPlan) -> None:
        """Price an attempt, and refuse it or write its spend, before anything leaves a client."""
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
    wrote it for a client that was not drawn. The attempts of free rows still count as over. The
    time `now` has a zone.
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
        runs[run_id] = RunCharges(newest, tuple(row.as_own() for row in rows if is_charged(row)))
    return Charges(pseudonym, now, runs)


def drawn_from(config: RunConfig, roll: Roll) -> tuple[ClientId, ...]:
    """Return the names among which a cohort is drawn, in order.

    A client that has left, or has not come yet, counts as lost in a round that it is drawn into.
    Where cohorts amplify, the draw is always among all clients, because epsilon relies on that. In
    other runs a seat stays empty only if too few clients are there: all terms of a secure sum
    depend on the size of the cohort.
    """
    present = roll.present
    if config.has_secret_cohorts or len(present) == len(roll.clients):
        return roll.clients
    there = set(present)
    empty = [name for name in roll.clients if name not in there]
    seats = {*there, *empty[: max(0, config.cohort_size - len(there))]}
    return tuple(name for name in roll.clients if name in seats)


def require_enough(config: RunConfig, roll: Roll, minimum: int) -> None:
    """Refuse a round that could have no result even if all present clients took part."""
    there, of_all = len(roll.present), len(roll.clients)
    if there < of_all and there < minimum:
        raise TooFewLeft(
            f"{there} of {of_all} clients are left ({len(roll.left)} have left for good), and a "
            f"round needs {minimum}"
        )


def draw_cohort(
    config: RunConfig, names: Sequence[ClientId], round_number: int, attempt: int = 1
) -> tuple[ClientId, ...]:
    """Return the clients of an attempt at a round, sorted; a further attempt has another cohort.

    An audit's canaries are among the names, and are always drawn.

    `fixed_size`: exactly `cohort.size`, uniformly without replacement. `poisson`: each client by
    its own coin flip, `cohort.size` on average and possibly no client.
    """
    if config.has_secret_cohorts and config.privacy.noise_source == "os":
        entropy = secrets.SystemRandom()
        if config.cohort.sampling == "poisson":
            return tuple(name for name in names if entropy.random() < config.cohort_rate)
        return tuple(sorted(entropy.sample(list(names), config.cohort_size)))
    further = () if attempt == 1 else (attempt,)
    rng = stream(config.seed_of("cohort"), "cohort", round_number, *further)
    if config.cohort.sampling == "poisson":
        coins = rng.random(len(names))
        return tuple(n for n, coin in zip(names, coins, strict=True) if coin < config.cohort_rate)
    drawn = rng.choice(len(names), config.seats, replace=False)
    return tuple(sorted(names[i] for i in drawn))


def simulated_losses(config: RunConfig) -> Losses:
    """Return the configured share of each round's cohort, drawn from the seed.

    In a secret cohort each client is lost by its own coin flip: amplification assumes losses that
    depend neither on which other clients were drawn nor on how many.
    """
    seed, rate = config.seed_of("cohort"), config.cohort.dropout_rate

    def losses(round_number: int, attempt: int, cohort: Sequence[ClientId]) -> frozenset[ClientId]:
        place = round_number, attempt
        if config.has_secret_cohorts:
            return frozenset(c for c in cohort if stream(seed, "lost", *place, c).random() < rate)
        lost = stream(seed, "lost", *place).choice(len(cohort), round(rate * len(cohort)), False)
        return frozenset(cohort[i] for i in lost)

    return losses


def coordinator_noise(config: RunConfig, round_number: int, attempt: int) -> NoiseSource:
    """Return where the coordinator's own noise of an attempt comes from (`central_noise`)."""
    if config.privacy.noise_source == "os":
        return SystemNoise()
    return SeededNoise(stream(config.seed, "central noise", round_number, attempt))


@dataclass(frozen=True)
class Attempts:
    """The attempts of one run."""

    run: Run
    observer: Observer
    spending: Spending

    def carry_out(
        self, round_number: int, progress: Progress
    ) -> tuple[RoundPlan, RoundOutcome | RoundAborted]:
        """Try until a round yields a result: each try has a new cohort, new keys and a new charge.

        Return the last try, and its outcome or why it was aborted. Nothing is written of a try that
        cannot be afforded (`BudgetExhausted`); `TooFewLeft` if no try could have a result any more.
        """
        terms = self.run.terms
        retries, protection = terms.config.cohort.retries, terms.protection.in_round(round_number)
        if round_number in terms.training_rounds:
            protection = protection.at(progress.clipping_norm)
        while True:
            plan = self._open(round_number, progress, protection)
            self.observer.round_started(round_number, len(plan.cohort))
            try:
                return plan, self._attempt(plan, progress)
            except RoundAborted as error:
                if not may_repeat(plan, error):
                    # It stays open until the round is kept without a result.
                    return plan, error
                self._abort(plan, error)
                if not retries:
                    return plan, error
            retries -= 1

    def start(self) -> Arrays:
        """Return the state from which the first round starts: the stored one, if it is open."""
        newest = self._newest()
        if newest is not None and newest.is_open and "start" in newest.plan:
            return decode_arrays(bytes.fromhex(newest.plan["start"]))
        return self.run.terms.initial_state()

    def newest_at(self, round_number: int | None) -> AttemptRecord | None:
        """Return the run's newest attempt if it is at this round, open or not."""
        newest = self._newest()
        return newest if newest is not None and newest.round_number == round_number else None

    def _open(self, round_number: int, progress: Progress, protection: Protection) -> RoundPlan:
        """Return the attempt that is open, or a new one, charged and opened at once."""
        newest = self._newest()
        if newest is not None and newest.is_open:
            if newest.round_number != round_number:
                raise RunStopped(
                    f"run {self.run.run_id}: an attempt at round {newest.round_number} is open, "
                    f"but round {round_number} is the next; the database is not as it was left"
                )
            return self._plan(newest, progress, protection)
        attempt = 1
        if newest is not None and newest.round_number == round_number:
            attempt = newest.attempt + 1
        terms = self.run.terms
        fewest = terms.config.cohort.minimum
        if terms.pool_rules is not None and round_number == terms.protection.collects_at:
            fewest = terms.pool_rules.minimum
        elif protection.terms is not None:
            fewest = max(fewest, protection.terms.smallest_sum)
        require_enough(terms.config, self.run.roll, fewest)
        ahead = None
        # Clients made their keys for the first attempt and its cohort only.
        if attempt == 1 and progress.ahead is not None:
            invited = self._cohort(round_number, 1)
            ahead = progress.ahead if progress.ahead.cohort == invited else None
        drawn = self._draw(round_number, attempt, ahead)
        plan = self._plan(drawn, progress, protection)
        with self.run.records.write() as uow:
            self.spending.reserve(uow, plan)
            fixed = {
                **drawn.plan,
                # Until the collection ends, only this entry says why the rounds ended.
                "ended_early": progress.ended_early,
            }
            if not progress.completed:
                # Later rounds read the state from the round before. The first state is stored too:
                # another machine could compute other signs of singular vectors.
                fixed["start"] = encode_arrays(progress.state).hex()
            if self.run.terms.cohort_kind is not None:
                fixed = salted(fixed)
            uow.attempts.open(plan.run_id, round_number, attempt, fixed)
            if ahead is not None:
                # In the same transaction: a coordinator that resumes the attempt needs these keys.
                blob = encode_keys(ahead.keys)
                uow.attempts.add_stage(plan.run_id, round_number, attempt, stage=AHEAD, blob=blob)
            AuditTrail(uow.audit, plan.run_id).round_opened(plan, fixed)
            self.spending.follow(uow)
        return plan

    def _newest(self) -> AttemptRecord | None:
        with self.run.records.read() as uow:
            return uow.attempts.newest(self.run.run_id)

    def _draw(
        self, round_number: int, attempt: int, ahead: Following | None = None
    ) -> AttemptRecord:
        cohort = self._cohort(round_number, attempt)
        seed = self._graph_seed(round_number) if ahead is None else ahead.graph_seed
        there = set(self.run.roll.present)
        empty = [client for client in cohort if client not in there]
        fixed: dict[str, Any] = {"cohort": list(cohort), "empty": empty, "graph_seed": seed.hex()}
        if round_number == self.run.terms.protection.collects_at:
            fixed["collects"] = True
        following = self._following(round_number, cohort)
        if following is not None:
            seed = following.graph_seed
            fixed["following"] = {"cohort": list(following.cohort), "graph_seed": seed.hex()}
        return AttemptRecord(round_number, attempt, fixed, is_open=True)

    def _cohort(self, round_number: int, attempt: int) -> tuple[ClientId, ...]:
        config, roll = self.run.terms.config, self.run.roll
        if round_number == self.run.terms.protection.collects_at:
            return roll.present
        return draw_cohort(config, drawn_from(config, roll), round_number, attempt)

    def _graph_seed(self, round_number: int) -> bytes:
        """Draw the seed after the cohort is fixed, so that no client can choose its place."""
        terms = self.run.terms.protection.in_round(round_number).terms
        return secrets.token_bytes(SEED_BYTES) if terms is not None and terms.degree else b""

    def _following(self, round_number: int, cohort: Sequence[ClientId]) -> Following | None:
        """Return the attempt for which clients can make keys ahead with this round's last message.

        That attempt may invite only clients of this cohort. None where cohorts are a secret.
        """
        terms, number = self.run.terms, round_number + 1
        if number not in terms.training_rounds or terms.config.has_secret_cohorts:
            return None
        if not all(terms.protection.in_round(n).masked for n in (round_number, number)):
            # Only the last message of a sum under masks asks for keys.
            return None
        invited = self._cohort(number, 1)
        if not set(invited) <= set(cohort) & set(self.run.roll.present):
            return None
        return Following(invited, self._graph_seed(number))

    def _plan(self, record: AttemptRecord, progress: Progress, protection: Protection) -> RoundPlan:
        run, rules, secure = self.run, self.run.terms.pool_rules, protection.terms
        config, fixed = run.terms.config, record.plan
        collects = rules is not None and record.round_number == run.terms.protection.collects_at
        following = fixed.get("following")
        if following is not None:
            seed = bytes.fromhex(following["graph_seed"])
            following = Following(tuple(following["cohort"]), seed)
        generations: tuple[int, ...] = ()
        if rules is not None:
            with run.records.read() as uow:
                generations = uow.pool.generations(run.run_id)
        return RoundPlan(
            run_id=run.run_id,
            round_number=record.round_number,
            attempt=record.attempt,
            cohort=tuple(fixed["cohort"]),
            committed=progress.committed,
            protection=protection,
            minimum=rules.minimum if rules is not None and collects else config.cohort.minimum,
            planned=None if collects else config.cohort_size,
            empty=frozenset(fixed.get("empty", ())),
            canaries=frozenset(config.canary_names),
            generations=generations,
            collects=collects,
            secure=None
            if secure is None
            else SecurePlan(
                terms=SumTerms(secure.threshold, secure.corrupt, secure.smallest_sum),
                graph=MaskGraph(secure.degree, bytes.fromhex(fixed["graph_seed"])),
                identities=run.roll.identities,
                enrolment_serial=run.roll.enrolment_serial,
                following=following,
            ),
        )

    def _attempt(self, plan: RoundPlan, progress: Progress) -> RoundOutcome:
        run, method = self.run, self.run.terms.method
        runner = RoundRunner(
            run.transport,
            partial(coordinator_noise, run.terms.config),
            noise_state=progress.noise_state,
        )
        is_secret = run.terms.config.has_secret_cohorts and not plan.collects
        journal = DatabaseJournal(run.records, plan.run_id, plan.round_number, plan.attempt)
        if is_secret and not plan.cohort:
            return runner.noise_alone(plan, journal)
        try:
            return runner.run(
                plan,
                lambda client: method.broadcast(progress.state, client),
                self._experts(plan),
                journal,
            )
        except RoundAborted as error:
            if is_secret and error.phase == "masked_input":
                # All clients are lost, and count as zero. A new draw would tell about this draw.
                return runner.noise_alone(plan, journal)
            raise

    def _experts(self, plan: RoundPlan) -> Experts:
        run, rules = self.run, self.run.terms.pool_rules
        if rules is None or rules.policy.closes or plan.collects:
            return lambda asked: [() for _ in asked]
        rng = stream(run.terms.config.seed, "experts", plan.round_number)

        def experts(asked: Sequence[Sequence[bytes]]) -> Sequence[tuple[Arrays, ...]]:
            if not any(asked):
                return [() for _ in asked]
            # Read now, so that the erased entries of a client that has left are not served. The
            # copy is gone before anything is sent.
            with run.records.read() as uow:
                pool = ResidentPool(uow.pool.entries(run.run_id), rules)
            return pool.serve(asked, rng)

        return experts

    def _abort(self, plan: RoundPlan, error: RoundAborted) -> None:
        """Close an attempt; its charge is lifted only if provably nothing left a client."""
        run_id = self.run.run_id
        with self.run.records.write() as uow:
            if plan.protection.channels and not error.uploads_asked:
                uow.ledger.set_status(run_id, plan.round_number, plan.attempt, "aborted")
            close_if_open(uow, plan)
            AuditTrail(uow.audit, run_id).round_aborted(plan, error)


def close_if_open(uow: UnitOfWork, plan: RoundPlan) -> None:
    """Close an attempt, unless it was given up before."""
    newest = uow.attempts.newest(plan.run_id)
    if newest is not None and newest.is_open:
        uow.attempts.close(plan.run_id, plan.round_number, plan.attempt)


def may_repeat(plan: RoundPlan, error: RoundAborted) -> bool:
    """Return whether an aborted round may be tried again.

    It may not if a masked vector without noise of its own may have left a client. Clients send such
    a vector in one attempt of a round only: two sums of the same vectors could differ by exactly
    one client's vector.
    """
    protection = plan.protection
    return not protection.masked or protection.has_client_noise or not error.uploads_asked

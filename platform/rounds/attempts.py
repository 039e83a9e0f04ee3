"""Attempts at rounds: drawn, charged and opened in one transaction, carried out, closed for good.

Everything that fixes an attempt is written down before anything is sent. So a coordinator that is
started again goes on with the same attempt: same cohort, same messages, no second charge. Another
attempt follows only one that was given up, with fresh noise and a charge of its own.

A cohort is a secret of the coordinator where that is to amplify (`central_noise` whose sum is
released whoever came). Then it is drawn from the operating system's entropy, unless the run is a
simulation with seeded noise. Everywhere else it is drawn from the run's seed and amplifies nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from methods import Arrays
from platform.config import RunConfig
from platform.config.randomness import stream
from platform.disk.log_files import salted
from platform.errors import RoundAborted, RunStopped, TooFewLeft
from platform.protection.uploads import Protection
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.exchange import AHEAD, DatabaseJournal, encode_keys
from platform.rounds.observing import Observer
from platform.rounds.plan import (
    Following,
    KeysAhead,
    Quorum,
    RoundFacts,
    RoundOutcome,
    RoundPlan,
    SecurePlan,
)
from platform.rounds.pool import ResidentPool
from platform.rounds.run import Progress, Roll, Run
from platform.rounds.runner import Experts, RoundRunner
from platform.rounds.spending import Spending
from platform.wire.codec import decode_arrays, encode_arrays
from platform.wire.messages import MaskGraph, SumTerms
from platform.wire.transport import ClientId, Losses
from privacy import NoiseSource, SeededNoise, SystemNoise
from privacy.secure_aggregation.parameters import SEED_BYTES
from storage import AttemptRecord, UnitOfWork


def drawn_from(config: RunConfig, roll: Roll) -> tuple[ClientId, ...]:
    """Return the names among which a cohort is drawn, in order.

    Who has left, or has not come yet, is no more than lost in a round that it is drawn into. Where
    cohorts amplify, all are drawn from for good, as epsilon counts on that. Where it tells nothing
    who is drawn, seats are left empty only where too few clients are there to take them: all terms
    of a secure sum go by the size of the cohort.
    """
    present = roll.present
    if config.has_secret_cohorts or len(present) == len(roll.clients):
        return roll.clients
    there = set(present)
    empty = [name for name in roll.clients if name not in there]
    seats = {*there, *empty[: max(0, config.cohort_size - len(there))]}
    return tuple(name for name in roll.clients if name in seats)


def require_enough(config: RunConfig, roll: Roll, minimum: int) -> None:
    """Refuse a round that could have no result, whoever of those who are there took part in it.

    Args:
        config: The run's.
        roll: Who is there.
        minimum: Fewest survivors of the round.

    Raises:
        TooFewLeft: If fewer are.
    """
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

    An audit's canaries are among the names, and none of them is ever left out.

    `fixed_size`: exactly `cohort.size`, uniformly without replacement. `poisson`: each on a coin
    of its own, `cohort.size` on average and possibly none.
    """
    if config.has_secret_cohorts and config.privacy.noise_source == "os":
        return _draw_in_secret(config, names)
    further = () if attempt == 1 else (attempt,)
    rng = stream(config.seed_of("cohort"), "cohort", round_number, *further)
    if config.cohort.sampling == "poisson":
        coins = rng.random(len(names))
        return tuple(n for n, coin in zip(names, coins, strict=True) if coin < config.cohort_rate)
    drawn = rng.choice(len(names), config.seats, replace=False)
    return tuple(sorted(names[i] for i in drawn))


def _draw_in_secret(config: RunConfig, names: Sequence[ClientId]) -> tuple[ClientId, ...]:
    entropy = secrets.SystemRandom()
    if config.cohort.sampling == "poisson":
        return tuple(name for name in names if entropy.random() < config.cohort_rate)
    return tuple(sorted(entropy.sample(list(names), config.cohort_size)))


def simulated_losses(config: RunConfig) -> Losses:
    """Return the configured share of each round's cohort, drawn from the seed.

    Of a secret cohort each client is lost on a coin of its own: what its draw is worth counts on
    losses that do not depend on who else was drawn, nor on how many.
    """

    def losses(round_number: int, attempt: int, cohort: Sequence[ClientId]) -> frozenset[ClientId]:
        if config.has_secret_cohorts:
            return frozenset(c for c in cohort if _is_lost(config, c, round_number, attempt))
        rng = stream(config.seed_of("cohort"), "lost", round_number, attempt)
        lost = rng.choice(len(cohort), round(config.cohort.dropout_rate * len(cohort)), False)
        return frozenset(cohort[i] for i in lost)

    return losses


def _is_lost(config: RunConfig, client: ClientId, round_number: int, attempt: int) -> bool:
    rng = stream(config.seed_of("cohort"), "lost", round_number, attempt, client)
    return bool(rng.random() < config.cohort.dropout_rate)


def coordinator_noise(config: RunConfig, round_number: int, attempt: int) -> NoiseSource:
    """Return where the coordinator's own noise of an attempt comes from (`central_noise`)."""
    if config.privacy.noise_source == "os":
        return SystemNoise()
    return SeededNoise(stream(config.seed, "central noise", round_number, attempt))


@dataclass(frozen=True)
class Attempts:
    """The attempts of one run.

    Attributes:
        run: The run.
        observer: Who watches it.
        spending: What attempts cost.
    """

    run: Run
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
            TooFewLeft: If so many clients have left for good that none could have a result.
            RunStopped: If the open attempt is of another round.
        """
        retries = self.run.terms.config.cohort.retries
        while True:
            plan = self._open(round_number, progress, protection)
            self.observer.round_started(round_number, len(plan.cohort))
            try:
                return plan, self._attempt(plan, progress)
            except RoundAborted as error:
                if not may_repeat(protection, error):
                    # It stays open until the round is kept without a result.
                    return plan, error
                self._abort(plan, error)
                if not retries:
                    return plan, error
            retries -= 1

    def start(self) -> Arrays:
        """Return the state that the first round goes out from: what was sent, if it is open."""
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
            return self._plan(newest, progress)
        attempt = 1
        if newest is not None and newest.round_number == round_number:
            attempt = newest.attempt + 1
        require_enough(self.run.terms.config, self.run.roll, self._fewest(round_number))
        # Keys that were made ahead are for one attempt: whoever tries again makes others.
        ahead = self._usable(progress.ahead, round_number) if attempt == 1 else None
        drawn = self._draw(round_number, attempt, ahead)
        plan = self._plan(drawn, progress)
        with self.run.records.write() as uow:
            self.spending.reserve(uow, plan, protection)
            fixed = {
                **drawn.plan,
                # Only of the collection: what it follows is known to nobody else until its end.
                "ended_early": progress.ended_early,
            }
            if not progress.completed:
                # Of later rounds it is kept with the round before. Found again on another machine
                # it may be another one: signs of singular vectors flip.
                fixed["start"] = encode_arrays(progress.state).hex()
            if self.run.terms.cohort_kind is not None:
                fixed = salted(fixed)
            uow.attempts.open(plan.run_id, round_number, attempt, fixed)
            if ahead is not None:
                # With the attempt: whoever goes on with it must open it in the same way.
                blob = encode_keys(ahead.keys)
                uow.attempts.add_stage(plan.run_id, round_number, attempt, stage=AHEAD, blob=blob)
            AuditTrail(uow.audit, plan.run_id).round_opened(plan, fixed)
            self.spending.follow(uow)
        return plan

    def _fewest(self, round_number: int) -> int:
        """Return the fewest survivors with which a round has a result."""
        terms, protection = self.run.terms, self.run.terms.protection
        if terms.pool_rules is not None and round_number == protection.collects_at:
            return terms.pool_rules.minimum
        secure = protection.in_round(round_number).terms
        return max(terms.config.cohort.minimum, 0 if secure is None else secure.smallest_sum)

    def _newest(self) -> AttemptRecord | None:
        with self.run.records.read() as uow:
            return uow.attempts.newest(self.run.run_id)

    def _draw(
        self, round_number: int, attempt: int, ahead: KeysAhead | None = None
    ) -> AttemptRecord:
        cohort = self._cohort(round_number, attempt)
        seed = self._graph_seed(round_number) if ahead is None else ahead.following.graph_seed
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
        """Draw it once the cohort is fixed, so that nobody could choose a place in the graph."""
        terms = self.run.terms.protection.in_round(round_number).terms
        return secrets.token_bytes(SEED_BYTES) if terms is not None and terms.degree else b""

    def _following(self, round_number: int, cohort: Sequence[ClientId]) -> Following | None:
        """Return what keys can be asked for ahead for with this round's last message, if anything.

        Only of who is asked anyway, and nothing of who is drawn where that is a secret.
        """
        terms, number = self.run.terms, round_number + 1
        if number not in terms.training_rounds or terms.config.has_secret_cohorts:
            return None
        if not all(terms.protection.in_round(n).masked for n in (round_number, number)):
            # Keys are asked for with the last message of a sum under masks.
            return None
        invited = self._cohort(number, 1)
        if not set(invited) <= set(cohort) & set(self.run.roll.present):
            return None
        return Following(invited, self._graph_seed(number))

    def _usable(self, ahead: KeysAhead | None, round_number: int) -> KeysAhead | None:
        """Return the keys that were made ahead if they are still those of who is invited."""
        if ahead is None or ahead.following.cohort != self._cohort(round_number, 1):
            return None
        return ahead

    def _plan(self, record: AttemptRecord, progress: Progress) -> RoundPlan:
        run, rules = self.run, self.run.terms.pool_rules
        config, protection = run.terms.config, run.terms.protection
        fixed: Mapping[str, Any] = record.plan
        collects = rules is not None and record.round_number == protection.collects_at
        return RoundPlan(
            run_id=run.run_id,
            round_number=record.round_number,
            attempt=record.attempt,
            cohort=tuple(fixed["cohort"]),
            committed=progress.committed,
            quorum=Quorum(
                rules.minimum if rules is not None and collects else config.cohort.minimum,
                None if collects else config.cohort_size,
                frozenset(fixed.get("empty", ())),
                frozenset(config.canary_names),
            ),
            secure=self._secure(record.round_number, fixed),
            facts=RoundFacts(
                self._generations(),
                None if collects else progress.clipping_norm,
                collects,
            ),
        )

    def _secure(self, round_number: int, fixed: Mapping[str, Any]) -> SecurePlan | None:
        terms, roll = self.run.terms.protection.in_round(round_number).terms, self.run.roll
        if terms is None:
            return None
        following = fixed.get("following")
        return SecurePlan(
            terms=SumTerms(terms.threshold, terms.corrupt, terms.smallest_sum),
            graph=MaskGraph(terms.degree, bytes.fromhex(fixed["graph_seed"])),
            identities=roll.identities,
            enrolment_serial=roll.enrolment_serial,
            following=None if following is None else _read_following(following),
        )

    def _attempt(self, plan: RoundPlan, progress: Progress) -> RoundOutcome:
        run, method = self.run, self.run.terms.method
        runner = replace(self._runner, noise_state=progress.noise_state)
        is_secret = run.terms.config.has_secret_cohorts and not plan.facts.collects
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
                # Nobody is left, and lost clients count as zero; redrawing would tell of the draw.
                return runner.noise_alone(plan, journal)
            raise

    @property
    def _runner(self) -> RoundRunner:
        config = self.run.terms.config
        return RoundRunner(
            self.run.transport, self.run.terms.protection, partial(coordinator_noise, config)
        )

    def _experts(self, plan: RoundPlan) -> Experts:
        run, rules = self.run, self.run.terms.pool_rules
        if rules is None or rules.policy.closes or plan.facts.collects:
            return lambda asked: [() for _ in asked]
        rng = stream(run.terms.config.seed, "experts", plan.round_number)

        def experts(asked: Sequence[Sequence[bytes]]) -> Sequence[tuple[Arrays, ...]]:
            if not any(asked):
                return [() for _ in asked]
            # Read now, as entries of somebody who has left since are gone and served to nobody;
            # let go of before anything is sent.
            with run.records.read() as uow:
                pool = ResidentPool(uow.pool.entries(run.run_id), rules)
            return pool.serve(asked, rng)

        return experts

    def _generations(self) -> tuple[int, ...]:
        if self.run.terms.pool_rules is None:
            return ()
        with self.run.records.read() as uow:
            return uow.pool.generations(self.run.run_id)

    def _abort(self, plan: RoundPlan, error: RoundAborted) -> None:
        """Free what provably left nobody; all else stays charged."""
        run_id = self.run.run_id
        channels = self.run.terms.protection.in_round(plan.round_number).channels
        with self.run.records.write() as uow:
            if channels and not error.uploads_asked:
                uow.ledger.set_status(run_id, plan.round_number, plan.attempt, "aborted")
            close_if_open(uow, plan)
            AuditTrail(uow.audit, run_id).round_aborted(plan, error)


def _read_following(fixed: Mapping[str, Any]) -> Following:
    return Following(tuple(fixed["cohort"]), bytes.fromhex(fixed["graph_seed"]))


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

"""A run as its coordinator conducts it: terms, who takes part, how messages travel, what is kept.

One type a phase. `RunTerms` are fixed before anything is written, `Roll` is known once clients have
introduced themselves, and with both a `Run` can be held. None of it is a client, or a client's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from methods import Arrays, Method
from platform.config import RunConfig
from platform.config.randomness import stream
from platform.disk.opening import Records
from platform.protection.building import PoolRules
from platform.protection.charging import Budget
from platform.protection.uploads import Protection
from platform.rounds.progress import Progress
from platform.wire.codec import Attempt
from platform.wire.transport import ClientId, Transport
from privacy import CohortKind


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What follows from a configuration and its method, before anything is written.

    Attributes:
        config: The effective configuration.
        method: The method.
        protection: How uploads are protected.
        budget: What the run may spend.
        pool_rules: How the pool is served, None without one.
        cohort_kind: How cohorts are drawn where that may amplify, else None.
    """

    config: RunConfig
    method: Method
    protection: Protection
    budget: Budget
    pool_rules: PoolRules | None
    cohort_kind: CohortKind | None

    def initial_state(self) -> Arrays:
        """Return the server state before the first round."""
        seed = self.config.seed_of("initialisation")
        return self.method.init_server(stream(seed, "server"))

    @property
    def final_attempt(self) -> Attempt:
        """Where personalised state is kept: one round past the last, the collection included."""
        return (self.last_round + 1, 0)

    @property
    def fetches_at_end(self) -> bool:
        """Whether clients fetch a pool that was made once, after the last round."""
        return self.pool_rules is not None and self.pool_rules.policy.closes

    @property
    def training_rounds(self) -> range:
        """The numbers of the rounds that train; a collection is none of them."""
        first = self.protection.first_round
        return range(first, first + self.config.rounds)

    @property
    def last_round(self) -> int:
        """The last number under which anything is asked for, the collection included."""
        return self.protection.last_round(self.config.rounds)


@dataclass(frozen=True, kw_only=True)
class Roll:
    """Who takes part, as clients have introduced themselves.

    Attributes:
        pseudonyms: The names that ledger and audit log use, by the clients' names; of all that have
            ever introduced themselves.
        identities: Public keys by name, against an active adversary only.
        enrolment_serial: Of the file that says whose these keys are, 0 without one.
        named: All clients' names in order, also of those that have not introduced themselves; empty
            takes those that have.
        left: Clients that have left the run for good; it grows while the run goes on.
    """

    pseudonyms: dict[ClientId, str]
    identities: dict[ClientId, bytes]
    enrolment_serial: int
    named: tuple[ClientId, ...] = ()
    left: set[ClientId] = field(default_factory=set)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients' names in order, whether they are there or not."""
        return self.named or tuple(self.pseudonyms)

    @property
    def present(self) -> tuple[ClientId, ...]:
        """The names of those who take part, in order."""
        return tuple(c for c in self.clients if c in self.pseudonyms and c not in self.left)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that can be held.

    Attributes:
        run_id: The run.
        source_id: The run whose rounds, states, pool and ledger this one goes on from, None for
            its own.
        terms: What it follows.
        roll: Who takes part.
        transport: How messages travel; all that is known of clients comes that way.
        records: Where it is written down, and read again.
        measure: What is measured after a round; the documents `accuracy`, `validation` and
            `protocol` of the round.
        clock: Seconds, for durations.
    """

    run_id: str
    source_id: str | None = None
    terms: RunTerms
    roll: Roll
    transport: Transport
    records: Records
    measure: Measure
    clock: Callable[[], float]

    @property
    def source(self) -> str:
        """The run whose rounds these are."""
        return self.run_id if self.source_id is None else self.source_id


Measure = Callable[[Run, int, Progress], Mapping[str, Any]]
"""Called with the run, the number of a round that is over, and what the next one starts from."""

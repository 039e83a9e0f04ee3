"""What a run is made of, wired once by `platform.bootstrap` and used by the run loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Examples, Method
from platform.config import RunConfig
from platform.parties.client import Client
from platform.parties.evaluation import EvaluationPlan, Model
from platform.parties.profile import TrainerFactory
from platform.protection.budget import Budget
from platform.protection.pool_rules import PoolRules
from platform.protection.uploads import Protection
from platform.rounds.runner import RoundRunner
from platform.wire.messages import Attempt
from platform.wire.transport import ClientId
from privacy import CohortKind
from storage import Database

BatchMaking = Callable[[NDArray[np.uint8] | Sequence[str]], Arrays]


@dataclass(frozen=True)
class Learning:
    """What clients learn with and from: the part of a run that no privacy setting changes.

    Attributes:
        method: The method.
        classes: The classes that are dealt out, in label order.
        train: Each client's training examples.
        evaluation: What clients' models are measured on.
        device: Where torch computes.
        batch_of: Images (n, H, W, 3) or texts to what the method predicts from.
    """

    method: Method
    classes: tuple[str, ...]
    train: Mapping[ClientId, Examples]
    evaluation: EvaluationPlan
    device: str
    batch_of: BatchMaking


@dataclass(frozen=True)
class Population:
    """All clients of a simulation.

    Attributes:
        clients: By name; the names' order is the clients' order.
        pseudonyms: The names that ledger and audit log use.
        make_trainer: A fresh trainer, with noise or plain.
        stage: Makes durable together, at its end, what all clients write in it.
        identities: Public keys by name, against an active adversary only.
        enrolment_serial: Of the file that says whose these keys are, 0 without one.
    """

    clients: Mapping[ClientId, Client]
    pseudonyms: Mapping[ClientId, str]
    make_trainer: TrainerFactory
    stage: Callable[[], AbstractContextManager[None]]
    identities: Mapping[ClientId, bytes] = field(default_factory=dict)
    enrolment_serial: int = 0


@dataclass(frozen=True)
class Wiring:
    """Everything a run needs.

    Attributes:
        config: The effective configuration.
        run_id: The run.
        folder: Where its files go.
        method: The method.
        classes: The classes that are dealt out, in label order.
        evaluation: What clients' models are measured on.
        batch_of: Images (n, H, W, 3) or texts to what the method predicts from.
        protection: How uploads are protected.
        budget: What the run may spend.
        pool_rules: How the pool is served, None without one.
        cohort_kind: How cohorts are drawn where that may amplify, else None.
        population: The clients.
        runner: Runs attempts.
        database: The coordinator's database.
        clock: Seconds, for durations.
        source_id: The run whose rounds, states, pool and ledger this one goes on from, None for
            its own.
    """

    config: RunConfig
    run_id: str
    folder: Path
    method: Method
    classes: tuple[str, ...]
    evaluation: EvaluationPlan
    batch_of: BatchMaking
    protection: Protection
    budget: Budget
    pool_rules: PoolRules | None
    cohort_kind: CohortKind | None
    population: Population
    runner: RoundRunner
    database: Database
    clock: Callable[[], float]
    source_id: str | None = None

    @property
    def source(self) -> str:
        """The run whose rounds these are."""
        return self.run_id if self.source_id is None else self.source_id

    def models(self, state: Arrays, committed: Mapping[ClientId, Attempt]) -> Iterator[Model]:
        """Yield what every client predicts with once these attempts are committed, one by one."""
        for name, client in self.population.clients.items():
            personal = client.state(committed.get(name))
            yield Model(name, self.method.broadcast(state, name), personal)


def final_attempt(wiring: Wiring) -> Attempt:
    """Return where personalised state is kept: one round past the last, the collection included."""
    last = wiring.protection.collects_at
    return ((wiring.config.rounds if last is None else last) + 1, 0)

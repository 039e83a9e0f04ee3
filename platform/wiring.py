"""What a run is made of, wired once by `platform.bootstrap` and used by the run loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from methods import Examples, Method
from platform.client import Client
from platform.client_profile import TrainerFactory
from platform.config import RunConfig
from platform.own_budget import Limits
from platform.pool import PoolRules
from platform.protection import Protection
from platform.round import RoundRunner
from platform.transport import ClientId
from privacy import Accountant, CohortKind
from storage import Database

ImageEncoding = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes:
        delta: Of every epsilon that is stated.
        target_epsilon: What the run may cost one client; None if it has no target.
        accountant: Who prices.
        noise_multiplier: Configured or calibrated; None under `none`.
        lifetime_budget: What a client may spend in all runs on the same data, None without limit.
    """

    delta: float
    target_epsilon: float | None
    accountant: Accountant
    noise_multiplier: float | None
    lifetime_budget: float | None = None

    @property
    def limits(self) -> Limits:
        """The same as a client holds itself to it."""
        return Limits(self.delta, self.accountant, self.target_epsilon, self.lifetime_budget)


@dataclass(frozen=True)
class Learning:
    """What clients learn with and from: the part of a run that no privacy setting changes.

    Attributes:
        method: The method.
        classes: Class names in label order.
        train: Each client's training examples.
        test: Each client's test examples.
        device: Where torch computes.
        encode_images: Images (n, H, W, 3) to features (n, d).
    """

    method: Method
    classes: tuple[str, ...]
    train: Mapping[ClientId, Examples]
    test: Mapping[ClientId, Examples]
    device: str
    encode_images: ImageEncoding


@dataclass(frozen=True)
class Population:
    """All clients of a simulation.

    Attributes:
        clients: By name; the names' order is the clients' order.
        tests: Each client's test examples.
        pseudonyms: The names that ledger and audit log use.
        make_trainer: A fresh trainer, with noise or plain.
        identities: Public keys by name, against an active adversary only.
    """

    clients: Mapping[ClientId, Client]
    tests: Mapping[ClientId, Examples]
    pseudonyms: Mapping[ClientId, str]
    make_trainer: TrainerFactory
    identities: Mapping[ClientId, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Wiring:
    """Everything a run needs.

    Attributes:
        config: The effective configuration.
        run_id: The run.
        folder: Where its files go.
        method: The method.
        classes: Class names in label order.
        encode_images: Images (n, H, W, 3) to features (n, d).
        protection: How uploads are protected.
        budget: What the run may spend.
        pool_rules: How the pool is served, None without one.
        cohort_kind: How cohorts are drawn where that may amplify, else None.
        population: The clients.
        runner: Runs attempts.
        database: The coordinator's database.
        clock: Seconds, for durations.
    """

    config: RunConfig
    run_id: str
    folder: Path
    method: Method
    classes: tuple[str, ...]
    encode_images: ImageEncoding
    protection: Protection
    budget: Budget
    pool_rules: PoolRules | None
    cohort_kind: CohortKind | None
    population: Population
    runner: RoundRunner
    database: Database
    clock: Callable[[], float]

"""Real rounds in one process: real clients with real stores, real messages, real masks."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from methods import Arrays, Examples, LocalResult, Method, PoolPolicy
from platform.contract.plans import a_plan
from platform.parties.client import Client
from platform.parties.profile import (
    ClientProfile,
    Randomness,
    RunNames,
    Safeguards,
    TrainerFactory,
)
from platform.protection.sums import SumProtection
from platform.protection.uploads import EntryProtection, Protection
from platform.rounds.plan import RoundFacts, RoundOutcome, RoundPlan
from platform.rounds.runner import RoundRunner
from platform.wire.codec import Attempt
from platform.wire.layout import build_layout
from platform.wire.messages import Stage, SumTerms
from platform.wire.transport import ClientId, InProcessTransport, Transport
from privacy import ClientMechanism, NoProtection
from privacy.training import LocalTrainer, TrainingPlan
from storage import open_client_store

RUN: Final = "run"
BITS: Final = 20
VALUE_BOUND: Final = 8.0
STEP: Final = 2 * VALUE_BOUND / (2**BITS - 1)
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Make a folder for clients' stores where a commit costs no disk, for the time of a block."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=base, prefix="sotto-test-") as name:
        yield Path(name)


class IdleTrainer:
    """Trains nothing: gives back the parameters it is given."""

    learning_rate = 0.1
    charged_steps: int | None = None

    def steps_for(self, num_examples: int) -> int:
        """One step, which does nothing."""
        return 1

    def fit(self, objective: object, parameters: Arrays, *_: object, **__: object) -> Arrays:
        """Return copies of the parameters."""
        return {name: np.array(value) for name, value in parameters.items()}


class CheckedMethod:
    """A method that keeps what its clients returned, for the tests to compare with."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.results: list[LocalResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def client_update(self, *arguments: Any) -> LocalResult:
        """Keep the method's own result and return it."""
        result = self._method.client_update(*arguments)
        self.results.append(result)
        return result

    def contribute(self, *arguments: Any) -> LocalResult:
        """Keep the method's own result and return it."""
        result = self._method.contribute(*arguments)
        self.results.append(result)
        return result


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a round is run under; the defaults are no masks, no mechanism, nobody lost."""

    masked: bool = False
    threshold: int = 2
    minimum: int = 2
    mechanism: ClientMechanism = field(default_factory=lambda: NoProtection(VALUE_BOUND))
    pool_noise: Literal["same", "independent"] = "same"
    lost: Collection[ClientId] = ()
    lost_at: Stage = "train"
    generations: tuple[int, ...] = ()


def local_trainer(
    learning_rate: float = 0.5, clipping: float | None = None, steps: int = 2
) -> LocalTrainer:
    """Return a trainer of two steps on batches of four, with or without clipping."""
    plan = TrainingPlan(local_steps=steps, batch_size=4, learning_rate=learning_rate)
    return LocalTrainer(plan, clipping)


def pool_of_rounds(method: Method) -> PoolPolicy | None:
    """Return the pool that every round adds to; one that is made once gets nothing in a round."""
    policy = method.pool_policy()
    return None if policy is None or policy.fixed else policy


def make_protection(method: Method, setting: Setting) -> Protection:
    """Return what protects a round of this method in this setting."""
    weighs, policy = not setting.mechanism.facts.claims, pool_of_rounds(method)
    layout = build_layout(method.shared_spec(), weighs_examples=weighs)
    masked = setting.masked and layout.coordinates > 0
    sums = SumProtection(mechanism=setting.mechanism, layout=layout, bits=BITS, masked=masked)
    if policy is None:
        return Protection(sums=sums)
    entries = EntryProtection(spec=policy.spec, noise=setting.pool_noise)
    return Protection(sums=sums, entries=entries)


def make_clients(
    method: Method, data: Mapping[ClientId, Examples], folder: Path, setting: Setting
) -> dict[ClientId, Client]:
    """Return clients whose stores lie in the folder."""
    protection = make_protection(method, setting)
    return clients_of(
        *(method, data, folder),
        protection=protection,
        make_trainer=lambda noise, **_: local_trainer(learning_rate=0.1),
    )


def clients_of(
    method: Method,
    data: Mapping[ClientId, Examples],
    folder: Path,
    *,
    protection: Protection,
    make_trainer: TrainerFactory,
) -> dict[ClientId, Client]:
    """Return clients with this protection and these trainers, whose stores lie in the folder."""
    clients = {}
    for name, examples in data.items():
        profile = ClientProfile(
            name=name,
            run=RunNames(RUN),
            method=method,
            data=examples,
            protection=protection,
            randomness=Randomness("seeded", initialisation=0, batches=1, noise=2),
            # A method that fails would pass for one that learns nothing.
            safeguards=Safeguards(simulated=True, shows_failures=True),
        )
        store = open_client_store(folder / f"{name}.db")
        clients[name] = Client(profile, store, make_trainer)
    return clients


def make_plan(
    cohort: Sequence[ClientId],
    setting: Setting,
    *,
    round_number: int = 1,
    attempt: int = 1,
    committed: Mapping[ClientId, Attempt] | None = None,
) -> RoundPlan:
    """Return the plan of a round of this cohort."""
    return a_plan(
        RUN,
        (round_number, attempt),
        sorted(cohort),
        minimum=setting.minimum,
        committed=committed,
        terms=SumTerms(setting.threshold) if setting.masked else None,
        facts=RoundFacts(setting.generations),
    )


def play(
    method: Method,
    data: Mapping[ClientId, Examples],
    folder: Path,
    setting: Setting,
    *,
    state: Arrays | None = None,
    experts: Sequence[Arrays] = (),
    transport: Transport | None = None,
) -> RoundOutcome:
    """Play one round among fresh clients, from the first server state unless another is given."""
    clients = make_clients(method, data, folder, setting)
    if transport is None:
        transport = transport_to(clients, setting)
    start = method.init_server(np.random.default_rng(7)) if state is None else state
    runner = RoundRunner(transport, make_protection(method, setting))
    plan = make_plan(tuple(clients), setting)
    return runner.run(
        plan,
        lambda client: method.broadcast(start, client),
        lambda asked: [tuple(experts)] * len(asked),
    )


def transport_to(clients: Mapping[ClientId, Client], setting: Setting) -> InProcessTransport:
    """Return the way to these clients, on which some are lost."""
    handlers = {name: client.handle for name, client in clients.items()}
    lost = frozenset(setting.lost)
    return InProcessTransport(
        handlers=handlers,
        losses=lambda round_number, attempt, cohort: lost,
        lost_at=setting.lost_at,
    )

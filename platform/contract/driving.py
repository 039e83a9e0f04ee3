"""Runs single steps of clients and servers on random examples, and real rounds in one process.

The rounds have real clients with real stores, real messages and real masks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from methods import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Method,
    PoolPolicy,
    Trainer,
    Visibility,
    Weighting,
)
from platform.contract.examples import POPULATION, draw_examples, draw_experts, frozen
from platform.parties.client import Client, work_side_by_side
from platform.parties.profile import ClientProfile, Randomness, RunNames, Safeguards, TrainerFactory
from platform.protection.sums import SumProtection
from platform.protection.uploads import EntryProtection, Protection
from platform.rounds.plan import RoundOutcome, RoundPlan, SecurePlan
from platform.rounds.runner import RoundRunner
from platform.wire.layout import build_layout, flatten, unflatten
from platform.wire.messages import MaskGraph, Stage, SumTerms
from platform.wire.transport import ClientId, InProcessTransport, Transport
from privacy import ClientMechanism, NoProtection
from privacy.training import LocalTrainer, TrainingPlan
from storage import open_client_store


def a_plan(
    run_id: str,
    place: tuple[int, int],
    cohort: Sequence[ClientId],
    protection: Protection,
    *,
    terms: SumTerms | None = None,
    graph: MaskGraph | None = None,
    keys: tuple[Mapping[ClientId, bytes], int] = ({}, 0),
    **more: Any,
) -> RoundPlan:
    """Return the plan of an attempt under a run's protection; masked if `terms` are given.

    `more` are further attributes of the plan.
    """
    secure, protection = None, protection.in_round(place[0])
    if terms is not None:
        identities, serial = keys
        secure = SecurePlan(
            terms=terms, graph=graph or MaskGraph(), identities=identities, enrolment_serial=serial
        )
    return RoundPlan(
        run_id=run_id,
        round_number=place[0],
        attempt=place[1],
        cohort=tuple(cohort),
        protection=protection.at(protection.clipping_norm),
        secure=secure,
        **{"committed": {}, "minimum": 2, **more},
    )


RUN: Final = "run"
BITS: Final = 20
VALUE_BOUND: Final = 8.0
STEP: Final = 2 * VALUE_BOUND / (2**BITS - 1)
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Make a temporary folder for clients' stores, in memory if possible, for fast commits."""
    base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=base, prefix="sotto-test-") as name:
        yield Path(name)


class IdleTrainer:
    """A trainer that does not train: it returns copies of the parameters."""

    learning_rate = 0.1
    charged_steps: int | None = None

    def steps_for(self, num_examples: int) -> int:
        """Return one step."""
        return 1

    def fit(self, objective: object, parameters: Arrays, *_: object, **__: object) -> Arrays:
        """Return copies of the parameters."""
        return {name: np.array(value) for name, value in parameters.items()}


class CheckedMethod:
    """A method that keeps its clients' results, so that tests can compare with them."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.results: list[LocalResult] = []

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._method, name)
        if name not in ("client_update", "contribute"):
            return own

        def kept(*arguments: Any) -> LocalResult:
            self.results.append(own(*arguments))
            return self.results[-1]

        return kept


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The conditions of a round; by default no masks, no mechanism and no lost clients.

    With `together` clients train side by side.
    """

    masked: bool = False
    threshold: int = 2
    minimum: int = 2
    mechanism: ClientMechanism = field(default_factory=lambda: NoProtection(VALUE_BOUND))
    pool_noise: Literal["same", "independent"] = "same"
    together: bool = False
    lost: Collection[ClientId] = ()
    lost_at: Stage = "train"


def local_trainer(
    learning_rate: float = 0.5, clipping: float | None = None, steps: int = 2
) -> LocalTrainer:
    """Return a trainer of two steps on batches of four, with or without clipping."""
    plan = TrainingPlan(local_steps=steps, batch_size=4, learning_rate=learning_rate)
    return LocalTrainer(plan, clipping)


def pool_of_rounds(method: Method) -> PoolPolicy | None:
    """Return the pool that every round adds to; None if there is no pool or it is made once."""
    policy = method.pool_policy()
    return None if policy is None or policy.fixed else policy


def make_protection(method: Method, setting: Setting) -> Protection:
    """Return the protection of a round of this method in this setting."""
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
            # Otherwise a method that fails would look like a method that learns nothing.
            safeguards=Safeguards(simulated=True, shows_failures=True),
        )
        store = open_client_store(folder / f"{name}.db")
        clients[name] = Client(profile, store, make_trainer)
    return clients


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
    """Run one round with new clients, from the first server state unless `state` is given."""
    clients = make_clients(method, data, folder, setting)
    if transport is None:
        transport = transport_to(clients, setting)
    start = method.init_server(np.random.default_rng(7)) if state is None else state
    plan = a_plan(
        RUN,
        (1, 1),
        sorted(clients),
        make_protection(method, setting),
        minimum=setting.minimum,
        terms=SumTerms(setting.threshold) if setting.masked else None,
    )
    return RoundRunner(transport).run(
        plan,
        lambda client: method.broadcast(start, client),
        lambda asked: [tuple(experts)] * len(asked),
    )


def transport_to(clients: Mapping[ClientId, Client], setting: Setting) -> InProcessTransport:
    """Return a transport to these clients that loses the clients in `setting.lost`."""
    handlers = {name: client.handle for name, client in clients.items()}
    lost = frozenset(setting.lost)
    return InProcessTransport(
        handlers=handlers,
        losses=lambda round_number, attempt, cohort: lost,
        lost_at=setting.lost_at,
        **({"ahead": partial(work_side_by_side, clients)} if setting.together else {}),
    )


def rng(seed: int = 3) -> np.random.Generator:
    """Return a fresh generator."""
    return np.random.default_rng(seed)


def start(method: Method) -> tuple[Arrays, Arrays]:
    """Return the first broadcast to a client, and its first personal state; all read-only."""
    state = frozen(method.init_server(rng(1)))
    return frozen(method.broadcast(state, "one")), frozen(method.init_client(rng(1), rng(2)))


def first_view(
    method: Method, experts: int | None = None, personal: Arrays | None = None
) -> ClientView:
    """Return what a client has in its first round, or then with another personal state.

    `experts` is their number, None for the number that the method asks for.
    """
    broadcast, first = start(method)
    own = first if personal is None else frozen(dict(personal))
    return ClientView(broadcast, draw_experts(method, experts), own)


def train(
    method: Method,
    *,
    experts: int | None = None,
    data: int | Examples = 0,
    personal: Arrays | None = None,
    trainer: Trainer | None = None,
    seed: int = 3,
) -> LocalResult:
    """Return a client's result of its first round; see `first_view`.

    `data` are the client's examples, or the seed that draws them.
    """
    return method.client_update(
        first_view(method, experts, personal),
        draw_examples(method, data) if isinstance(data, int) else data,
        local_trainer() if trainer is None else trainer,
        rng(seed),
    )


def epochs(count: int, rate: float) -> LocalTrainer:
    """Return a trainer that runs this many epochs with batches of three."""
    return LocalTrainer(TrainingPlan(local_epochs=count, batch_size=3, learning_rate=rate))


def server_update(method: Method, state: Arrays, results: Mapping[str, LocalResult]) -> Arrays:
    """Return the server's next state, after the named clients returned these results."""
    sums = {
        name: np.asarray(
            sum(result.update[name] for result in results.values())
            / (1 if spec.weighting is Weighting.SUM else len(results))
        )
        for name, spec in method.shared_spec().items()
    }
    individual = {key: frozen(dict(result.update)) for key, result in results.items()}
    pool = [result.pool_entry for result in results.values() if result.pool_entry is not None]
    shown = individual if method.visibility is Visibility.PER_CLIENT else None
    aggregate = Aggregate(frozen(sums), 16.0, len(results), POPULATION, shown)
    return method.server_update(frozen(state), aggregate, pool, rng(9))


def by_coordinate(method: Method, rules: Mapping[Weighting, float]) -> NDArray[Any]:
    """Return, for each coordinate, the number that the rules give to its weighting."""
    spec = method.shared_spec()
    return flatten({n: np.full(s.shape, rules[s.weighting]) for n, s in spec.items()}, spec)


def aggregate_of(method: Method, outcome: RoundOutcome) -> Aggregate:
    """Return the aggregate of a round that the server update gets."""
    spec, individual = method.shared_spec(), None
    if outcome.individual is not None:
        individual = {name: unflatten(v, spec) for name, v in outcome.individual.items()}
    return Aggregate(
        unflatten(outcome.summed.vector, spec),
        outcome.summed.total_weight,
        len(outcome.survivors),
        POPULATION,
        individual,
    )


def same_arrays(one: Arrays, other: Arrays) -> bool:
    """Whether two mappings hold the same names and, bit for bit, the same values."""
    return set(one) == set(other) and all(np.array_equal(one[n], other[n]) for n in one)


def same_results(one: LocalResult, other: LocalResult) -> bool:
    """Whether two results are the same, with personal state and metrics."""
    return (
        same_arrays(one.update, other.update)
        and same_arrays(one.pool_entry or {}, other.pool_entry or {})
        and same_arrays(one.personal, other.personal)
        and one.metrics == other.metrics
    )

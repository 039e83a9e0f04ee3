"""The clients of a simulation: all in this process, each with its own store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from platform.config import RunConfig
from platform.experiment.canaries import NOTHING_LEARNT, methods_of
from platform.experiment.dealing import Learning
from platform.parties.client import Client
from platform.parties.identities import credentials_of, stores_file
from platform.parties.profile import (
    ClientProfile,
    Randomness,
    RunNames,
    Safeguards,
    TrainerFactory,
    expectations_of,
)
from platform.parties.scoring import CommonScores
from platform.protection.uploads import Protection
from platform.rounds.run import Run, RunTerms
from platform.wire.transport import ClientId
from privacy import NoiseSource
from privacy.auditing import Canaries
from privacy.secure_aggregation import Credentials
from privacy.training import LocalTrainer, TrainingPlan
from storage import Database, open_client_stores


@dataclass(frozen=True)
class Population:
    """All clients of a simulation.

    The run itself knows clients by their messages alone. Local twins and new clients, which train
    beside the rounds, need the clients themselves.

    Attributes:
        clients: By name; the names' order is the clients' order.
        canaries: An audit's canaries, by name: they take part in rounds and in nothing else.
        make_trainer: Makes a fresh trainer, with noise or plain.
        stage: Makes the writes of all clients in its block durable together, at its end.
    """

    clients: Mapping[ClientId, Client]
    make_trainer: TrainerFactory
    stage: Callable[[Sequence[ClientId]], AbstractContextManager[object]]
    canaries: Mapping[ClientId, Client] = field(default_factory=dict)

    @property
    def everybody(self) -> Mapping[ClientId, Client]:
        """All clients on the roll."""
        return {**self.clients, **self.canaries}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run with the other parts of a simulation.

    Attributes:
        run: The run, as its coordinator conducts it.
        folder: The folder of its files.
        database: The coordinator's database.
        learning: Method and examples.
        population: The clients.
        canaries: The uploads of an audit's canaries; None without an audit.
    """

    run: Run
    folder: Path
    database: Database
    learning: Learning
    population: Population
    canaries: Canaries | None = None

    @property
    def run_id(self) -> str:
        """The run."""
        return self.run.run_id


def build_population(
    terms: RunTerms,
    learning: Learning,
    run: RunNames,
    folder: Path,
    *,
    canaries: Canaries | None = None,
    read_only: bool = False,
) -> Population:
    """Return all clients with open stores; the first call makes the stores.

    Args:
        terms: The terms of the run.
        learning: Method and examples.
        run: The run, and the run that the clients took part in.
        folder: The folder of the run whose clients these are.
        canaries: The uploads of an audit's canaries, None without an audit.
        read_only: Whether the stores exist already and are only read.
    """
    config, protection = terms.config, terms.protection
    make_trainer = trainer_factory(config, learning.device, protection)
    file, shared = stores_file(config, folder), CommonScores()
    names = (*learning.train, *config.canary_names)
    opened = open_client_stores(file, names, read_only=read_only)
    safeguards = partial(
        Safeguards,
        limits=terms.budget,
        expected=expectations_of(
            learning.method,
            rounds=protection.last_round(config.rounds),
            clients=config.task.clients + config.canaries,
            generations=config.pool.generations,
        ),
        simulated=True,
    )
    clients: dict[ClientId, Client] = {}
    for name, examples in learning.train.items():
        profile = ClientProfile(
            name=name,
            run=run,
            method=learning.method,
            data=examples,
            protection=protection,
            randomness=randomness(config),
            safeguards=safeguards(credentials=_credentials(config, protection, name)),
            measured=learning.evaluation.sets_of(name, shared),
        )
        clients[name] = Client(profile, opened.stores[name], make_trainer)
    audited = {
        name: Client(
            ClientProfile(
                name=name,
                run=run,
                method=method,
                data=NOTHING_LEARNT,
                protection=protection,
                randomness=randomness(config),
                safeguards=safeguards(shares_noise=not protection.mechanism.facts.is_shared_out),
            ),
            opened.stores[name],
            make_trainer,
        )
        for name, method in methods_of(
            canaries, config, learning.method, protection.layout.spec
        ).items()
    }
    # A reader makes nothing durable.
    stage = nullcontext if read_only else opened.stage
    return Population(clients, make_trainer, stage, audited)


def trainer_factory(config: RunConfig, device: str, protection: Protection) -> TrainerFactory:
    """Return a maker of trainers: with noise under `dp_sgd` where noise is given, else plain."""
    section, training = config.training, protection.training
    whole = TrainingPlan(
        local_steps=section.local_steps,
        local_epochs=section.local_epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        optimizer=section.optimizer,
        betas=section.effective_betas,
        eps=section.effective_eps,
    )

    def make_trainer(noise: NoiseSource | None, *, round_number: int | None = None) -> LocalTrainer:
        factor = config.training.factor(round_number, config.rounds)
        plan = replace(whole, rate_factor=factor)
        if training is None or noise is None:
            return LocalTrainer(plan, config.privacy.per_sample_clipping_norm, device)
        return LocalTrainer(plan, None, device, training, noise)

    return make_trainer


def _credentials(config: RunConfig, protection: Protection, name: ClientId) -> Credentials | None:
    enrolment, terms = config.secure_aggregation.enrolment, protection.terms
    if enrolment is None or terms is None or not terms.active:
        return None
    rate = terms.corrupt / terms.clients
    return credentials_of(Path(enrolment), name, corrupt_rate=rate)


def randomness(config: RunConfig) -> Randomness:
    """Return the sources of a simulated client's randomness."""
    return Randomness(
        config.privacy.noise_source,
        initialisation=config.seed_of("initialisation"),
        batches=config.seed_of("batches"),
        noise=config.seed,
    )

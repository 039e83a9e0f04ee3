"""The clients of a simulation, all in this process, each with its own store; and its canaries.

The *canaries* of an audit are real clients that do not train. A canary goes the whole way of a
client: it is invited, makes keys and shares, is charged in its own ledger and the coordinator's,
and the code that protects all clients clips its vector, puts it on the grid, masks it and sends it.
Only the training differs: the vector has ten times the clipping norm, which clipping reduces to
that norm, and its direction and side follow from the run's secret key. A canary leaves out its
share of joint noise, as a colluding client may.

The key comes from the operating system's entropy before the run has a row, and lies in the run's
folder, for its owner only. The log's first entry has the SHA-256 of the key, so that the key is
fixed from then on; the entry with the verdict has the key itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from methods import Arrays, ClientView, Examples, LocalResult, Method, Trainer
from methods.interface.defaults import OverMethod
from platform.config import RunConfig
from platform.disk.files import write_text
from platform.errors import RunStopped
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
from platform.wire.layout import Spec, unflatten, vector_length
from platform.wire.transport import ClientId
from privacy import NoiseSource
from privacy.auditing import Canaries, commitment_to, new_key
from privacy.training import LocalTrainer, TrainingPlan
from storage import Database, open_client_stores

KEY_FILE: Final = "canaries.key"
OVERSIZE: Final = 10.0
"""Times C, before clipping: so canaries also show a missing clip."""


@dataclass(frozen=True)
class CanaryMethod(OverMethod):
    """A method that learns nothing, and uploads the same update in every round."""

    update: Arrays = field(default_factory=dict)

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """Return the fixed update."""
        return LocalResult(self.update, None, view.personal)

    def personalise(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> Arrays:
        """Return the personal state unchanged."""
        return view.personal


def draw_key(config: RunConfig, folder: Path) -> str | None:
    """Draw a run's key into its folder, and return the commitment to it; None without canaries."""
    if config.audit is None:
        return None
    key = new_key()
    write_text(folder / KEY_FILE, key.hex() + "\n")
    return commitment_to(key)


def read_canaries(
    terms: RunTerms, folder: Path, run_id: str, commitment: str | None
) -> Canaries | None:
    """Return a run's canaries, None where it has none.

    The commitment to the key is the audit log's. A run whose key is missing, or does not fit the
    commitment, is stopped.
    """
    section, spec = terms.config.audit, terms.protection.layout.spec
    if section is None:
        return None
    try:
        key = bytes.fromhex((folder / KEY_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunStopped(
            f"run {run_id}: {KEY_FILE} in its folder is missing or no key, so its canaries cannot "
            "go on; put it back or start a new run"
        ) from error
    if commitment_to(key) != commitment:
        raise RunStopped(
            f"run {run_id}: {KEY_FILE} in its folder is not the one whose SHA-256 the run was "
            f"started with, {commitment}; put it back or start a new run"
        )
    return Canaries(
        key=key,
        number=section.canaries,
        directions=section.directions or section.canaries,
        dimension=vector_length(spec),
        relation=terms.config.relation,
    )


def methods_of(
    canaries: Canaries | None, config: RunConfig, method: Method, spec: Spec
) -> Mapping[str, Method]:
    """Return each canary's method in place of training, by name."""
    norm = config.privacy.clipping_norm
    if canaries is None or norm is None:
        return {}
    each = [
        CanaryMethod(method, unflatten(OVERSIZE * norm * canaries.upload(which), spec))
        for which in range(canaries.directions)
    ]
    # Canaries of one direction send the same update.
    return {name: each[i % len(each)] for i, name in enumerate(config.canary_names)}


NOTHING_LEARNT: Final = Examples({"labels": np.zeros(0, np.int64)})
"""A canary's data."""


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

    `folder` is that of the run whose clients these are. With `read_only` the stores exist already
    and are only read.
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
    enrolment, secure = config.secure_aggregation.enrolment, protection.terms
    clients: dict[ClientId, Client] = {}
    for name, examples in learning.train.items():
        credentials = None
        if enrolment is not None and secure is not None and secure.active:
            rate = secure.corrupt / secure.clients
            credentials = credentials_of(Path(enrolment), name, corrupt_rate=rate)
        profile = ClientProfile(
            name=name,
            run=run,
            method=learning.method,
            data=examples,
            protection=protection,
            randomness=randomness(config),
            safeguards=safeguards(credentials=credentials),
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


def randomness(config: RunConfig) -> Randomness:
    """Return the sources of a simulated client's randomness."""
    return Randomness(
        config.privacy.noise_source,
        initialisation=config.seed_of("initialisation"),
        batches=config.seed_of("batches"),
        noise=config.seed,
    )

"""The clients of a simulation: all in this process, each with its own store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from methods import Examples, Method
from platform.config import RunConfig
from platform.data.dataset import Split
from platform.data.duplicates import require_one_label
from platform.data.loading import CommonRows, TaskData
from platform.data.preparing import Encoders, prepared_arrays
from platform.data.rows import Rows
from platform.parties.client import Client
from platform.parties.enrolment import credentials_of
from platform.parties.evaluation import EvaluationPlan, EvaluationSet, NewClient
from platform.parties.expectations import expectations_of
from platform.parties.profile import ClientProfile, ClientSeeds, TrainerFactory
from platform.parties.store_files import client_names, stores_file
from platform.protection.limits import Limits
from platform.protection.uploads import Protection
from platform.rounds.observing import Observer
from platform.rounds.wiring import Learning, Population
from platform.wire.transport import ClientId, Handler
from privacy import NoiseSource
from privacy.secure_aggregation import Credentials
from privacy.training import LocalTrainer, TrainingPlan
from storage import open_client_stores

Indices = NDArray[np.int64]


def deal_examples(
    data: TaskData, method: Method, encoders: Encoders, protocol: str
) -> tuple[dict[ClientId, Examples], EvaluationPlan]:
    """Return training examples of every client, and what their models are measured on.

    Args:
        data: The data set and who holds what.
        method: Says what it needs, and what it keeps of that.
        encoders: From images to arrays.
        protocol: Name of the evaluation protocol.

    Raises:
        DataError: If an image cannot be read, or two examples that are the same have two labels.
    """
    dataset, names = data.dataset, client_names(len(data.clients))
    everybody = [*data.clients, *data.new_clients]
    # Only images that somebody holds are read: a few-shot run needs few of a large data set's.
    learnt = _rows_of([*(c.train for c in everybody), *(c.validation for c in data.clients)])
    measured = _rows_of(
        [*(c.test for c in everybody), *(common.rows for common in data.common.values())]
    )
    remarks = require_one_label(dataset, learnt, measured)
    held = _Held.of(method, dataset.train, learnt, encoders)
    if "domains" in method.needs:
        # Counted among the domains that are dealt out; a held-out one has no number.
        numbers = np.searchsorted(data.domains, dataset.train.domains[held.rows])
        held.arrays["domains"] = numbers.astype(np.int64)
    train = {n: held.select(c.train) for n, c in zip(names, data.clients, strict=True)}
    shown = _Held.of(method, dataset.test, measured, encoders)
    own = {n: shown.select(c.test) for n, c in zip(names, data.clients, strict=True)}
    plan = EvaluationPlan(
        protocol,
        data.classes,
        own,
        {name: _common_set(shown, rows) for name, rows in data.common.items()},
        _validation(data, held),
        _new_clients(data, held, shown),
        remarks,
    )
    return train, plan


def _rows_of(parts: Sequence[Indices]) -> Indices:
    """Return the rows of all parts, each once, ascending."""
    return np.unique(np.concatenate(parts))


def _validation(data: TaskData, held: _Held) -> dict[ClientId, Examples]:
    if not any(len(client.validation) for client in data.clients):
        return {}
    # A method is told domains in training only.
    shown = _Held(held.rows, {n: a for n, a in held.arrays.items() if n != "domains"})
    names = client_names(len(data.clients))
    return {n: shown.select(c.validation) for n, c in zip(names, data.clients, strict=True)}


def _new_clients(data: TaskData, held: _Held, shown: _Held) -> dict[ClientId, NewClient]:
    names = client_names(len(data.new_clients), "new")
    return {
        name: NewClient(held.select(client.train), shown.select(client.test))
        for name, client in zip(names, data.new_clients, strict=True)
    }


@dataclass(frozen=True)
class _Held:
    """What a method keeps of the examples of one split that somebody holds.

    Attributes:
        rows: Row numbers in the split, ascending.
        arrays: Row i of each belongs to `rows[i]`.
    """

    rows: Indices
    arrays: dict[str, Rows]

    @classmethod
    def of(cls, method: Method, split: Split, rows: Indices, encoders: Encoders) -> _Held:
        """Prepare the examples of these rows."""
        examples = split.images if split.texts is None else split.texts
        kept = dict(prepared_arrays(method, examples, rows, encoders))
        return cls(rows, {**kept, "labels": split.labels[rows]})

    def select(self, rows: Indices) -> Examples:
        """Return the examples of these rows of the split."""
        # Indexing copies the rows out of the memory-mapped cache, which all clients share.
        positions = np.searchsorted(self.rows, rows)
        return Examples({name: np.asarray(array[positions]) for name, array in self.arrays.items()})


def _common_set(shown: _Held, common: CommonRows) -> EvaluationSet:
    arrays = dict(shown.select(common.rows).arrays)
    arrays["labels"] = arrays["labels"] - common.first_label
    return EvaluationSet(Examples(arrays), common.classes)


def build_population(
    config: RunConfig,
    run_id: str,
    folder: Path,
    learning: Learning,
    protection: Protection,
    limits: Limits,
    source_id: str | None = None,
    *,
    read_only: bool = False,
) -> Population:
    """Return all clients, their stores opened (and made, at the first time).

    Args:
        config: The run's.
        run_id: The run.
        folder: Of the run whose clients these are.
        learning: What they learn with and from.
        protection: How uploads are protected.
        limits: What a client lets itself be charged.
        source_id: The run that they took part in, None for this one.
        read_only: Whether their stores are there already and nothing is written to them.
    """
    make_trainer = trainer_factory(config, learning.device, protection)
    names = tuple(learning.train)
    opened = open_client_stores(stores_file(config, folder), names, read_only=read_only)
    credentials = partial(_credentials, config, protection)
    expected = expectations_of(
        learning.method,
        rounds=protection.collects_at or config.rounds,
        clients=config.task.clients,
        generations=config.pool.generations,
    )

    clients: dict[ClientId, Client] = {}
    for name, examples in learning.train.items():
        profile = ClientProfile(
            name=name,
            run_id=run_id,
            method=learning.method,
            data=examples,
            protection=protection,
            noise_source=config.privacy.noise_source,
            seeds=_seeds(config),
            limits=limits,
            credentials=credentials(name),
            simulated=True,
            validation=learning.evaluation.validation.get(name),
            classes=learning.classes,
            source_id=source_id,
            expected=expected,
        )
        clients[name] = Client(profile, opened.stores[name], make_trainer)
    pseudonyms = {name: client.pseudonym for name, client in clients.items()}
    known = {n: c.profile.credentials for n, c in clients.items()}
    identities = {n: c.identity.public for n, c in known.items() if c is not None}
    serial = max((c.enrolment.serial for c in known.values() if c is not None), default=0)
    return Population(clients, pseudonyms, make_trainer, opened.stage, identities, serial)


def trainer_factory(config: RunConfig, device: str, protection: Protection) -> TrainerFactory:
    """Make trainers: with noise under `dp_sgd` where noise is given, else plain."""
    plan, training = _training_plan(config), protection.training

    def make_trainer(noise: NoiseSource | None) -> LocalTrainer:
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


def announcing(handler: Handler, observer: Observer) -> Handler:
    """Return the handler, telling the observer of each answer."""

    def handle(message: bytes) -> bytes:
        answer = handler(message)
        observer.client_answered()
        return answer

    return handle


def _training_plan(config: RunConfig) -> TrainingPlan:
    section = config.training
    return TrainingPlan(
        local_steps=section.local_steps,
        local_epochs=section.local_epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        optimizer=section.optimizer,
    )


def _seeds(config: RunConfig) -> ClientSeeds:
    return ClientSeeds(
        initialisation=config.seed_of("initialisation"),
        batches=config.seed_of("batches"),
        noise=config.seed,
    )

"""The clients of a simulation: all in this process, each with its own store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from methods import Examples, Need
from platform.client import Client
from platform.client_profile import ClientProfile, ClientSeeds, TrainerFactory
from platform.config import RunConfig
from platform.data.loading import TaskData
from platform.enrolling import credentials_of
from platform.observing import Observer
from platform.own_budget import Limits
from platform.protection import Protection
from platform.transport import ClientId, Handler
from platform.wiring import Learning, Population
from privacy import NoiseSource
from privacy.secure_aggregation import Credentials
from privacy.training import LocalTrainer, TrainingPlan
from storage import open_client_store

Indices = NDArray[np.int64]


def client_names(count: int) -> tuple[ClientId, ...]:
    """Names of all clients, in an order that sorting keeps."""
    return tuple(f"client-{i:05d}" for i in range(count))


def deal_examples(
    data: TaskData,
    needs: frozenset[Need],
    encode: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
) -> tuple[dict[ClientId, Examples], dict[ClientId, Examples]]:
    """Training and test examples of every client.

    Args:
        data: The data set and who holds what.
        needs: What the method asks for.
        encode: Images to features; called only if features are needed.
    """
    sides = []
    for part in ("train", "test"):
        split = getattr(data.dataset, part)
        arrays = {"labels": split.labels}
        if "features" in needs:
            arrays["features"] = encode(split.images)
        if "pixels" in needs:
            arrays["pixels"] = split.images
        rows = [getattr(client, part) for client in data.clients]
        names = client_names(len(rows))
        sides.append({n: _select(arrays, r) for n, r in zip(names, rows, strict=True)})
    return sides[0], sides[1]


def build_population(
    config: RunConfig,
    run_id: str,
    folder: Path,
    learning: Learning,
    protection: Protection,
    limits: Limits,
) -> Population:
    """All clients, their stores opened (and made, at the first time)."""
    make_trainer = trainer_factory(config, learning.device, protection)
    stores = stores_folder(config, folder)
    credentials = partial(_credentials, config, protection)

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
        )
        store = open_client_store(stores / f"{name}.db")
        clients[name] = Client(profile, store, make_trainer)
    pseudonyms = {name: client.pseudonym for name, client in clients.items()}
    identities = {
        name: client.profile.credentials.identity.public
        for name, client in clients.items()
        if client.profile.credentials is not None
    }
    return Population(clients, learning.test, pseudonyms, make_trainer, identities)


def trainer_factory(config: RunConfig, device: str, protection: Protection) -> TrainerFactory:
    """Makes trainers: with noise under `dp_sgd` where noise is given, else plain."""
    plan, training = _training_plan(config), protection.training

    def make_trainer(noise: NoiseSource | None) -> LocalTrainer:
        if training is None or noise is None:
            return LocalTrainer(plan, config.privacy.per_sample_clipping_norm, device)
        return LocalTrainer(plan, None, device, training, noise)

    return make_trainer


def stores_folder(config: RunConfig, run_folder: Path) -> Path:
    """Where the clients' stores lie: in the run's folder, or shared by all runs on the same data.

    A client that limits what it spends in its lifetime is the same client, with one pseudonym and
    one ledger, in every run on its data. Who the same client is in a simulation follows from what
    deals out the data.
    """
    if config.privacy.lifetime_budget is None:
        return run_folder / "clients"
    data = config.task.model_dump(mode="json", exclude={"model"})
    seeds = [config.seed_of("class_map"), config.seed_of("shots")]
    text = json.dumps([data, seeds], sort_keys=True)
    return run_folder.parent / "clients" / hashlib.sha256(text.encode()).hexdigest()[:16]


def _credentials(config: RunConfig, protection: Protection, name: ClientId) -> Credentials | None:
    enrolment, terms = config.secure_aggregation.enrolment, protection.terms
    if enrolment is None or terms is None or not terms.active:
        return None
    rate = terms.corrupt / terms.clients
    return credentials_of(Path(enrolment), name, corrupt_rate=rate)


def announcing(handler: Handler, observer: Observer) -> Handler:
    """The handler, telling the observer of each answer."""

    def handle(message: bytes) -> bytes:
        answer = handler(message)
        observer.client_answered()
        return answer

    return handle


def _select(arrays: Mapping[str, NDArray[np.generic]], rows: Indices) -> Examples:
    # Indexing copies the rows out of the memory-mapped cache, which all clients share.
    return Examples({name: np.asarray(array[rows]) for name, array in arrays.items()})


def _training_plan(config: RunConfig) -> TrainingPlan:
    section = config.training
    return TrainingPlan(
        local_steps=section.local_steps,
        local_epochs=section.local_epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
    )


def _seeds(config: RunConfig) -> ClientSeeds:
    return ClientSeeds(
        initialisation=config.seed_of("initialisation"),
        batches=config.seed_of("batches"),
        noise=config.seed,
    )

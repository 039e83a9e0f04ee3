"""The only place that joins methods, privacy, storage and the run.

Everything that can be refused is built and refused before anything is written.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml

from methods import Method, MethodError, Registry
from platform.agreement import require_agreement, stored_tree
from platform.config import (
    RunConfig,
    SeedConfig,
    Sources,
    StorageConfig,
    dump_config,
    parse_config,
)
from platform.data.cache import cache_folder
from platform.data.encoding import cached_encoders, frozen_model, plain_encoders
from platform.data.loading import TaskData, load_task_data
from platform.data.preparing import Encoders, prepared_batch
from platform.data.shapes import Stream
from platform.disk.digests import config_digest
from platform.disk.files import write_text
from platform.disk.opening import closed_on_error, open_existing, open_storage, run_folder
from platform.disk.transactions import records_in, transaction
from platform.errors import ConfigError, UnknownRun
from platform.experiment.dealing import Learning, deal_examples, measuring_of, public_examples
from platform.experiment.environment import environment, resolve_device, use_threads
from platform.experiment.evaluation import measure_round
from platform.experiment.method_building import (
    method_on,
    require_classes,
    task_of,
)
from platform.experiment.method_origins import origin_document, require_same_method
from platform.experiment.paths import with_absolute_paths
from platform.experiment.resuming import require_same_enrolment, require_same_run
from platform.experiment.second_phase import (
    FirstRun,
    require_clients,
    require_files,
    require_first_releases,
    require_fitting_pool,
    require_same_classes,
    require_second_phase,
)
from platform.experiment.simulation import Simulation, build_population
from platform.parties.enrolment import enrolment_of, fingerprint_of
from platform.parties.profile import RunNames
from platform.protection.budget import Budget
from platform.protection.building import amplifying_cohorts, protect_run, weighing
from platform.protection.fitting import pool_rules_of
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.cohort import simulated_losses
from platform.rounds.observing import Observer
from platform.rounds.roll import call_roll
from platform.rounds.run import Run, RunTerms
from platform.wire.messages import ROUND_STAGES, Stage
from platform.wire.transport import InProcessTransport, Transport
from storage import Database, NotFound

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a run takes from outside its configuration; tests give their own.

    Attributes:
        registry: The methods.
        sources: Packaged configurations and method presets.
        now: The time, for records.
        clock: Seconds, for durations.
        carry: How messages travel, made from how they travel within this process.
        images: Who rendered images are for; a dry run's are not the federation's.
    """

    registry: Registry = field(default_factory=Registry)
    sources: Sources = field(default_factory=Sources)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.perf_counter
    carry: Callable[[InProcessTransport], Transport] = lambda within: within
    images: Stream = Stream.FEDERATION

    @classmethod
    def with_methods(cls, folder: Path | None) -> Self:
        """Return what there is, with the methods of a folder that the user named."""
        registry = Registry(folder=folder)
        return cls(registry=registry, sources=Sources(registry=registry))


def create_run(config: RunConfig, observer: Observer, surroundings: Surroundings) -> Simulation:
    """Set up a new run.

    Raises:
        ConfigError: If the configuration cannot be run; nothing is written then.
    """
    config = with_absolute_paths(config)
    plan = _plan(config, observer, surroundings)
    run_id = _run_id(config, surroundings.now())
    with closed_on_error(open_storage(config.storage.url)) as database:
        text, facts = dump_config(config), environment(plan.learning.device)
        digest = config_digest(text)
        # First, so that a run that the database knows has its configuration beside it.
        folder = run_folder(config.storage.url, run_id)
        code = origin_document(surroundings.registry, config.method.name)
        effective = {
            "noise_multiplier": plan.terms.budget.noise_multiplier,
            "seeds": {purpose: config.seed_of(purpose) for purpose in SeedConfig.model_fields},
            "classes": list(plan.learning.classes),
            "environment": facts,
            **({} if code is None else {"method_from": code}),
        }
        write_text(folder / "config.yaml", text)
        write_text(folder / "effective.yaml", yaml.safe_dump(effective, sort_keys=False))
        with transaction(database) as uow:
            uow.runs.create(
                run_id,
                name=config.name,
                config_json=json.dumps(config.model_dump(mode="json")),
                config_digest=digest,
                versions_json=json.dumps(facts),
            )
            trail = AuditTrail(uow.audit, run_id)
            known = enrolment_of(config, plan.terms.protection.terms)
            trail.run_created(digest, fingerprint_of(known), config.phase_two_of, code)
        observer.run_created(run_id)
        return _simulate(plan, run_id, database, observer=observer, surroundings=surroundings)


def _plan(config: RunConfig, observer: Observer, surroundings: Surroundings) -> RunPlan:
    """Return a run's plan, which for a second phase rests on what another run left behind."""
    source, url = config.phase_two_of, config.storage.url
    if source is None:
        return plan_run(config, observer, surroundings)
    database = open_existing(url, read_only=False)
    try:
        first = stored_config(database, source, surroundings)
        require_second_phase(config, first, database, surroundings.registry)
        folder = run_folder(url, source)
        require_files(folder, source)
        require_clients(database, config, folder)
        agreed = require_agreement(database, source, surroundings.sources.mechanisms)
        begun = agreed.records.entries("run.created")[0]
        code, registry = begun.detail.get("method"), surroundings.registry
        require_same_method(source, config.method.name, code, registry)
        plan = plan_run(config, observer, surroundings, FirstRun(first, database))
        require_same_classes(folder, source, plan.learning.classes)
        require_first_releases(database, source, plan.terms.protection)
    finally:
        database.close()
    return plan


def reopen_run(
    run_id: str,
    url: str,
    observer: Observer,
    surroundings: Surroundings,
    *,
    read_only: bool = False,
) -> Simulation:
    """Set up a run that exists; with `read_only` to write to none of its databases.

    Whoever goes on with a run builds on all rows of its database, so all are checked then.

    Raises:
        UnknownRun: If there is none of this name.
        ConfigError: If its configuration cannot be run here.
        RunStopped: If its records do not agree, a client that was charged is not here any more, or
            the run would go on with other parameters than it was charged for.
    """
    database = open_existing(url) if read_only else open_storage(url)
    with closed_on_error(database):
        if not read_only:
            database.verify_integrity()
        return _reopen(run_id, url, database, observer=observer, surroundings=surroundings)


def _reopen(
    run_id: str, url: str, database: Database, *, observer: Observer, surroundings: Surroundings
) -> Simulation:
    config = stored_config(database, run_id, surroundings)
    agreed = require_agreement(database, run_id, surroundings.sources.mechanisms)
    created = agreed.records.entries("run.created")[0]
    code, registry = created.detail.get("method"), surroundings.registry
    require_same_method(run_id, config.method.name, code, registry)
    # The clients' stores lie beside the database, which may have moved since the run started.
    config = config.model_copy(update={"storage": StorageConfig(url=url)})
    plan = _plan(config, observer, surroundings)
    if not database.is_read_only:
        known = enrolment_of(config, plan.terms.protection.terms)
        require_same_enrolment(run_id, created.detail.get("enrolment"), fingerprint_of(known))
    observer.run_created(run_id)
    simulation = _simulate(plan, run_id, database, observer=observer, surroundings=surroundings)
    require_same_run(simulation.run, database, simulation.folder)
    return simulation


def stored_config(database: Database, run_id: str, surroundings: Surroundings) -> RunConfig:
    """Return the configuration that a run was started with.

    Raises:
        UnknownRun: If there is no such run.
        RecordsDisagree: If its row has none.
        ConfigError: If it is not valid here.
    """
    try:
        with database.unit_of_work(read_only=True) as uow:
            run = uow.runs.get(run_id)
    except NotFound as error:
        raise UnknownRun(str(error)) from error
    return parse_config(stored_tree(run), sources=surroundings.sources)


@dataclass(frozen=True)
class RunPlan:
    """A run that has passed every check, before anything is written.

    Attributes:
        terms: What its rounds follow.
        learning: What its clients learn with and from.
    """

    terms: RunTerms
    learning: Learning


def plan_run(
    config: RunConfig,
    observer: Observer,
    surroundings: Surroundings,
    first: FirstRun | None = None,
) -> RunPlan:
    """Build and check everything that a run needs; only what images are encoded to is cached.

    Args:
        config: The run's.
        observer: Told how far preparing has come.
        surroundings: What the run takes from outside.
        first: The run whose second phase it is, None where it begins anew.

    Raises:
        ConfigError: If the configuration cannot be run.
    """
    device = resolve_device(config.device)
    use_threads(config.threads)
    data = load_task_data(config, surroundings.images)
    backbone = frozen_model(config.task.model, device)

    def encoders_of(method: Method) -> Encoders:
        # Only now, as it makes the folder: what is refused leaves none.
        folder = cache_folder(config)
        return cached_encoders(backbone, folder, observer.preparing, method.pixel_size)

    task = task_of(config, data, backbone, device)
    public = partial(public_examples, config, data, encoders_of)
    method = method_on(data, surroundings.registry, config, task, public=public)
    # Before images are encoded, which can take hours: what is refused is refused at once.
    if first is not None:
        require_fitting_pool(first.database, config, method)
    # What was released follows from the configuration of the run that released it.
    releasing = config if first is None else first.config
    calibrated, section = protect_run(releasing, method), config.privacy
    budget = Budget(
        delta=section.target_delta,
        target_epsilon=section.target_epsilon,
        accountant=section.accountant,
        noise_multiplier=calibrated.noise_multiplier,
        lifetime_budget=section.lifetime_budget,
        mechanisms=config.mechanisms,
    )
    learning = _learning(config, data, method, (backbone, device, encoders_of(method)))
    most = max(examples.num_examples for examples in learning.train.values())
    protection = weighing(calibrated.protection, config, most)
    terms = RunTerms(
        config=config,
        method=method,
        protection=protection,
        budget=budget,
        pool_rules=pool_rules_of(config, method),
        cohort_kind=amplifying_cohorts(config, method),
    )
    return RunPlan(terms, learning)


def _learning(
    config: RunConfig,
    data: TaskData,
    method: Method,
    model: tuple[Backbone | None, str, Encoders],
) -> Learning:
    backbone, device, encoders = model
    plain = plain_encoders(backbone, method.pixel_size)
    try:
        train, evaluation = deal_examples(
            data, method, encoders, config.evaluation.protocol, measuring=measuring_of(config)
        )
    except MethodError as error:
        # A model without tokens, or examples that the method cannot prepare.
        raise ConfigError(str(error)) from error
    require_classes(method, evaluation)
    return Learning(
        method=method,
        classes=data.classes,
        train=train,
        evaluation=evaluation,
        device=device,
        batch_of=lambda examples: prepared_batch(method, examples, plain),
    )


def _simulate(
    plan: RunPlan,
    run_id: str,
    database: Database,
    *,
    observer: Observer,
    surroundings: Surroundings,
) -> Simulation:
    """Return a run that can be held, its clients in this process, each behind its messages.

    Raises:
        RunStopped: If one does not introduce itself, or not as one of this run.
    """
    config, evaluation = plan.terms.config, plan.learning.evaluation
    folder = run_folder(config.storage.url, run_id)
    source = config.phase_two_of
    of_clients = folder if source is None else run_folder(config.storage.url, source)
    population = build_population(
        *(plan.terms, plan.learning, RunNames(run_id, source), of_clients),
        read_only=database.is_read_only,
    )

    def tell(stage: Stage) -> None:
        if stage in ROUND_STAGES:
            observer.client_answered()

    handlers = {name: client.handle for name, client in population.clients.items()}
    within = InProcessTransport(
        handlers=handlers, losses=simulated_losses(config), stage=population.stage, tell=tell
    )
    transport = surroundings.carry(within)
    enrolled = enrolment_of(config, plan.terms.protection.terms)
    run = Run(
        run_id=run_id,
        source_id=source,
        terms=plan.terms,
        roll=call_roll(transport, run_id, tuple(population.clients), enrolled),
        transport=transport,
        records=records_in(database),
        measure=partial(measure_round, evaluation),
        clock=surroundings.clock,
    )
    return Simulation(
        run=run,
        folder=folder,
        database=database,
        learning=plan.learning,
        population=population,
    )


def _run_id(config: RunConfig, now: datetime) -> str:
    """Return name, time and two random bytes, so that two runs of one second differ."""
    return f"{config.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"

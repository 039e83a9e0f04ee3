"""From a configuration to a run that has passed every check; nothing is written before.

Runs whose clients are all in this process are set up here too.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

import yaml

from methods import Method, MethodError, Registry
from methods.plugins import InProgram, Plugins
from platform.agreement import require_agreement, stored_tree
from platform.config import RunConfig, SeedConfig, Sources, StorageConfig, dump_config, parse_config
from platform.config.loading import validate_options
from platform.config.randomness import stream
from platform.config.rules import void_settings
from platform.config.run import origins_of
from platform.data.cache import cache_folder
from platform.data.loading import load_task_data
from platform.data.preparing import (
    Encoders,
    cached_encoders,
    frozen_model,
    plain_encoders,
    prepared_batch,
)
from platform.data.shapes import Stream
from platform.disk.files import require_free, write_text
from platform.disk.log_files import config_digest
from platform.disk.opening import (
    closed_on_error,
    open_existing,
    open_storage,
    records_in,
    run_folder,
    transaction,
)
from platform.errors import ConfigError, UnknownRun
from platform.experiment import resuming
from platform.experiment.dealing import Learning, deal_examples, public_examples
from platform.experiment.environment import (
    environment,
    resolve_device,
    use_threads,
    with_absolute_paths,
)
from platform.experiment.evaluation import measure_round
from platform.experiment.method_building import (
    method_on,
    require_classes,
    require_same_code,
    task_of,
    void_options,
)
from platform.experiment.simulation import Simulation, build_population, draw_key, read_canaries
from platform.parties.client import work_side_by_side
from platform.parties.identities import enrolment_of, fingerprint_of
from platform.parties.profile import RunNames
from platform.protection.building import (
    amplifying_cohorts,
    pool_rules_of,
    protect_run,
    void_pool,
    weighing,
)
from platform.protection.charging import Limits
from platform.rounds.asking import call_roll, newest_attempt
from platform.rounds.attempts import simulated_losses
from platform.rounds.audit_trail import AuditTrail, parsed_detail
from platform.rounds.observing import Observer
from platform.rounds.run import Run, RunTerms
from platform.wire.messages import ROUND_STAGES, Stage
from platform.wire.transport import InProcessTransport, Transport
from privacy.auditing import Canaries
from storage import Database, NotFound


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The parts that a run takes from outside its configuration; tests give their own.

    Attributes:
        sources: Packaged configurations and method presets.
        now: The time, for records.
        clock: Seconds, for durations.
        carry: Makes the run's transport from the transport within this process.
        images: The stream of rendered images; a dry run has another than a federation.
    """

    registry: Registry = field(default_factory=Registry)
    sources: Sources = field(default_factory=Sources)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.perf_counter
    carry: Callable[[InProcessTransport], Transport] = lambda within: within
    images: Stream = Stream.FEDERATION

    @classmethod
    def with_plugins(
        cls, folder: Path | None, *, objects: tuple[InProgram, ...] = (), as_published: bool = False
    ) -> Self:
        """Return the usual surroundings with the user's plug-ins, in a folder and of the program.

        Configurations are read `as_published` with the settings of published runs.
        """
        sources = Sources.of(Plugins(folder, objects=objects), as_published=as_published)
        return cls(registry=sources.registry, sources=sources)


@dataclass(frozen=True)
class RunPlan:
    """A run that has passed every check, before anything is written."""

    terms: RunTerms
    learning: Learning


def plan_run(
    config: RunConfig,
    observer: Observer,
    surroundings: Surroundings,
    first: resuming.FirstRun | None = None,
) -> RunPlan:
    """Build and check everything that a run needs; only encoded images are written, to the cache.

    `first` is the run whose second phase this is, None if it begins anew.
    """
    device = resolve_device(config.device)
    use_threads(config.threads)
    data = load_task_data(config, surroundings.images)
    observer.recognised(data.dataset.recognised)
    observer.warned((*config.remarks, *void_settings(config)))
    backbone = frozen_model(config.task.model, device, config.plugins)

    def encoders_of(method: Method) -> Encoders:
        # This makes the folder, which a refused configuration must not leave behind.
        folder = cache_folder(config)
        return cached_encoders(backbone, folder, observer.preparing, method.pixel_size)

    task = task_of(config, data, backbone, device)
    public = partial(public_examples, config, data, encoders_of)
    method = method_on(data, surroundings.registry, config, task, public=public)
    options = void_options(config, validate_options(surroundings.registry, config.method))
    observer.warned((*options, *void_pool(config, method)))
    # Encoding images can take hours, so refusals come before it.
    if first is not None:
        resuming.require_fitting_pool(first.database, config, method)
    terms = plan_terms(config, method, releasing=None if first is None else first.config)
    encoders, plain = encoders_of(method), plain_encoders(backbone, method.pixel_size)
    wanted = config.evaluation.measured_clients
    measuring = None if wanted is None else (wanted, stream(config.seed, "measured clients"))
    try:
        train, evaluation = deal_examples(
            data, method, encoders, config.evaluation.protocol, measuring=measuring
        )
    except MethodError as error:
        # A model without tokens, or examples that the method cannot prepare.
        raise ConfigError(str(error)) from error
    require_classes(method, evaluation)
    learning = Learning(
        method=method,
        classes=data.classes,
        train=train,
        evaluation=evaluation,
        device=device,
        batch_of=lambda examples: prepared_batch(method, examples, plain),
    )
    most = max(examples.num_examples for examples in train.values())
    protection = weighing(terms.protection, config, most)
    return RunPlan(replace(terms, protection=protection), learning)


def plan_terms(
    config: RunConfig, method: Method, *, releasing: RunConfig | None = None
) -> RunTerms:
    """Return the terms of a configuration and its method; every party computes the same.

    `releasing` is the configuration of another run whose releases these are, None for this run.
    """
    # Noise was calibrated for the configuration of the run that released.
    protection, noise_multiplier = protect_run(releasing or config, method)
    section = config.privacy
    budget = Limits(
        delta=section.target_delta,
        target_epsilon=section.target_epsilon,
        accountant=section.accountant,
        noise_multiplier=noise_multiplier,
        lifetime_budget=section.lifetime_budget,
        mechanisms=config.mechanisms,
    )
    return RunTerms(
        config=config,
        method=method,
        protection=protection,
        budget=budget,
        pool_rules=pool_rules_of(config, method),
        cohort_kind=amplifying_cohorts(config, method),
    )


def new_run_id(config: RunConfig, now: datetime) -> str:
    """Return name, time and two random bytes, so that two runs of one second differ."""
    return f"{config.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def record_run(
    database: Database,
    run_id: str,
    terms: RunTerms,
    registry: Registry,
    *,
    classes: Sequence[str],
    device: str,
    canaries: str | None = None,
) -> Path:
    """Record that a run exists, with everything that is fixed in advance, and return its folder.

    `canaries` is a commitment to the key of an audit's canaries, None without an audit.
    """
    config = terms.config
    text, facts = dump_config(config), environment(device)
    digest = config_digest(text)
    # Written first, so that every run in the database has its configuration beside it.
    folder = run_folder(config.storage.url, run_id)
    origins = origins_of(config.model_dump(mode="json"), registry.plugins)
    code = origins.pop("method", None)
    effective = {
        "noise_multiplier": terms.budget.noise_multiplier,
        "seeds": {purpose: config.seed_of(purpose) for purpose in SeedConfig.model_fields},
        "classes": list(classes),
        "environment": facts,
        **({} if code is None else {"method_from": code}),
        **({"plugins_from": origins} if origins else {}),
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
        known = enrolment_of(config, terms.protection.terms)
        enrolled, source = fingerprint_of(known), config.phase_two_of
        trail.run_created(
            digest, enrolled, source, method=code, plugins=origins or None, canaries=canaries
        )
    return folder


def create_run(config: RunConfig, observer: Observer, surroundings: Surroundings) -> Simulation:
    """Set up a new run, or refuse its configuration before anything is written."""
    config = with_absolute_paths(config)
    plan = _plan(config, observer, surroundings)
    run_id = new_run_id(config, surroundings.now())
    folder = run_folder(config.storage.url, run_id)
    with closed_on_error(open_storage(config.storage.url)) as database:
        learning, registry = plan.learning, surroundings.registry
        committed = draw_key(config, folder)
        record_run(
            *(database, run_id, plan.terms, registry),
            classes=learning.classes,
            device=learning.device,
            canaries=committed,
        )
        observer.run_created(run_id)
        canaries = read_canaries(plan.terms, folder, run_id, committed)
        return _simulate(
            plan, run_id, database, canaries, observer=observer, surroundings=surroundings
        )


def _plan(config: RunConfig, observer: Observer, surroundings: Surroundings) -> RunPlan:
    """Return a run's plan; the plan of a second phase rests on the records of its first run."""
    source, url = config.phase_two_of, config.storage.url
    if source is None:
        return plan_run(config, observer, surroundings)
    database = open_existing(url, read_only=False)
    try:
        first = resuming.FirstRun(stored_config(database, source, surroundings), database)
        folder, registry = run_folder(url, source), surroundings.registry
        resuming.require_second_phase(config, first, folder, registry)
        agreed = require_agreement(database, source, surroundings.sources.mechanisms)
        resuming.require_start(agreed, config, registry)
        plan = plan_run(config, observer, surroundings, first)
        resuming.require_same_classes(folder, source, plan.learning.classes)
        resuming.require_first_releases(database, source, plan.terms.protection)
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
    """Set up a run that exists; with `read_only` no database is written to.

    A run that goes on builds on all rows of its database, so all rows are checked then.

    Raises:
        UnknownRun: If no run has this name.
        ConfigError: If its configuration cannot be run here.
        RunStopped: If its records do not agree, a client that was charged is not here any more, or
            the run would go on with other parameters than it was charged for.
    """
    database = open_existing(url) if read_only else open_storage(url)
    with closed_on_error(database):
        if not read_only:
            database.verify_integrity()
        config = stored_config(database, run_id, surroundings)
        agreed = require_agreement(database, run_id, surroundings.sources.mechanisms)
        started = resuming.require_start(agreed, config, surroundings.registry)
        # The clients' stores lie beside the database, which may have moved since the run started.
        config = config.model_copy(update={"storage": StorageConfig(url=url)})
        plan = _plan(config, observer, surroundings)
        if not database.is_read_only:
            require_free(run_folder(url, run_id))
            known = enrolment_of(config, plan.terms.protection.terms)
            resuming.require_same_enrolment(run_id, started.get("enrolment"), fingerprint_of(known))
        observer.run_created(run_id)
        committed = started.get("canaries")
        canaries = read_canaries(plan.terms, run_folder(url, run_id), run_id, committed)
        simulation = _simulate(
            plan, run_id, database, canaries, observer=observer, surroundings=surroundings
        )
        resuming.require_known_clients(simulation.run, f"in {simulation.folder / 'clients'} ")
        resuming.require_same_releases(
            database, simulation.run.source, simulation.run.terms.protection
        )
        return simulation


def stored_config(database: Database, run_id: str, surroundings: Surroundings) -> RunConfig:
    """Return the configuration with which a run started."""
    try:
        with database.unit_of_work(read_only=True) as uow:
            run = uow.runs.get(run_id)
            begun = [entry for entry in uow.audit.beginnings() if entry.run == run_id]
    except NotFound as error:
        raise UnknownRun(str(error)) from error
    for entry in begun:
        # A configuration runs code of its mechanism when it is read, so that is compared before.
        require_same_code(run_id, stored_tree(run), parsed_detail(entry), surroundings.registry)
    return parse_config(stored_tree(run), sources=surroundings.sources)


def _simulate(
    plan: RunPlan,
    run_id: str,
    database: Database,
    canaries: Canaries | None,
    *,
    observer: Observer,
    surroundings: Surroundings,
) -> Simulation:
    """Return a run that is ready, with clients in this process that answer messages only."""
    config, evaluation = plan.terms.config, plan.learning.evaluation
    folder = run_folder(config.storage.url, run_id)
    source = config.phase_two_of
    of_clients = folder if source is None else run_folder(config.storage.url, source)
    population = build_population(
        *(plan.terms, plan.learning, RunNames(run_id, source), of_clients),
        canaries=canaries,
        read_only=database.is_read_only,
    )
    everybody = population.everybody

    def tell(stage: Stage) -> None:
        if stage in ROUND_STAGES:
            observer.client_answered()

    handlers = {name: client.handle for name, client in everybody.items()}
    within = InProcessTransport(
        handlers=handlers,
        losses=simulated_losses(config),
        stage=population.stage,
        tell=tell,
        ahead=partial(work_side_by_side, everybody),
    )
    transport = surroundings.carry(within)
    enrolled = enrolment_of(config, plan.terms.protection.terms)
    records, names = records_in(database), tuple(everybody)
    begun = newest_attempt(records, run_id)
    run = Run(
        run_id=run_id,
        source_id=source,
        terms=plan.terms,
        roll=call_roll(transport, run_id, names, enrolled, begun=begun),
        transport=transport,
        records=records,
        measure=partial(measure_round, evaluation),
        clock=surroundings.clock,
    )
    return Simulation(
        run=run,
        folder=folder,
        database=database,
        learning=plan.learning,
        population=population,
        canaries=canaries,
    )

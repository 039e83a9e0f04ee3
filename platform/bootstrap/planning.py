"""From a configuration to a run that has passed every check; nothing is written before."""

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
from platform.config import (
    RunConfig,
    SeedConfig,
    Sources,
    dump_config,
)
from platform.config.rules import void_settings
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
from platform.disk.files import write_text
from platform.disk.log_files import config_digest
from platform.disk.opening import run_folder, transaction
from platform.errors import ConfigError
from platform.experiment.dealing import Learning, deal_examples, measuring_of, public_examples
from platform.experiment.environment import environment, resolve_device, use_threads
from platform.experiment.method_building import (
    method_on,
    origin_document,
    require_classes,
    task_of,
    validate_options,
    void_options,
)
from platform.experiment.resuming import (
    FirstRun,
    require_fitting_pool,
)
from platform.parties.identities import enrolment_of, fingerprint_of
from platform.protection.building import (
    amplifying_cohorts,
    pool_rules_of,
    protect_run,
    void_pool,
    weighing,
)
from platform.protection.charging import Limits
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.observing import Observer
from platform.rounds.run import RunTerms
from platform.wire.transport import InProcessTransport, Transport
from storage import Database


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The parts that a run takes from outside its configuration; tests give their own.

    Attributes:
        registry: The methods.
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
    def with_methods(cls, folder: Path | None, *, as_published: bool = False) -> Self:
        """Return the usual surroundings with the user's own methods.

        Args:
            folder: The folder of these methods, None without one.
            as_published: Whether configurations are read with the settings of published runs.
        """
        registry = Registry(folder=folder)
        sources = Sources(registry=registry, as_published=as_published)
        return cls(registry=registry, sources=sources)


@dataclass(frozen=True)
class RunPlan:
    """A run that has passed every check, before anything is written.

    Attributes:
        terms: The terms of its rounds.
        learning: Its clients' method, examples and device.
    """

    terms: RunTerms
    learning: Learning


def plan_run(
    config: RunConfig,
    observer: Observer,
    surroundings: Surroundings,
    first: FirstRun | None = None,
) -> RunPlan:
    """Build and check everything that a run needs; only encoded images are written, to the cache.

    Args:
        config: The run's configuration.
        observer: Sees the progress of preparing.
        surroundings: The parts that a run takes from outside.
        first: The run whose second phase this is, None if it begins anew.

    Raises:
        ConfigError: If the configuration cannot be run.
    """
    device = resolve_device(config.device)
    use_threads(config.threads)
    data = load_task_data(config, surroundings.images)
    observer.recognised(data.dataset.recognised)
    observer.warned((*config.remarks, *void_settings(config)))
    backbone = frozen_model(config.task.model, device)

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
        require_fitting_pool(first.database, config, method)
    terms = plan_terms(config, method, releasing=None if first is None else first.config)
    encoders, plain = encoders_of(method), plain_encoders(backbone, method.pixel_size)
    try:
        train, evaluation = deal_examples(
            data, method, encoders, config.evaluation.protocol, measuring=measuring_of(config)
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

    Args:
        config: The run's configuration.
        method: Its method.
        releasing: The configuration of another run whose releases these are; None for this run.

    Raises:
        ConfigError: If the run cannot be protected as asked.
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
    """Record that a run exists, with everything that is fixed in advance.

    Args:
        database: The coordinator's.
        run_id: The run.
        terms: The terms of its rounds.
        registry: The methods, one of which is the run's.
        classes: The names of the classes.
        device: Torch's device.
        canaries: A commitment to the key of an audit's canaries, None without an audit.

    Returns:
        The run's folder.
    """
    config = terms.config
    text, facts = dump_config(config), environment(device)
    digest = config_digest(text)
    # Written first, so that every run in the database has its configuration beside it.
    folder = run_folder(config.storage.url, run_id)
    code = origin_document(registry, config.method.name)
    effective = {
        "noise_multiplier": terms.budget.noise_multiplier,
        "seeds": {purpose: config.seed_of(purpose) for purpose in SeedConfig.model_fields},
        "classes": list(classes),
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
        known = enrolment_of(config, terms.protection.terms)
        enrolled, source = fingerprint_of(known), config.phase_two_of
        trail.run_created(digest, enrolled, source, method=code, canaries=canaries)
    return folder

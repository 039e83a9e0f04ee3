"""From a configuration to a run that has passed every check, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from methods import Method, MethodError
from platform.bootstrap.surroundings import Surroundings
from platform.config import (
    RunConfig,
)
from platform.config.rules import void_settings
from platform.data.cache import cache_folder
from platform.data.loading import TaskData, load_task_data
from platform.data.preparing import (
    Encoders,
    cached_encoders,
    frozen_model,
    plain_encoders,
    prepared_batch,
)
from platform.errors import ConfigError
from platform.experiment.dealing import Learning, deal_examples, measuring_of, public_examples
from platform.experiment.environment import resolve_device, use_threads
from platform.experiment.method_building import (
    method_on,
    require_classes,
    task_of,
    validate_options,
)
from platform.experiment.second_phase import (
    FirstRun,
    require_fitting_pool,
)
from platform.experiment.void_options import void_options
from platform.protection.building import (
    amplifying_cohorts,
    pool_rules_of,
    protect_run,
    void_pool,
    weighing,
)
from platform.protection.charging import Budget
from platform.rounds.observing import Observer
from platform.rounds.run import RunTerms

if TYPE_CHECKING:
    from methods.clip.adapter import Backbone


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
    observer.recognised(data.dataset.recognised)
    observer.warned((*config.remarks, *void_settings(config)))
    backbone = frozen_model(config.task.model, device)

    def encoders_of(method: Method) -> Encoders:
        # Only now, as it makes the folder: what is refused leaves none.
        folder = cache_folder(config)
        return cached_encoders(backbone, folder, observer.preparing, method.pixel_size)

    task = task_of(config, data, backbone, device)
    public = partial(public_examples, config, data, encoders_of)
    method = method_on(data, surroundings.registry, config, task, public=public)
    options = void_options(config, validate_options(surroundings.registry, config.method))
    observer.warned((*options, *void_pool(config, method)))
    # Before images are encoded, which can take hours: what is refused is refused at once.
    if first is not None:
        require_fitting_pool(first.database, config, method)
    terms = plan_terms(config, method, releasing=None if first is None else first.config)
    learning = _learning(config, data, method, (backbone, device, encoders_of(method)))
    most = max(examples.num_examples for examples in learning.train.values())
    protection = weighing(terms.protection, config, most)
    return RunPlan(replace(terms, protection=protection), learning)


def plan_terms(
    config: RunConfig, method: Method, *, releasing: RunConfig | None = None
) -> RunTerms:
    """Return what follows from a configuration and its method, alike for all who compute it.

    Args:
        config: The run's.
        method: Its method.
        releasing: The configuration of the run whose releases these are, where it is another.

    Raises:
        ConfigError: If the run cannot be protected as asked.
    """
    # What was released follows from the configuration of the run that released it.
    calibrated, section = protect_run(releasing or config, method), config.privacy
    budget = Budget(
        delta=section.target_delta,
        target_epsilon=section.target_epsilon,
        accountant=section.accountant,
        noise_multiplier=calibrated.noise_multiplier,
        lifetime_budget=section.lifetime_budget,
        mechanisms=config.mechanisms,
    )
    return RunTerms(
        config=config,
        method=method,
        protection=calibrated.protection,
        budget=budget,
        pool_rules=pool_rules_of(config, method),
        cohort_kind=amplifying_cohorts(config, method),
    )


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

"""From a configuration to a run's `Protection`: mechanisms built, calibrated, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from methods import Method, PoolPolicy
from platform.config import RunConfig
from platform.errors import ConfigError
from platform.protection.fitting import extras_of, require_fitting
from platform.protection.secure_terms import secure_terms
from platform.protection.uploads import Protection
from platform.wire.layout import LARGEST_WEIGHT, build_layout
from privacy import (
    CalibrationError,
    CentralNoise,
    ClientMechanism,
    CohortKind,
    CohortSampling,
    DistributedNoise,
    DpSgd,
    IntegerUploadNoise,
    NoProtection,
    Release,
    UnsupportedEvent,
    UploadNoise,
    calibrate,
    calibrate_noise_multiplier,
    default_scale,
    epsilons,
    smallest_multiplier,
)

DEFAULT_VALUE_BOUND = 8.0
SMALLEST_MULTIPLIER = 1e-3
"""Where the search for the least noise on the reals begins."""


@dataclass(frozen=True)
class Calibrated:
    """A run's protection and the noise that it was built with.

    Attributes:
        protection: How uploads are protected.
        noise_multiplier: Configured or calibrated; None under `none`.
    """

    protection: Protection
    noise_multiplier: float | None


def protect_run(config: RunConfig, method: Method) -> Calibrated:
    """Build a run's protection, with the least noise that meets its target.

    Raises:
        ConfigError: If the combination is refused, or no noise reaches the target.
    """
    require_fitting(config, method)
    try:
        multiplier = _noise_multiplier(config, method)
    except (CalibrationError, UnsupportedEvent) as error:
        raise ConfigError(f"privacy.target_epsilon: {error}") from error
    try:
        protection = _with_collection(config, method, multiplier)
    except CalibrationError as error:
        raise ConfigError(f"privacy.noise_multiplier: {error}") from error
    _require_priceable(config, method, protection)
    return Calibrated(protection, multiplier)


def weighing(protection: Protection, config: RunConfig, most: int) -> Protection:
    """Return the protection of a simulation whose largest client has this many examples.

    Without a configured largest weight it is that number: a larger one costs every coordinate of
    every masked vector its bits.

    Raises:
        ConfigError: If the configured largest weight is below it.
    """
    configured = config.secure_aggregation.largest_weight
    if not protection.layout.weighted:
        return protection
    if configured is None:
        layout = dataclasses.replace(protection.layout, largest_weight=most)
        return dataclasses.replace(protection, layout=layout)
    if configured < most:
        raise ConfigError(
            f"secure_aggregation.largest_weight: {configured} is less than the {most} examples of "
            f"a client; valid: {most} to {LARGEST_WEIGHT}"
        )
    return protection


def amplifying_cohorts(config: RunConfig, method: Method) -> CohortKind | None:
    """Return how cohorts are drawn where that may amplify against the observer.

    None where it may not.

    With a pool it may not: an entry shows others that its owner was drawn. Cohorts of fixed size
    amplify by a theorem on replaced clients, round by round; the rounds compose only where what
    others upload does not depend on earlier draws, hence for methods whose clients keep nothing.
    """
    if not config.has_secret_cohorts or method.pool_policy() is not None:
        return None
    if config.cohort.sampling == "poisson":
        return "poisson"
    if config.relation != "replace_one" or method.has_personal_state:
        return None
    return "fixed_size"


def _require_priceable(config: RunConfig, method: Method, protection: Protection) -> None:
    """Price one client's first round, lest a run find out after it that nobody can."""
    cohort, kind = None, amplifying_cohorts(config, method)
    if kind is not None:
        size, population = config.cohort_size, config.task.clients
        cohort = CohortSampling(kind=kind, size=size, population=population, is_drawn=True)
    key: dict[str, Any] = {"run_id": "planned", "attempt": 1, "pseudonym": "planned"}
    planned = protection.releases(round_number=1, cohort=cohort, **key)
    if protection.collection is not None:
        planned += protection.collection.releases(round_number=2, **key)
    section = config.privacy
    try:
        epsilons(planned, section.target_delta, section.accountant)
    except UnsupportedEvent as error:
        raise ConfigError(
            f"privacy.accountant: {section.accountant!r} cannot price {section.mechanism} as "
            f"configured: {error}; valid: auto"
        ) from error


def _noise_multiplier(config: RunConfig, method: Method) -> float | None:
    section = config.privacy
    if section.mechanism == "none" or section.target_epsilon is None:
        return section.noise_multiplier
    # The grid allows less noise the more of it there is to begin with; any that it allows will do.
    least = _smallest(config, method)
    trial = _with_collection(config, method, max(1.0, 2.0 * least))
    if not trial.run_channels:
        # Nothing is released, so any noise would do; one is as good as another.
        return 1.0
    training = trial.training
    if training is None and not _is_float_upload(config):
        return calibrate(
            _planned(config, method),
            section.target_epsilon,
            section.target_delta,
            smallest=least,
            accountant=section.accountant,
        )
    once = () if trial.collection is None else trial.collection.channels
    return calibrate_noise_multiplier(
        section.target_epsilon,
        section.target_delta,
        # Each release has the same multiplier, around whatever norm.
        releases_per_round=1,
        rounds=_planned_rounds(config) * len(trial.channels) + len(once),
        relation=config.relation,
        accountant=section.accountant,
        sampling_probability=1.0 if training is None else training.sampling_probability,
        steps=1 if training is None else training.steps,
    )


def _planned_rounds(config: RunConfig) -> int:
    return config.rounds + config.privacy.spare_attempts


def _is_float_upload(config: RunConfig) -> bool:
    return config.privacy.mechanism == "upload_noise" and config.noise_distribution == "gaussian"


def _planned(config: RunConfig, method: Method) -> Callable[[float], list[Release]]:
    key: dict[str, Any] = {"run_id": "planned", "attempt": 0, "pseudonym": "planned"}
    rounds = _planned_rounds(config)

    def planned(noise_multiplier: float) -> list[Release]:
        protection = _with_collection(config, method, noise_multiplier)
        rows = [
            dataclasses.replace(row, count=rounds)
            for row in protection.releases(round_number=0, **key)
        ]
        if protection.collection is None:
            return rows
        return [*rows, *protection.collection.releases(round_number=1, **key)]

    return planned


def _smallest(config: RunConfig, method: Method) -> float:
    """Return where the search begins: the least noise that every grid of the run allows.

    Norms are of 65,536 to 131,072 steps, and what is appended may move a norm to either end.
    """
    norm = config.privacy.clipping_norm
    if norm is None or config.noise_distribution == "gaussian":
        return SMALLEST_MULTIPLIER
    joint = extras_of(config).joint_norm(norm)
    least = smallest_multiplier(joint * default_scale(joint), _honest_shares(config))
    bare = _entry_norm(config)
    if bare is None or not _has_bare_entries(config, method):
        return least
    return max(least, smallest_multiplier(bare * default_scale(bare), 1))


def _honest_shares(config: RunConfig) -> int:
    if config.privacy.mechanism != "distributed_noise":
        return 1
    return _smallest_sum(config) - config.secure_aggregation.corrupt


def _smallest_sum(config: RunConfig) -> int:
    """Return fewest clients of which a sum may be opened: what shared-out noise counts on."""
    return secure_terms(config).smallest_sum


def _with_collection(config: RunConfig, method: Method, multiplier: float | None) -> Protection:
    """Return how a run's uploads are protected.

    And its pool where that is made once, after the rounds.
    """
    policy, protection = method.pool_policy(), _protection(config, method, multiplier)
    if policy is None or not policy.fixed:
        return protection
    collection = _collection(config, policy, multiplier)
    return dataclasses.replace(protection, collection=collection, collects_at=config.rounds + 1)


def _collection(config: RunConfig, policy: PoolPolicy, multiplier: float | None) -> Protection:
    """Return how the entries of a pool that is made once are protected.

    Each by its owner, none summed.

    Under `dp_sgd` an entry is made of noised steps. Those of the rounds are charged already.
    """
    mechanism = _pool_mechanism(config, multiplier)
    return Protection(
        mechanism=_mechanism(config, multiplier) if mechanism is None else mechanism,
        layout=build_layout({}, config.privacy.mechanism),
        pool_spec=policy.spec,
        pool_noise="independent",
        bits=config.secure_aggregation.bits,
        masked=False,
        clients=config.task.clients,
        training=_training(config, multiplier),
        charged=config.privacy.mechanism != "dp_sgd" or policy.trains,
    )


def _protection(config: RunConfig, method: Method, multiplier: float | None) -> Protection:
    section, policy = config.privacy, method.pool_policy()
    if policy is not None and policy.fixed:
        # No entry leaves anybody before the collection.
        policy = None
    extras = extras_of(config)
    masked = config.secure_aggregation.enabled and bool(method.shared_spec())
    layout = build_layout(
        method.shared_spec(),
        section.mechanism,
        extras=extras.names,
        largest_weight=config.secure_aggregation.largest_weight,
    )
    pool_mechanism = None
    if policy is not None and _has_bare_entries(config, method):
        pool_mechanism = _pool_mechanism(config, multiplier)
    return Protection(
        mechanism=_mechanism(config, multiplier),
        layout=layout,
        pool_spec=None if policy is None else policy.spec,
        pool_noise=config.pool_noise,
        bits=config.secure_aggregation.bits,
        masked=masked,
        clients=config.cohort_size,
        terms=secure_terms(config) if masked else None,
        pool_mechanism=pool_mechanism,
        training=_training(config, multiplier),
        adaptive=extras.adaptive,
        clipping_norm=None if extras.adaptive is None else section.clipping_norm,
        metric=extras.metric,
        update_norm=extras.clipping_norm,
        hides_size=_hides_size(config, method),
    )


def _hides_size(config: RunConfig, method: Method) -> bool:
    """Return whether secret cohorts or the relation count on the number of clients in a sum.

    Elsewhere the report states it. With one more or one less of them it is not noised.
    """
    if config.privacy.mechanism != "central_noise":
        return False
    return amplifying_cohorts(config, method) is not None or config.relation != "replace_one"


def _has_bare_entries(config: RunConfig, method: Method) -> bool:
    """Return whether pool entries have a mechanism of their own, around C itself."""
    policy = method.pool_policy()
    if policy is None or config.privacy.mechanism in ("none", "dp_sgd"):
        return False
    apart = config.privacy.mechanism in ("distributed_noise", "central_noise")
    # An entry brings no validation accuracy, so noise for its own norm will do.
    own_norm = config.pool.clipping_norm is not None or extras_of(config).metric is not None
    return policy.fixed or apart or own_norm


def _training(config: RunConfig, multiplier: float | None) -> DpSgd | None:
    section, steps = config.privacy, config.training.local_steps
    norm, probability = section.per_sample_clipping_norm, section.sampling_probability
    if section.mechanism != "dp_sgd" or multiplier is None:
        return None
    if norm is None or probability is None or steps is None:
        # The configuration has refused that already.
        return None
    return DpSgd(
        noise_multiplier=multiplier,
        clipping_norm=norm,
        sampling_probability=probability,
        steps=steps,
        expected_batch_size=float(config.training.batch_size),
        relation=config.relation,
    )


def _mechanism(config: RunConfig, multiplier: float | None) -> ClientMechanism:
    section = config.privacy
    norm, bound = section.clipping_norm, config.secure_aggregation.value_bound
    if norm is None or multiplier is None:
        cuts = section.mechanism == "dp_sgd"
        return NoProtection(DEFAULT_VALUE_BOUND if bound is None else bound, config.relation, cuts)
    norm = extras_of(config).joint_norm(norm)
    if section.mechanism == "upload_noise":
        return _on_the_client(config, norm, multiplier)
    scale = default_scale(norm)
    if section.mechanism == "central_noise":
        return CentralNoise(
            clipping_norm=norm,
            noise_multiplier=multiplier,
            scale=scale,
            relation=config.relation,
        )
    return DistributedNoise(
        clipping_norm=norm,
        noise_multiplier=multiplier,
        minimum_survivors=_smallest_sum(config),
        corrupt=config.secure_aggregation.corrupt,
        scale=scale,
        kind="skellam" if config.noise_distribution == "skellam" else "discrete_gaussian",
        relation=config.relation,
    )


def _pool_mechanism(config: RunConfig, multiplier: float | None) -> ClientMechanism | None:
    norm = _entry_norm(config)
    if norm is None or multiplier is None:
        return None
    return _on_the_client(config, norm, multiplier)


def _entry_norm(config: RunConfig) -> float | None:
    """Return C of a pool entry that is a release of its own."""
    own = config.pool.clipping_norm
    return config.privacy.clipping_norm if own is None else own


def _on_the_client(config: RunConfig, norm: float, multiplier: float) -> ClientMechanism:
    """Return all of the noise on one client: Gaussian, or on the grid wherever the run's is."""
    if config.noise_distribution == "gaussian":
        return UploadNoise(norm, multiplier, config.relation)
    return IntegerUploadNoise(
        clipping_norm=norm,
        noise_multiplier=multiplier,
        scale=default_scale(norm),
        relation=config.relation,
    )

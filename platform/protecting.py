"""From a configuration to a run's `Protection`: mechanisms built, calibrated, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from methods import Method
from platform.attempt import RoundPlan
from platform.config import RunConfig
from platform.errors import ConfigError
from platform.extras import Extras
from platform.layout import build_layout
from platform.protection import Protection
from platform.randomness import stream
from platform.secure_terms import secure_terms
from privacy import (
    AdaptiveClipping,
    CalibrationError,
    CentralNoise,
    ClientMechanism,
    CohortKind,
    CohortSampling,
    DistributedNoise,
    DpSgd,
    IntegerUploadNoise,
    NoisedMetric,
    NoiseSource,
    NoProtection,
    Release,
    SeededNoise,
    SystemNoise,
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
    """Builds a run's protection, with the least noise that meets its target.

    Raises:
        ConfigError: If the combination is refused, or no noise reaches the target.
    """
    _require_fitting(config, method)
    try:
        multiplier = _noise_multiplier(config, method)
    except (CalibrationError, UnsupportedEvent) as error:
        raise ConfigError(f"privacy.target_epsilon: {error}") from error
    try:
        protection = _protection(config, method, multiplier)
    except CalibrationError as error:
        raise ConfigError(f"privacy.noise_multiplier: {error}") from error
    _require_priceable(config, method, protection)
    return Calibrated(protection, multiplier)


def coordinator_noise(config: RunConfig, plan: RoundPlan) -> NoiseSource:
    """Where the coordinator's own noise of an attempt comes from (`central_noise`)."""
    if config.privacy.noise_source == "os":
        return SystemNoise()
    return SeededNoise(stream(config.seed, "central noise", plan.round_number, plan.attempt))


def amplifying_cohorts(config: RunConfig, method: Method) -> CohortKind | None:
    """How cohorts are drawn where that may amplify against the observer; None where it may not.

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


def _require_fitting(config: RunConfig, method: Method) -> None:
    extras, spec = _extras(config), method.shared_spec()
    if extras.adaptive is not None and not spec:
        raise ConfigError(
            f"privacy.adaptive_clipping: {config.method.name} shares nothing whose norm could be "
            "followed; leave it out"
        )
    if extras.metric is not None and not spec:
        raise ConfigError(
            f"evaluation.release: {config.method.name} uploads nothing that a noised validation "
            "accuracy could come with; valid: none"
        )
    if method.pool_policy() is not None and config.pool_noise == "same":
        _require_bare_entries(extras)
    if config.privacy.personal == "decoupled" and not method.decouples:
        raise ConfigError(
            f"privacy.personal: {config.method.name} has no personal part that can be trained "
            "after the last release; valid: joint"
        )


def _require_bare_entries(extras: Extras) -> None:
    """An entry that is the upload itself would bring what was appended to it into the pool."""
    if extras.adaptive is not None:
        raise ConfigError(
            "privacy.adaptive_clipping: a pool entry that is the upload itself would carry the "
            "clip flag; valid with pool.noise: independent"
        )
    if extras.metric is not None:
        raise ConfigError(
            "evaluation.release: a pool entry that is the upload itself would carry its owner's "
            "noised validation accuracy; valid with pool.noise: independent"
        )


def _require_priceable(config: RunConfig, method: Method, protection: Protection) -> None:
    """Prices one client's first round, lest a run find out after it that nobody can."""
    cohort, kind = None, amplifying_cohorts(config, method)
    if kind is not None:
        size, population = config.cohort_size, config.task.clients
        cohort = CohortSampling(kind=kind, size=size, population=population, is_drawn=True)
    planned = protection.releases(
        run_id="planned", round_number=1, attempt=1, pseudonym="planned", cohort=cohort
    )
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
    rounds = config.rounds + section.spare_attempts
    # The grid allows less noise the more of it there is to begin with; any that it allows will do.
    least = _smallest(config, method)
    trial = _protection(config, method, max(1.0, 2.0 * least))
    if not trial.channels:
        # Nothing is released, so any noise would do; one is as good as another.
        return 1.0
    training = trial.training
    if training is None and not _is_float_upload(config):
        return calibrate(
            _planned(config, method, rounds),
            section.target_epsilon,
            section.target_delta,
            smallest=least,
            accountant=section.accountant,
        )
    return calibrate_noise_multiplier(
        section.target_epsilon,
        section.target_delta,
        releases_per_round=len(trial.channels),
        rounds=rounds,
        relation=config.relation,
        accountant=section.accountant,
        sampling_probability=1.0 if training is None else training.sampling_probability,
        steps=1 if training is None else training.steps,
    )


def _is_float_upload(config: RunConfig) -> bool:
    return config.privacy.mechanism == "upload_noise" and config.noise_distribution == "gaussian"


def _planned(config: RunConfig, method: Method, rounds: int) -> Callable[[float], list[Release]]:
    def planned(noise_multiplier: float) -> list[Release]:
        rows = _protection(config, method, noise_multiplier).releases(
            run_id="planned", round_number=0, attempt=0, pseudonym="planned"
        )
        return [dataclasses.replace(row, count=rounds) for row in rows]

    return planned


def _smallest(config: RunConfig, method: Method) -> float:
    """Where the search begins: the least noise that every grid of the run allows.

    Norms are of 65,536 to 131,072 steps, and what is appended may move a norm to either end.
    """
    norm = config.privacy.clipping_norm
    if norm is None or config.noise_distribution == "gaussian":
        return SMALLEST_MULTIPLIER
    joint = _extras(config).joint_norm(norm)
    least = smallest_multiplier(joint * default_scale(joint), _honest_shares(config))
    if not _has_bare_entries(config, method):
        return least
    return max(least, smallest_multiplier(norm * default_scale(norm), 1))


def _honest_shares(config: RunConfig) -> int:
    if config.privacy.mechanism != "distributed_noise":
        return 1
    return _smallest_sum(config) - config.secure_aggregation.corrupt


def _smallest_sum(config: RunConfig) -> int:
    """Fewest clients of which a sum may be opened: what shared-out noise counts on."""
    return secure_terms(config).smallest_sum


def _protection(config: RunConfig, method: Method, multiplier: float | None) -> Protection:
    section, policy = config.privacy, method.pool_policy()
    extras = _extras(config)
    masked = config.secure_aggregation.enabled and bool(method.shared_spec())
    layout = build_layout(method.shared_spec(), section.mechanism, extras=extras.names)
    pool_mechanism = None
    if _has_bare_entries(config, method):
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
    """Whether the number of clients in a sum is what secret cohorts or the relation count on.

    Elsewhere the report states it. With one more or one less of them it is not noised.
    """
    if config.privacy.mechanism != "central_noise":
        return False
    return amplifying_cohorts(config, method) is not None or config.relation != "replace_one"


def _has_bare_entries(config: RunConfig, method: Method) -> bool:
    """Whether pool entries have a mechanism of their own, around C itself."""
    apart = config.privacy.mechanism in ("distributed_noise", "central_noise")
    # An entry brings no validation accuracy, so noise for its own norm will do.
    return method.pool_policy() is not None and (apart or _extras(config).metric is not None)


def _extras(config: RunConfig) -> Extras:
    section, evaluation = config.privacy.adaptive_clipping, config.evaluation
    adaptive = None if section is None else AdaptiveClipping(**section.model_dump())
    metric = None
    if evaluation.release == "noised":
        ratio = evaluation.metric_ratio
        metric = NoisedMetric() if ratio is None else NoisedMetric(ratio=ratio)
    extras = Extras(adaptive, metric)
    norm = config.privacy.clipping_norm if extras.names else None
    return dataclasses.replace(extras, clipping_norm=norm)


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
    norm = _extras(config).joint_norm(norm)
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
    norm = config.privacy.clipping_norm
    if norm is None or multiplier is None:
        return None
    return _on_the_client(config, norm, multiplier)


def _on_the_client(config: RunConfig, norm: float, multiplier: float) -> ClientMechanism:
    """All of the noise on one client: Gaussian, or on the grid wherever the run's is."""
    if config.noise_distribution == "gaussian":
        return UploadNoise(norm, multiplier, config.relation)
    return IntegerUploadNoise(
        clipping_norm=norm,
        noise_multiplier=multiplier,
        scale=default_scale(norm),
        relation=config.relation,
    )

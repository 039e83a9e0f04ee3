"""What a mechanism needs, and what it cannot be combined with: each refusal with its reason.

Each rule gives one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from platform.config.schema import RunSections

NOISE_KEYS = (
    "clipping_norm",
    "noise_multiplier",
    "target_epsilon",
    "sampling_probability",
    "noise_distribution",
    "adaptive_clipping",
    "lifetime_budget",
)
"""Keys of `privacy` that mean nothing without noise."""

DISTRIBUTIONS = {
    "upload_noise": ("gaussian", "discrete_gaussian"),
    "distributed_noise": ("discrete_gaussian", "skellam"),
    "central_noise": ("gaussian",),
    "dp_sgd": ("gaussian",),
}
"""Laws of noise that are built, and priced, under each mechanism."""


def privacy_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions within `privacy` and between it and other sections."""
    mechanism = config.privacy.mechanism
    yield from _release(config)
    yield from _selection(config)
    yield from _pool_norm(config)
    if mechanism == "none":
        yield from _without_noise(config)
        return
    if config.secure_aggregation.largest_weight is not None:
        yield (
            f"secure_aggregation.largest_weight: {config.secure_aggregation.largest_weight} has no "
            f"meaning under privacy.mechanism = {mechanism}, where all weigh alike; leave it out"
        )
    yield from _amount_of_noise(config)
    yield from _noise_distribution(config)
    yield from _pool(config)
    if mechanism == "dp_sgd":
        yield from _dp_sgd(config)
    else:
        yield from _client_unit(config)
    if mechanism == "distributed_noise":
        yield from _distributed_noise(config)
    yield from _cohort_sampling(config)


def _release(config: RunSections) -> Iterator[str]:
    section, mechanism = config.evaluation, config.privacy.mechanism
    if section.release == "none":
        if section.metric_ratio is not None:
            yield (
                f"evaluation.metric_ratio: {section.metric_ratio} has no meaning with "
                "evaluation.release = none; leave it out or set evaluation.release to noised"
            )
        return
    if mechanism == "none":
        yield (
            "evaluation.release: noised has no meaning under privacy.mechanism = none, which adds "
            "no noise; valid: none"
        )
    if mechanism == "dp_sgd":
        yield (
            "evaluation.release: noised is not available under dp_sgd, whose noise is in the "
            "training steps while a validation accuracy would carry none; valid: none"
        )
    if config.cohort.sampling == "poisson":
        yield (
            "evaluation.release: noised is not available with cohort.sampling = poisson, whose "
            "secret number of clients no mean can be taken over; valid: none, or cohort.sampling: "
            "fixed_size"
        )
    if not config.task.validation_share:
        yield (
            "evaluation.release: noised needs validation images, and task.validation_share is 0; "
            "valid: none, or a task.validation_share above 0"
        )


def _selection(config: RunSections) -> Iterator[str]:
    mechanism, section = config.privacy.mechanism, config.evaluation
    if section.selection == "last":
        return
    if mechanism != "none" and section.release == "none":
        valid = "last" if mechanism == "dp_sgd" else "last, or evaluation.release: noised"
        yield (
            "evaluation.selection: best_on_validation would choose the model by accuracies that "
            f"carry no noise, which privacy.mechanism = {mechanism} does not cover; valid: {valid}"
        )
    if not config.task.validation_share:
        yield (
            "evaluation.selection: best_on_validation needs validation images, and "
            "task.validation_share is 0; valid: last, or a task.validation_share above 0"
        )
    if section.release == "noised" and section.every >= config.rounds:
        yield (
            f"evaluation.every: {section.every} measures no round before the last of "
            f"{config.rounds}, and noised selection cannot choose the last; valid: below rounds"
        )


def _without_noise(config: RunSections) -> Iterator[str]:
    for name in NOISE_KEYS:
        value = getattr(config.privacy, name)
        if value is not None:
            yield (
                f"privacy.{name}: {value} has no meaning under privacy.mechanism = none; leave it "
                "out or choose a mechanism"
            )
    if config.cohort.sampling == "poisson":
        yield from _cohort_sampling(config)


def _amount_of_noise(config: RunSections) -> Iterator[str]:
    section = config.privacy
    if (section.noise_multiplier is None) == (section.target_epsilon is None):
        yield (
            "privacy.noise_multiplier: give exactly one of privacy.noise_multiplier and "
            f"privacy.target_epsilon under {section.mechanism}"
        )
    if section.personal == "decoupled" and section.mechanism != "dp_sgd":
        yield (
            f"privacy.personal: decoupled has no meaning under {section.mechanism}, which bounds "
            "the upload whatever it was trained from; valid: joint"
        )


def _noise_distribution(config: RunSections) -> Iterator[str]:
    valid = DISTRIBUTIONS[config.privacy.mechanism]
    if config.noise_distribution not in valid:
        yield (
            f"privacy.noise_distribution: {config.noise_distribution} is not available under "
            f"{config.privacy.mechanism}; valid: {', '.join(valid)}"
        )


def _pool(config: RunSections) -> Iterator[str]:
    mechanism, noise = config.privacy.mechanism, config.pool.noise
    if noise == "same" and mechanism in ("distributed_noise", "central_noise"):
        yield (
            f"pool.noise: 'same' under {mechanism} would put an entry into the pool that has not "
            "all of the noise; valid: independent"
        )
    if noise == "independent" and mechanism == "dp_sgd":
        yield (
            "pool.noise: 'independent' has no meaning under dp_sgd, whose entries are made of "
            "noised steps; valid: same"
        )


def _pool_norm(config: RunSections) -> Iterator[str]:
    mechanism, norm = config.privacy.mechanism, config.pool.clipping_norm
    if norm is not None and mechanism in ("none", "dp_sgd"):
        yield (
            f"pool.clipping_norm: {norm} has no meaning under privacy.mechanism = {mechanism}, "
            "which clips no pool entry; valid: null"
        )


def _client_unit(config: RunSections) -> Iterator[str]:
    section = config.privacy
    if section.clipping_norm is None:
        yield f"privacy.clipping_norm: is missing; {section.mechanism} needs a number above 0"
    if section.sampling_probability is not None:
        yield (
            "privacy.sampling_probability: is for the batches of dp_sgd; leave it out under "
            f"{section.mechanism}"
        )
    if config.secure_aggregation.value_bound is not None:
        yield (
            "secure_aggregation.value_bound: is derived from the clipping norm and the noise under "
            f"{section.mechanism}; leave it out"
        )


def _dp_sgd(config: RunSections) -> Iterator[str]:
    section = config.privacy
    if section.clipping_norm is not None:
        yield (
            f"privacy.clipping_norm: {section.clipping_norm} would clip uploads, which dp_sgd does "
            "not need; leave it out and set privacy.per_sample_clipping_norm"
        )
    if section.per_sample_clipping_norm is None:
        yield "privacy.per_sample_clipping_norm: is missing; dp_sgd needs a number above 0"
    if section.sampling_probability is None:
        yield (
            "privacy.sampling_probability: is missing; dp_sgd needs the same number above 0 and at "
            "most 1 for all clients, as batch size over number of examples would tell the latter"
        )
    if config.training.local_steps is None:
        yield (
            "training.local_epochs: would make the number of noised steps depend on the number of "
            "examples, which no noise covers; dp_sgd needs training.local_steps"
        )
    if section.adaptive_clipping is not None:
        yield (
            "privacy.adaptive_clipping: follows the norms of uploads, which dp_sgd does not clip; "
            "leave it out"
        )


def _distributed_noise(config: RunSections) -> Iterator[str]:
    if not config.secure_aggregation.enabled:
        yield (
            "secure_aggregation.enabled: false shows every client's own share of the noise with "
            "its update; distributed_noise needs true"
        )


def _cohort_sampling(config: RunSections) -> Iterator[str]:
    if config.cohort.sampling != "poisson":
        return
    if config.privacy.mechanism != "central_noise":
        yield (
            "cohort.sampling: poisson amplifies only against the observer of central_noise; "
            f"valid under {config.privacy.mechanism}: fixed_size"
        )
        return
    if config.secure_aggregation.enabled:
        yield (
            "cohort.sampling: poisson cohorts may have any size, so no threshold can be met; "
            "valid with secure_aggregation.enabled = true: fixed_size"
        )
    if config.cohort.minimum != 1:
        yield (
            f"cohort.minimum: {config.cohort.minimum} would let one client's coin decide whether a "
            "whole sum is released, which voids what cohort.sampling = poisson is for; valid: 1"
        )
    if config.cohort.retries:
        yield (
            f"cohort.retries: {config.cohort.retries} would draw a secret cohort again, which "
            "voids what cohort.sampling = poisson is for; valid: 0"
        )

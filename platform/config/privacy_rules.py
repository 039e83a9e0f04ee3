"""The needs of mechanisms and private experts, and their conflicts with other settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from platform.config.sections import PoolConfig, RunSections
from privacy import PRICED_LAWS

NOISE_KEYS = (
    "clipping_norm",
    "noise_multiplier",
    "target_epsilon",
    "sampling_probability",
    "noise_distribution",
    "adaptive_clipping",
    "lifetime_budget",
)
"""Keys of `privacy` that have no meaning without noise."""


def meaningless(field: str, value: object, where: str, valid: object) -> str:
    """Return that a setting has no meaning under others, which `where` names with their values."""
    return f"{field}: {value} has no meaning {where}; valid: {valid}"


def unknown_mechanism(config: RunSections) -> Iterator[str]:
    """Yield a sentence if there is no such mechanism; other rules need one."""
    name, valid = config.privacy.mechanism, config.mechanisms.names
    if name not in valid:
        yield f"privacy.mechanism: {name!r} is not valid; valid: {', '.join(valid)}"


def privacy_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions within `privacy` and between it and other sections."""
    mechanism = config.mechanism
    yield from _release(config)
    yield from _selection(config)
    norm = config.pool.clipping_norm
    if norm is not None and not mechanism.clips_uploads:
        where = f"under privacy.mechanism = {mechanism.name}, which clips no pool entry"
        yield meaningless("pool.clipping_norm", norm, where, "null")
    valid, own = config.mechanism.relations, config.privacy.relation
    if own is not None and own not in valid:
        yield (
            f"privacy.relation: {own} is not available under {config.privacy.mechanism}; valid: "
            f"{', '.join(valid)}"
        )
    yield from _subspace(config)
    if not mechanism.facts.claims:
        yield from _without_noise(config)
        return
    if config.secure_aggregation.largest_weight is not None:
        yield (
            f"secure_aggregation.largest_weight: {config.secure_aggregation.largest_weight} has no "
            f"meaning under privacy.mechanism = {mechanism.name}, where all weigh alike; leave it "
            "out"
        )
    yield from _noise(config)
    if mechanism.facts.is_in_steps:
        yield from _noised_steps(config)
    if mechanism.clips_uploads:
        yield from _clipped_uploads(config)
    if mechanism.needs_masks and not config.secure_aggregation.enabled:
        yield (
            "secure_aggregation.enabled: false shows every client's own share of the noise with "
            f"its update; {config.privacy.mechanism} needs true"
        )
    yield from _cohort_sampling(config)


def _release(config: RunSections) -> Iterator[str]:
    section, mechanism = config.evaluation, config.mechanism
    if section.release == "none":
        if section.metric_ratio is not None:
            yield (
                f"evaluation.metric_ratio: {section.metric_ratio} has no meaning with "
                "evaluation.release = none; leave it out or set evaluation.release to noised"
            )
        return
    if not mechanism.facts.claims:
        where = f"under privacy.mechanism = {mechanism.name}, which adds no noise"
        yield meaningless("evaluation.release", "noised", where, "none")
    if mechanism.facts.is_in_steps:
        yield (
            f"evaluation.release: noised is not available under {mechanism.name}, whose noise is "
            "in the training steps, while a validation accuracy would carry no noise; valid: none"
        )
    if config.cohort.sampling == "poisson":
        yield (
            "evaluation.release: noised is not available with cohort.sampling = poisson, as a mean "
            "needs the number of clients, which is secret there; valid: none, or cohort.sampling: "
            "fixed_size"
        )
    if not config.task.validation_share:
        yield (
            "evaluation.release: noised needs validation images, and task.validation_share is 0; "
            "valid: none, or a task.validation_share above 0"
        )


def _selection(config: RunSections) -> Iterator[str]:
    mechanism, section = config.mechanism, config.evaluation
    if section.selection == "last":
        return
    if mechanism.facts.claims and section.release == "none":
        takes_along = mechanism.clips_uploads
        valid = "last, or evaluation.release: noised" if takes_along else "last"
        yield (
            "evaluation.selection: best_on_validation would choose the model by accuracies that "
            f"carry no noise, which privacy.mechanism = {mechanism.name} does not cover; valid: "
            f"{valid}"
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
    elif section.every >= config.rounds > 1:
        yield (
            f"evaluation.every: {section.every} measures the last of {config.rounds} rounds only, "
            "which leaves evaluation.selection = best_on_validation nothing to choose from; valid: "
            "below rounds, or the selection last"
        )


def _subspace(config: RunSections) -> Iterator[str]:
    kind, rank = config.privacy.subspace, config.privacy.rank
    if kind == "none" and rank is not None:
        yield (
            f"privacy.rank: {rank} has no meaning with privacy.subspace = none; leave it out or "
            "set privacy.subspace to text_jacobian, public_images or random"
        )
    if kind != "none" and rank is None:
        yield f"privacy.rank: is needed with privacy.subspace = {kind}; valid: from 1"
    if kind == "public_images" and config.public_data is None:
        yield (
            "public_data: null names no image that would be public, and privacy.subspace = "
            "public_images needs public images; valid: a section, {} for the defaults"
        )
    if kind != "public_images" and config.public_data is not None:
        yield (
            f"public_data: has no meaning with privacy.subspace = {kind}; leave it out or set "
            "privacy.subspace to public_images"
        )


def _without_noise(config: RunSections) -> Iterator[str]:
    for name in NOISE_KEYS:
        value = getattr(config.privacy, name)
        if value is not None:
            yield (
                f"privacy.{name}: {value} has no meaning under privacy.mechanism = "
                f"{config.mechanism.name}; leave it "
                "out or choose a mechanism"
            )
    for name, value, valid in (
        ("personal", config.privacy.personal, "joint"),
        ("spare_attempts", config.privacy.spare_attempts, 0),
    ):
        if value != valid:
            where = f"under privacy.mechanism = {config.mechanism.name}, which adds no noise"
            yield meaningless(f"privacy.{name}", value, where, valid)
    if config.cohort.sampling == "poisson":
        yield from _cohort_sampling(config)


def _noise(config: RunSections) -> Iterator[str]:
    section = config.privacy
    if (section.noise_multiplier is None) == (section.target_epsilon is None):
        yield (
            "privacy.noise_multiplier: give exactly one of privacy.noise_multiplier and "
            f"privacy.target_epsilon under {section.mechanism}"
        )
    if section.personal == "decoupled" and not config.mechanism.facts.is_in_steps:
        where = f"under {section.mechanism}, which bounds each upload, whatever it was trained from"
        yield meaningless("privacy.personal", "decoupled", where, "joint")
    valid = config.mechanism.distributions
    if config.noise_distribution not in valid:
        yield (
            f"privacy.noise_distribution: {config.noise_distribution} is not available under "
            f"{config.privacy.mechanism}; valid: {', '.join(valid)}"
        )
    elif config.noise_distribution not in PRICED_LAWS:
        yield (
            f"privacy.mechanism: {config.privacy.mechanism} adds noise of the law "
            f"{config.noise_distribution}, which no accountant prices; valid: a mechanism whose "
            f"noise has one of the laws {', '.join(PRICED_LAWS)}"
        )
    mechanism, entries = config.mechanism, config.pool.noise
    if entries is None or entries in mechanism.entry_noise:
        return
    match entries:
        case "same":
            yield (
                f"pool.noise: 'same' under {mechanism.name} would put an entry into the pool that "
                "lacks a part of the noise; valid: independent"
            )
        case "independent":
            where = f"under {mechanism.name}, whose entries are made of noised steps"
            yield meaningless("pool.noise", "'independent'", where, "same")
        case _:
            assert_never(entries)


def _clipped_uploads(config: RunSections) -> Iterator[str]:
    section = config.privacy
    if section.clipping_norm is None:
        yield f"privacy.clipping_norm: is missing; {section.mechanism} needs a number above 0"
    if section.sampling_probability is not None:
        in_steps = " or ".join(m.name for m in config.mechanisms if m.facts.is_in_steps)
        yield (
            f"privacy.sampling_probability: is for the batches of {in_steps}; "
            f"leave it out under {section.mechanism}"
        )
    if config.secure_aggregation.value_bound is not None:
        yield (
            "secure_aggregation.value_bound: is derived from the clipping norm and the noise under "
            f"{section.mechanism}; leave it out"
        )


def _noised_steps(config: RunSections) -> Iterator[str]:
    section, name = config.privacy, config.privacy.mechanism
    if section.clipping_norm is not None:
        yield (
            f"privacy.clipping_norm: {section.clipping_norm} would clip uploads, which {name} does "
            "not need; leave it out and set privacy.per_sample_clipping_norm"
        )
    if section.per_sample_clipping_norm is None:
        yield f"privacy.per_sample_clipping_norm: is missing; {name} needs a number above 0"
    if section.sampling_probability is None:
        yield (
            f"privacy.sampling_probability: is missing; {name} needs the same number above 0 and "
            "at most 1 for all clients, as batch size / number of examples tells that number"
        )
    if config.training.local_steps is None:
        yield (
            "training.local_epochs: would make the number of noised steps depend on the number of "
            f"examples, which no noise covers; {name} needs training.local_steps"
        )
    if section.adaptive_clipping is not None:
        yield (
            f"privacy.adaptive_clipping: follows the norms of uploads, which {name} does not clip; "
            "leave it out"
        )


def _cohort_sampling(config: RunSections) -> Iterator[str]:
    if config.cohort.sampling != "poisson":
        return
    if not config.mechanism.facts.may_amplify:
        amplifying = " or ".join(m.name for m in config.mechanisms if m.facts.may_amplify)
        yield (
            f"cohort.sampling: poisson amplifies only against the observer of {amplifying}; "
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


KEYS_OF = {
    "entries": ("noise", "clipping_norm", "minimum", "generations"),
    "groups": ("experts", "count_ratio", "floor", "empty"),
}
"""Keys of `pool` that have a meaning under one kind only."""


def group_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions between `pool.kind` and other settings."""
    kind = config.pool.kind
    for other, names in KEYS_OF.items():
        if other == kind:
            continue
        for name in names:
            value = getattr(config.pool, name)
            default = PoolConfig.model_fields[name].default
            if value != default:
                shown = "null" if default is None else default
                valid = f"{shown}, or pool.kind: {other}"
                yield meaningless(f"pool.{name}", value, f"with pool.kind = {kind}", valid)
    if kind == "groups":
        yield from _groups(config)


def _groups(config: RunSections) -> Iterator[str]:
    experts, clients = config.pool.experts, config.task.clients
    if experts is None:
        yield f"pool.experts: is needed with pool.kind = groups; valid: 2 to {clients}"
    elif not 2 <= experts <= clients:
        yield (
            f"pool.experts: {experts} is not valid; valid: 2 to task.clients = {clients}, as a "
            "group has at least one client"
        )
    elif config.pool.empty == "split" and experts < 3:
        yield (
            f"pool.empty: split needs pool.experts of at least 3, as with {experts} no expert can "
            "have more than twice an even share of the clients; valid: keep"
        )
    # The coordinator must not see a client's choice, and noise must cover the choice.
    mechanism = config.mechanism
    valid = [m.name for m in config.mechanisms if not (m.facts.claims and m.facts.noises_alone)]
    named = ", ".join(sorted(valid))
    if mechanism.facts.is_in_steps:
        yield (
            f"privacy.mechanism: {mechanism.name} noises training steps, and not which expert a "
            f"client picks, and pool.kind = groups would show the choice; valid: {named}"
        )
    elif mechanism.facts.claims and mechanism.facts.noises_alone:
        yield (
            f"privacy.mechanism: {mechanism.name} noises each upload by itself, and so much noise "
            f"drowns the sums, which are all that pool.kind = groups shows; valid: {named}"
        )
    if not config.secure_aggregation.enabled:
        yield (
            "secure_aggregation.enabled: false would show the coordinator which expert each "
            "client picks; pool.kind = groups needs true"
        )
    if config.pool.count_ratio is not None and not mechanism.facts.claims:
        where = f"under privacy.mechanism = {mechanism.name}, which clips nothing"
        yield meaningless("pool.count_ratio", config.pool.count_ratio, where, "null")

"""What a configuration asks of a method beside its options: its steps, extras, and the pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from methods import Method, PoolPolicy, Visibility, Weighting
from platform.config import RunConfig
from platform.config.schema import PoolConfig
from platform.errors import ConfigError
from platform.protection.extras import Extras
from platform.protection.group_choice import Grouping
from platform.protection.pool_rules import PoolRules, default_minimum
from platform.wire.vectors import vector_length
from privacy import AdaptiveClipping, GroupCounts, NoisedMetric

FREE_RATIO, CHARGED_RATIO = 1.0, 0.25
"""A group's count over C, where it costs nothing and where it costs 3% of what the update does."""

LEAST_PLAIN_FACTOR = 1e-4
"""Of a round's learning rates, where a method divides by them."""


def require_fitting(config: RunConfig, method: Method) -> None:
    """Refuse what the method gives no meaning to.

    Raises:
        ConfigError: With the first contradiction as one sentence.
    """
    extras, spec = extras_of(config), method.shared_spec()
    if method.centralised and config.task.clients != 1:
        raise ConfigError(
            f"task.clients: {config.task.clients} parties share the data out, while "
            f"{config.method.name} is centralised: one party holds all of it; valid: 1"
        )
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
    if config.cohort.sampling == "poisson" and method.pool_policy() is not None:
        raise ConfigError(
            f"cohort.sampling: poisson amplifies nothing with {config.method.name}, whose pool "
            "entries show who was drawn; valid: fixed_size"
        )
    if config.task.partition.fewest_classes == 1 and not method.learns_one_class:
        raise ConfigError(
            f"task.partition.fewest_classes: 1 allows clients of a single class, from which "
            f"{config.method.name} learns nothing with these options, as its loss compares the "
            "classes at hand only; valid: null, or 2"
        )
    _require_pool(config, method, extras)
    _require_steps(config, method)
    _require_auditable(config, method)
    if config.privacy.personal == "decoupled" and not method.decouples:
        raise ConfigError(
            f"privacy.personal: {config.method.name} has no personal part that can be trained "
            "after the last release; valid: joint"
        )


def _require_auditable(config: RunConfig, method: Method) -> None:
    """Refuse canaries whose part of all sums could not be told from the model."""
    if config.audit is None:
        return
    name, spec, norm = config.method.name, method.shared_spec(), config.privacy.clipping_norm
    adds_means = method.averaged >= set(spec) and method.visibility is Visibility.AGGREGATE_ONLY
    adds_means &= all(tensor.weighting is not Weighting.SUM for tensor in spec.values())
    if not (spec and adds_means) or method.pool_policy() or method.has_personal_state:
        raise ConfigError(
            f"audit: {name} is not audited by canary clients, which need a method whose server "
            "adds mean changes of all that is shared, without pool and personal state; valid: "
            "null, or a method such as promptfl"
        )
    length, section = vector_length(spec), config.audit
    directions = section.directions or section.canaries
    if norm is None or not max(2, directions) <= length:
        field = "canaries" if section.directions is None else "directions"
        raise ConfigError(
            f"audit.{field}: {directions} canaries cannot have directions of their own among the "
            f"{length} coordinates that {name} shares; valid: audit.directions from 1 to {length}"
        )


def _require_steps(config: RunConfig, method: Method) -> None:
    name, training = config.method.name, config.training
    if not method.plain_sgd:
        return
    if training.optimizer != "sgd":
        raise ConfigError(
            f"training.optimizer: {training.optimizer!r} does not step by the learning rate times "
            f"a gradient, which {name} counts on; valid: sgd"
        )
    if training.momentum:
        raise ConfigError(
            f"training.momentum: {training.momentum} adds earlier steps to each, while {name} "
            "counts on the learning rate times a gradient; valid: 0"
        )
    # Each step follows from the round's own rate, so a schedule changes no formula; what is lost
    # is digits of a round's change, which such a method divides by that rate.
    schedule = training.schedule
    if schedule is not None and schedule.least(config.rounds) < LEAST_PLAIN_FACTOR:
        raise ConfigError(
            f"training.schedule: a round has less than {LEAST_PLAIN_FACTOR:g} of the rates, and "
            f"{name} divides by its rate what single precision would have rounded away; valid: "
            "factors above that, such as with training.schedule.final"
        )


def _require_pool(config: RunConfig, method: Method, extras: Extras) -> None:
    policy, norm, name = method.pool_policy(), config.pool.clipping_norm, config.method.name
    if policy is not None:
        require_serving(config, policy)
    if policy is not None and not policy.fixed and config.pool_noise == "same":
        _require_bare_entries(extras)
        _require_one_vector(config, method, policy)
        if norm is not None:
            raise ConfigError(
                f"pool.clipping_norm: {norm} has no meaning with pool.noise = same, whose entries "
                "are the uploads themselves; valid: null, or pool.noise: independent"
            )
    if norm is None:
        return
    if policy is None:
        raise ConfigError(f"pool.clipping_norm: {name} has no pool; valid: null")
    if extras.adaptive is not None and not policy.fixed:
        raise ConfigError(
            f"pool.clipping_norm: {norm} is fixed, while privacy.adaptive_clipping moves the norm "
            "of entries with that of updates; valid: null"
        )


def require_serving(config: RunConfig, policy: PoolPolicy) -> None:
    """Refuse a pool that could never be served from, whatever its entries hold.

    Raises:
        ConfigError: With what is valid.
    """
    if policy.fixed:
        _require_fixed_pool(config, policy)
    else:
        _require_served(config, policy)


def _require_served(config: RunConfig, policy: PoolPolicy) -> None:
    """Refuse a pool that is always too small to hand out an expert."""
    most, least = _most_entries(config), pool_minimum(config, policy)
    if most >= least:
        return
    of_round = config.cohort_size - config.lost_per_round
    asked = "null" if config.pool.minimum is None else str(config.pool.minimum)
    raise ConfigError(
        f"pool.minimum: {asked} hands experts out from {least} entries on, and the pool never has "
        f"more than the {most} of {of_round} clients a round and pool.generations = "
        f"{config.pool.generations}, so {config.method.name} would run without an expert; valid: "
        f"at most {most}, more clients, or more generations"
    )


def _most_entries(config: RunConfig) -> int:
    """Return how many entries the pool has at most, the last round's included."""
    of_round = config.cohort_size - config.lost_per_round
    return of_round * min(config.pool.generations, config.rounds)


def void_pool(config: RunConfig, method: Method) -> Iterator[str]:
    """Yield settings of the pool that do nothing with the run's method."""
    policy, section, name = method.pool_policy(), config.pool, config.method.name
    if policy is None:
        for key in ("minimum", "noise", "generations"):
            value = getattr(section, key)
            if value != PoolConfig.model_fields[key].default:
                yield f"pool.{key}: {value} does nothing with {name}, which has no pool"
        return
    if policy.fixed and section.generations > 1:
        yield (
            f"pool.generations: {section.generations} does nothing with {name}, whose pool is made "
            "once"
        )
    own = min(section.generations, config.rounds) if policy.exclude_self else 0
    others = _most_entries(config) - own
    if not policy.fixed and policy.k > others:
        yield (
            f"method.experts: {policy.k} is more than the {others} entries of others that a client "
            "can find in the pool; it has so many and no more"
        )


def _require_fixed_pool(config: RunConfig, policy: PoolPolicy) -> None:
    clients, least = config.task.clients, pool_minimum(config, policy)
    if config.pool.noise == "same":
        others = ", or independent" if config.mechanism.clips_uploads else ""
        raise ConfigError(
            f"pool.noise: 'same' has no meaning with {config.method.name}, whose entries are made "
            f"once, beside no sum; valid: null{others}"
        )
    if clients >= least:
        return
    if config.pool.minimum is None:
        raise ConfigError(
            f"task.clients: {clients} cannot fill a pool, which has at least {least} entries; "
            f"valid with {config.method.name}: at least {least}"
        )
    raise ConfigError(
        f"pool.minimum: {config.pool.minimum} is more than the entries that there will be; valid: "
        f"2 to task.clients = {clients}"
    )


def _require_bare_entries(extras: Extras) -> None:
    """Refuse entries that are the upload itself, with what was appended to it."""
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


def _require_one_vector(config: RunConfig, method: Method, policy: PoolPolicy) -> None:
    """Refuse one noised vector as both; a client would find out alone, and keep it to itself."""
    shared = {name: tensor.shape for name, tensor in method.shared_spec().items()}
    entry = {name: tensor.shape for name, tensor in policy.spec.items()}
    if config.mechanism.clips_uploads and shared != entry:
        raise ConfigError(
            f"pool.noise: 'same' needs a pool entry that is the shared update itself, and "
            f"{config.method.name}'s has other tensors; valid: independent"
        )


def pool_minimum(config: RunConfig, policy: PoolPolicy) -> int:
    """Return smallest pool that is served from; one that is made once has at least two entries."""
    asked = config.pool.minimum
    least = default_minimum(policy) if asked is None else asked
    return max(2, least) if policy.fixed else least


def extras_of(config: RunConfig) -> Extras:
    """Return what a run appends to its updates."""
    section, evaluation = config.privacy.adaptive_clipping, config.evaluation
    adaptive = None if section is None else AdaptiveClipping(**section.model_dump())
    metric = None
    if evaluation.release == "noised":
        ratio = evaluation.metric_ratio
        metric = NoisedMetric() if ratio is None else NoisedMetric(ratio=ratio)
    extras = Extras(adaptive, metric)
    extras = dataclasses.replace(extras, groups=_grouping(config, extras))
    norm = config.privacy.clipping_norm if extras.names else None
    return dataclasses.replace(extras, clipping_norm=norm)


def _grouping(config: RunConfig, beside: Extras) -> Grouping | None:
    """Return how clients are counted in their groups, None without groups."""
    groups, ratio = config.pool.experts, config.pool.count_ratio
    if config.pool.kind != "groups" or groups is None:
        return None
    alone = not beside.names
    if ratio is None:
        ratio = FREE_RATIO if alone and config.relation == "replace_one" else CHARGED_RATIO
    counts = GroupCounts(groups=groups, ratio=ratio, alone=alone)
    bound = config.secure_aggregation.value_bound
    unclipped = 1.0 if bound is None else min(1.0, bound)
    return Grouping(counts, config.pool.floor, unclipped, config.pool.empty == "split")


def pool_rules_of(config: RunConfig, method: Method) -> PoolRules | None:
    """Return how the run serves its pool, None without one."""
    policy = method.pool_policy()
    if policy is None:
        return None
    return PoolRules(policy, pool_minimum(config, policy), config.pool.generations)

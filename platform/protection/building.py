"""Makes a run's `Protection` from a configuration: builds, calibrates or refuses mechanisms.

The first part holds the rules of the expert pool, and the rules that a configuration and a method
must meet together: steps, extras of updates, and the pool. The second part builds the mechanisms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from methods import Method, PoolPolicy, Visibility, Weighting
from platform.config import RunConfig
from platform.config.sections import PoolConfig
from platform.errors import ConfigError
from platform.mechanisms import Settings, Steps, Sums
from platform.protection.extras import Extras, Grouping
from platform.protection.sums import SumProtection, secure_terms, smallest_real_sum
from platform.protection.uploads import EntryProtection, Protection
from platform.wire.layout import LARGEST_WEIGHT, build_layout, vector_length
from privacy import (
    AdaptiveClipping,
    CalibrationError,
    ClientMechanism,
    CohortKind,
    CohortSampling,
    Cones,
    DpSgd,
    GroupCounts,
    NoisedMetric,
    Release,
    ReleaseKey,
    UnsupportedEvent,
    calibrate,
    calibrate_noise_multiplier,
    default_scale,
    epsilons,
    smallest_multiplier,
)


@dataclass(frozen=True)
class PoolRules:
    """How a run serves its pool.

    Attributes:
        minimum: Fewest entries of a pool that serves experts.
        generations: Number of rounds whose entries are kept.
    """

    policy: PoolPolicy
    minimum: int
    generations: int


def default_minimum(policy: PoolPolicy) -> int:
    """Return the smallest pool that serves experts, unless the method says otherwise.

    It is 2(K+1) entries if clients pick K experts, and two if all clients get all of them.
    """
    if policy.minimum is not None:
        return policy.minimum
    return 2 if policy.fixed else 2 * (policy.k + 1)


FREE_RATIO, CHARGED_RATIO = 1.0, 0.25
"""A group's count over C: if it is free, and if it costs 3% of the update's cost."""

LEAST_PLAIN_FACTOR = 1e-4
"""Least share of a learning rate, if a method divides by the rate."""


def require_fitting(config: RunConfig, method: Method) -> None:
    """Refuse settings without a meaning with the method; `ConfigError` has the first one."""
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
    """Refuse canaries if the model does not show their part of the sums."""
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
    # Each step uses the round's own rate, so a schedule changes no formula. But the method divides
    # a round's change by that rate, and the change loses digits.
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
        if extras.adaptive is not None:
            raise ConfigError(
                "privacy.adaptive_clipping: a pool entry that is the upload itself would carry the "
                "clip flag; valid with pool.noise: independent"
            )
        if extras.metric is not None:
            raise ConfigError(
                "evaluation.release: a pool entry that is the upload itself would carry its "
                "owner's noised validation accuracy; valid with pool.noise: independent"
            )
        # A client would find other tensors by itself, and could not say so.
        shared = {name: tensor.shape for name, tensor in method.shared_spec().items()}
        entry = {name: tensor.shape for name, tensor in policy.spec.items()}
        if config.mechanism.clips_uploads and shared != entry:
            raise ConfigError(
                f"pool.noise: 'same' needs a pool entry that is the shared update itself, and "
                f"{config.method.name}'s has other tensors; valid: independent"
            )
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
    """Refuse a pool that could never serve an expert."""
    if policy.fixed:
        _require_fixed_pool(config, policy)
        return
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
    """Return the most entries that the pool can have, with the last round's."""
    of_round = config.cohort_size - config.lost_per_round
    return of_round * min(config.pool.generations, config.rounds)


def generations_to_serve(config: RunConfig, policy: PoolPolicy) -> int:
    """Return for how many rounds entries must stay so that the pool serves experts."""
    of_round = max(config.cohort_size - config.lost_per_round, 1)
    return 1 if policy.fixed else -(-pool_minimum(config, policy) // of_round)


def void_pool(config: RunConfig, method: Method) -> Iterator[str]:
    """Yield settings of the pool that have no effect with the run's method."""
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
            "can find in the pool; the client gets only these"
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


def pool_minimum(config: RunConfig, policy: PoolPolicy) -> int:
    """Return the smallest pool that serves experts: two entries or more if it is made once."""
    asked = config.pool.minimum
    least = default_minimum(policy) if asked is None else asked
    return max(2, least) if policy.fixed else least


def extras_of(config: RunConfig) -> Extras:
    """Return the coordinates that a run appends to its updates."""
    section, evaluation = config.privacy.adaptive_clipping, config.evaluation
    adaptive = None if section is None else AdaptiveClipping(**section.model_dump())
    metric = grouping = None
    if evaluation.release == "noised":
        ratio = evaluation.metric_ratio
        metric = NoisedMetric() if ratio is None else NoisedMetric(ratio=ratio)
    groups, count_ratio = config.pool.experts, config.pool.count_ratio
    if config.pool.kind == "groups" and groups is not None:
        alone = adaptive is None and metric is None
        if count_ratio is None:
            is_free = alone and config.relation == "replace_one"
            count_ratio = FREE_RATIO if is_free else CHARGED_RATIO
        counts = GroupCounts(groups=groups, ratio=count_ratio, alone=alone)
        bound = config.secure_aggregation.value_bound
        unclipped = 1.0 if bound is None else min(1.0, bound)
        is_split = config.pool.empty == "split"
        grouping = Grouping(counts, config.pool.floor, unclipped, is_split)
    extras = Extras(adaptive, metric, groups=grouping)
    norm = config.privacy.clipping_norm if extras.names else None
    return dataclasses.replace(extras, clipping_norm=norm)


def pool_rules_of(config: RunConfig, method: Method) -> PoolRules | None:
    """Return how the run serves its pool, None without a pool."""
    policy = method.pool_policy()
    if policy is None:
        return None
    return PoolRules(policy, pool_minimum(config, policy), config.pool.generations)


DEFAULT_VALUE_BOUND = 8.0
SMALLEST_MULTIPLIER = 1e-3
"""Start of the search for the least noise on the reals."""


def protect_run(config: RunConfig, method: Method) -> tuple[Protection, float | None]:
    """Return a run's protection with the least noise that meets its target, and its multiplier.

    The noise multiplier is None under `none`. `ConfigError` if no noise reaches the target.
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
    return protection, multiplier


def weighing(protection: Protection, config: RunConfig, most: int) -> Protection:
    """Return the protection of a simulation whose largest client has this many examples.

    Without a configured largest weight, which may not be below it, that number is the largest
    weight: a larger one would add bits to every coordinate of every masked vector.
    """
    configured = config.secure_aggregation.largest_weight
    if not protection.layout.weighted:
        return protection
    if configured is None:
        layout = dataclasses.replace(protection.layout, largest_weight=most)
        sums = dataclasses.replace(protection.sums, layout=layout)
        return dataclasses.replace(protection, sums=sums)
    if configured < most:
        raise ConfigError(
            f"secure_aggregation.largest_weight: {configured} is less than the {most} examples of "
            f"a client; valid: {most} to {LARGEST_WEIGHT}"
        )
    return protection


def amplifying_cohorts(config: RunConfig, method: Method) -> CohortKind | None:
    """Return how cohorts are drawn if that may amplify against the observer, else None.

    A pool prevents it: an entry shows other clients that its owner was drawn. Cohorts of fixed size
    amplify by a theorem on replaced clients, round by round. The rounds compose only if the uploads
    of other clients do not depend on earlier draws. So the method's clients must keep no state.
    """
    if not config.has_secret_cohorts or method.pool_policy() is not None:
        return None
    if config.cohort.sampling == "poisson":
        return "poisson"
    if config.relation != "replace_one" or method.has_personal_state:
        return None
    return "fixed_size"


def _require_priceable(config: RunConfig, method: Method, protection: Protection) -> None:
    """Price one client's first round, so that a run without a price is refused at its start."""
    cohort, kind = None, amplifying_cohorts(config, method)
    if kind is not None:
        size, population = config.cohort_size, config.task.clients
        cohort = CohortSampling(kind=kind, size=size, population=population, is_drawn=True)
    planned = protection.releases(_planned_key(1), cohort)
    if protection.collection is not None:
        planned += protection.collection.releases(_planned_key(2))
    section = config.privacy
    for law in sorted({row.law.name for row in planned if row.mechanism == config.mechanism.facts}):
        if law not in (config.noise_distribution, "none"):
            raise ConfigError(
                f"privacy.mechanism: {section.mechanism} builds noise of the law {law}, and is "
                f"declared to build {config.noise_distribution}; valid: one that does so"
            )
    try:
        epsilons(planned, section.target_delta, section.accountant)
    except UnsupportedEvent as error:
        raise ConfigError(
            f"privacy.accountant: {section.accountant!r} cannot price {section.mechanism} as "
            f"configured: {error}; valid: auto, or another mechanism"
        ) from error


def _noise_multiplier(config: RunConfig, method: Method) -> float | None:
    section = config.privacy
    if not config.mechanism.facts.claims or section.target_epsilon is None:
        return section.noise_multiplier
    # The trial needs any noise that the grid allows.
    least = _smallest(config, method)
    trial = _with_collection(config, method, max(1.0, 2.0 * least))
    if not trial.releases_anything:
        # The run releases nothing, so the amount of noise does not matter.
        return 1.0
    training, rounds = trial.training, config.rounds + section.spare_attempts

    def planned(noise_multiplier: float) -> list[Release]:
        protection = _with_collection(config, method, noise_multiplier)
        rows = [
            dataclasses.replace(row, count=rounds) for row in protection.releases(_planned_key(0))
        ]
        if protection.collection is None:
            return rows
        return [*rows, *protection.collection.releases(_planned_key(1))]

    # A closed form exists if all of a round's noise is on the reals and around C itself.
    is_whole = config.mechanism.clips_uploads and config.mechanism.facts.noises_alone
    if training is None and not (is_whole and config.noise_distribution == "gaussian"):
        return calibrate(
            planned,
            section.target_epsilon,
            section.target_delta,
            smallest=least,
            accountant=section.accountant,
        )
    once = () if trial.collection is None else trial.collection.channels
    return calibrate_noise_multiplier(
        section.target_epsilon,
        section.target_delta,
        # Each release has the same multiplier, around its own norm.
        releases_per_round=1,
        rounds=rounds * len(trial.channels) + len(once),
        relation=config.relation,
        accountant=section.accountant,
        sampling_probability=1.0 if training is None else training.sampling_probability,
        steps=1 if training is None else training.steps,
    )


def _planned_key(round_number: int) -> ReleaseKey:
    """Return the key of a release that is priced and never happens."""
    return ReleaseKey(run_id="planned", round_number=round_number, attempt=1, pseudonym="planned")


def _smallest(config: RunConfig, method: Method) -> float:
    """Return the start of the search: the least noise that every grid of the run allows.

    Norms have 65,536 to 131,072 steps, and appended coordinates may move a norm to either end.
    """
    norm = config.privacy.clipping_norm
    if norm is None or config.noise_distribution == "gaussian":
        return SMALLEST_MULTIPLIER
    joint, sums = extras_of(config).joint_norm(norm), _sums(config)
    honest = 1 if sums is None else sums.smallest - sums.corrupt
    least = smallest_multiplier(joint * default_scale(joint), honest)
    bare = _entry_norm(config)
    if bare is None or not _has_bare_entries(config, method):
        return least
    return max(least, smallest_multiplier(bare * default_scale(bare), 1))


def _sums(config: RunConfig) -> Sums | None:
    """Return the certain facts about sums, None if the noise does not depend on them."""
    if not config.mechanism.needs_masks:
        return None
    return Sums(smallest_real_sum(config), config.secure_aggregation.corrupt)


def _with_collection(config: RunConfig, method: Method, multiplier: float | None) -> Protection:
    """Return how a run's uploads are protected, and its pool if that is made once."""
    policy, protection = method.pool_policy(), _protection(config, method, multiplier)
    if policy is None or not policy.fixed:
        return protection
    # The owner protects each entry of such a pool, and the coordinator sums no entries. With noise
    # in the steps an entry consists of noised steps, and the rounds' steps are charged already.
    own = _pool_mechanism(config, multiplier)
    collection = Protection(
        sums=SumProtection(
            mechanism=_mechanism(config, method, multiplier) if own is None else own,
            layout=build_layout({}, weighs_examples=config.mechanism.weighs_examples),
            bits=config.secure_aggregation.bits,
            masked=False,
            clients=config.task.clients,
        ),
        entries=EntryProtection(spec=policy.spec, noise="independent"),
        training=_training(config, multiplier),
        charged=not config.mechanism.facts.is_in_steps or policy.trains,
    )
    number = 1 if policy.opens else config.rounds + 1
    return dataclasses.replace(protection, collection=collection, collects_at=number)


def _protection(config: RunConfig, method: Method, multiplier: float | None) -> Protection:
    extras, policy, entries = extras_of(config), method.pool_policy(), None
    # Entries of a pool that is made once leave their owners only in the collection.
    if policy is not None and not policy.fixed:
        own = _has_bare_entries(config, method)
        entries = EntryProtection(
            spec=policy.spec,
            noise=config.pool_noise,
            mechanism=_pool_mechanism(config, multiplier) if own else None,
        )
    masked = config.secure_aggregation.enabled and bool(method.shared_spec())
    layout = build_layout(
        method.shared_spec(),
        weighs_examples=config.mechanism.weighs_examples,
        extras=extras.names,
        largest_weight=config.secure_aggregation.largest_weight,
    )
    # Poisson sampling may draw all clients, and the ring must hold that sum too.
    is_drawn = config.cohort.sampling == "poisson"
    sums = SumProtection(
        mechanism=_mechanism(config, method, multiplier),
        layout=layout,
        bits=config.secure_aggregation.bits,
        masked=masked,
        clients=config.task.clients + config.canaries if is_drawn else config.seats,
        terms=secure_terms(config) if masked else None,
        extras=extras,
        # Secret cohorts, and a relation with one client more or less, need a secret number of
        # clients. If clients' own noise is in the sum, their number is public.
        hides_size=config.mechanism.facts.is_bare_to_server
        and (amplifying_cohorts(config, method) is not None or config.relation != "replace_one"),
    )
    return Protection(sums=sums, entries=entries, training=_training(config, multiplier))


def _has_bare_entries(config: RunConfig, method: Method) -> bool:
    """Return whether pool entries have a mechanism of their own, around C itself."""
    policy = method.pool_policy()
    if policy is None or not config.mechanism.clips_uploads:
        return False
    apart = "same" not in config.mechanism.entry_noise
    # An entry carries no validation accuracy, so noise for its own norm is enough.
    own_norm = config.pool.clipping_norm is not None or extras_of(config).metric is not None
    return policy.fixed or apart or own_norm


def _training(config: RunConfig, multiplier: float | None) -> DpSgd | None:
    # Without a multiplier the search has not begun, and clients do not train.
    if multiplier is None:
        return None
    return config.mechanism.build_training(_settings(config, multiplier, None))


def _cones(method: Method, extras: Extras) -> Cones | None:
    """Return where a whole upload lies; a clip flag or an accuracy, of either sign, leaves it."""
    widths = {tensor.cone for tensor in method.shared_spec().values()}
    if extras.adaptive or extras.metric or len(widths) != 1:
        return None
    (width,) = widths
    return None if width is None else Cones(width)


def _mechanism(config: RunConfig, method: Method, multiplier: float | None) -> ClientMechanism:
    norm = config.privacy.clipping_norm
    extras = extras_of(config)
    joint = None if norm is None else extras.joint_norm(norm)
    counts = None if norm is None or extras.groups is None else extras.groups.counts
    settings = dataclasses.replace(
        _settings(config, multiplier, joint), counts=counts, cones=_cones(method, extras)
    )
    built = config.mechanism.build_upload(settings)
    if counts is not None and getattr(built, "counts", None) != counts:
        # The mechanism would clip counts together with updates.
        raise ConfigError(
            f"privacy.mechanism: {config.privacy.mechanism} knows nothing of counts, which "
            "pool.kind = groups needs; valid: central_noise, distributed_noise"
        )
    return built


def _pool_mechanism(config: RunConfig, multiplier: float | None) -> ClientMechanism | None:
    return config.mechanism.build_entry(_settings(config, multiplier, _entry_norm(config)))


def _settings(config: RunConfig, multiplier: float | None, norm: float | None) -> Settings:
    bound, section, steps = config.secure_aggregation.value_bound, config.privacy, None
    own, probability = section.per_sample_clipping_norm, section.sampling_probability
    count, is_in_steps = config.training.local_steps, config.mechanism.facts.is_in_steps
    # The configuration has refused noise in steps without these three numbers.
    if is_in_steps and own is not None and probability is not None and count is not None:
        steps = Steps(own, probability, count, config.training.batch_size)
    return Settings(
        relation=config.relation,
        distribution=config.noise_distribution,
        value_bound=DEFAULT_VALUE_BOUND if bound is None else bound,
        clipping_norm=norm,
        noise_multiplier=multiplier,
        sums=_sums(config),
        steps=steps,
    )


def _entry_norm(config: RunConfig) -> float | None:
    """Return C of a pool entry that is a release of its own."""
    own = config.pool.clipping_norm
    return config.privacy.clipping_norm if own is None else own

"""Checks that join sections of a configuration, and finds settings that do nothing.

Each rule yields one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from platform.config.privacy_rules import (
    group_problems,
    meaningless,
    privacy_problems,
    unknown_mechanism,
)
from platform.config.sections import RunSections, SecureAggregationConfig, TaskConfig
from storage import InvalidRecordError
from storage.homes import file_of

_RANDOM = ("dirichlet", "domain_dirichlet", "shared_ratio")
KINDS_WITH = {
    "alpha": (*_RANDOM, "hierarchical_dirichlet"),
    "minimum": _RANDOM,
    "minimum_test": ("dirichlet", "domain_dirichlet"),
    "slices": ("pathological",),
    "shared_classes": ("pathological",),
    "shared_ratio": ("shared_ratio",),
    "images_per_client": ("iid",),
    "classes_per_client": ("pathological",),
}
"""The kinds of partition under which a key has a meaning."""
MADE = ("headlines", "homonyms", "shapes")
"""Data sets that Sotto makes from the seed, in any size."""
HANDWRITING = (FROZEN, TUNING) = ("handwriting", "handwriting_tuning")
"""Data sets of the same images, with frozen test images and without these."""
FILELESS = (*MADE, "digits", *HANDWRITING)
"""Data sets that read nothing below `task.root`."""
SENSED = ("homonyms", *HANDWRITING)
"""Data sets whose images may differ by holder, as `task.senses` says."""
OWN = ("images", "client_folders")
"""Data sets in folders of the user's own images."""
OWNED = "client_folders"
"""The data set in which each client has a folder already."""


def require_consistent(config: RunSections) -> None:
    """Refuse a configuration whose sections contradict each other with a ValueError of them all."""
    problems: list[str] = []
    for rule in (
        _storage,
        unknown_mechanism,
        federation_problems,
        _task,
        _protocol,
        training_problems,
        _cohort,
        _secure_aggregation,
        group_problems,
        privacy_problems,
        audit_problems,
    ):
        problems += rule(config)
        if problems and rule is unknown_mechanism:
            # The other rules ask what the mechanism does.
            break
    if problems:
        raise ValueError(*problems)


def _storage(config: RunSections) -> Iterator[str]:
    try:
        file_of(config.storage.url)
    except InvalidRecordError as error:
        yield str(error)


def _task(config: RunSections) -> Iterator[str]:
    task = config.task
    senses, protocol = task.senses, config.evaluation.protocol
    for name, value, valid in (
        ("layout", task.layout, OWN[:1]),
        ("class_names", task.class_names, OWN),
        ("senses", senses, SENSED),
    ):
        if value not in (None, task.dataset) and task.dataset not in valid:
            where = f"with task.dataset = {task.dataset}"
            known = f"null, or the data set {' or '.join(valid)}"
            yield meaningless(f"task.{name}", value, where, known)
    yield from _partition(config)
    partition, facts = task.partition, config.mechanism.facts
    # A data set that is made from the seed has as many records as are asked for.
    is_own = partition.kind == "domain" and task.dataset not in MADE
    if facts.unit == "record" and is_own and task.shots is not None and config.federation is None:
        yield (
            f"task.shots: {task.shots} of each class does not fit privacy.mechanism = "
            f"{facts.name}, which counts records: with a fixed number of shots one more record "
            "displaces another; valid with task.partition.kind = domain: null"
        )
    if senses == "clients" and protocol not in ("client_mean", "all_classes"):
        yield (
            f"task.senses: clients does not fit evaluation.protocol = {protocol}, which measures "
            "clients of all senses on the same images; valid: styles, or one sense for all, or the "
            "protocol client_mean or all_classes"
        )


def _partition(config: RunSections) -> Iterator[str]:
    task, section = config.task, config.task.partition
    for name, kinds in KINDS_WITH.items():
        value = getattr(section, name)
        if value is not None and section.kind not in kinds:
            where = f"with task.partition.kind = {section.kind}"
            valid = f"null, or the kind {' or '.join(kinds)}"
            yield meaningless(f"task.partition.{name}", value, where, valid)
    if section.kind == "shared_ratio" and task.dataset == FROZEN:
        yield (
            f"task.partition.kind: shared_ratio deals out test images for training, and those of "
            f"{FROZEN} are frozen; valid: another kind, or the data set {TUNING}"
        )
    if section.kind == "shared_ratio" and section.shared_ratio is None:
        yield (
            "task.partition.shared_ratio: null is not the share of each class that goes evenly "
            "to all clients; valid with task.partition.kind = shared_ratio: 0 to 1, such as 0.2"
        )
    if task.dataset == OWNED and section.kind != "domain":
        yield (
            f"task.partition.kind: {section.kind} does not fit task.dataset = {OWNED}, whose "
            "folders state what each client has; valid: domain"
        )
    if section.kind == "hierarchical_dirichlet" and task.shots is not None:
        yield (
            f"task.shots: {task.shots} does not fit task.partition.kind = "
            "hierarchical_dirichlet, which deals out all images; valid: null"
        )
    by_client = section.images_per_client is not None
    if by_client and task.shots is not None:
        yield (
            f"task.shots: {task.shots} of each class does not fit task.partition.images_per_client "
            f"= {section.images_per_client}, which are drawn whatever their class; valid: null"
        )
    by_class = f"with task.partition.classes_per_client = {section.classes_per_client}"
    for name, why in (
        ("shared_classes", "where all classes are shared"),
        ("slices", "where classes are drawn one by one"),
    ):
        value = getattr(section, name)
        if section.classes_per_client is not None and value is not None:
            yield meaningless(f"task.partition.{name}", value, f"{by_class}, {why}", "null")
    if task.shots is None and task.dataset in MADE and not by_client:
        yield (
            f"task.shots: null takes all training examples, and {task.dataset} makes as "
            "many as are asked for; valid: 1 or more"
        )
    # A repeated domain would give the same pictures to two clients.
    domains = task.domains or ()
    for name in domains:
        if domains.count(name) > 1:
            yield f"task.domains: {name!r} is listed twice; valid: each domain once"


def _protocol(config: RunSections) -> Iterator[str]:
    protocol, held_out = config.evaluation.protocol, config.task.held_out_domain
    measured, clients = config.evaluation.measured_clients, config.task.clients
    if measured is not None and measured > clients:
        yield (
            f"evaluation.measured_clients: {measured} is more than the clients; valid: null, or 1 "
            f"to task.clients = {clients}"
        )
    kind = config.task.partition.kind
    # Every image of its pool is a training image of some client.
    if kind == "shared_ratio" and protocol == "base_to_novel":
        yield (
            "task.partition.kind: shared_ratio does not fit evaluation.protocol = base_to_novel, "
            "as it deals out test images for training; valid: another kind, or client_mean"
        )
    if protocol != "leave_one_domain_out":
        if held_out is not None:
            where = f"with evaluation.protocol = {protocol}"
            valid = "null, or the protocol leave_one_domain_out"
            yield meaningless("task.held_out_domain", repr(held_out), where, valid)
        return
    if held_out is None:
        yield (
            "evaluation.protocol: leave_one_domain_out needs task.held_out_domain, which is null; "
            "valid: the name of a domain there"
        )
    if kind not in ("domain", "domain_dirichlet"):
        yield (
            f"task.partition.kind: {kind} does not fit evaluation.protocol = leave_one_domain_out, "
            "whose clients hold one source domain each; valid: domain or domain_dirichlet"
        )


def _cohort(config: RunSections) -> Iterator[str]:
    size, clients = config.cohort_size, config.task.clients
    if size > clients:
        yield f"cohort.size: {size} is more than the clients; valid: 1 to task.clients = {clients}"
    if config.cohort.minimum > size:
        yield (
            f"cohort.minimum: {config.cohort.minimum} is more than the cohort; valid: 1 to "
            f"{_cohort_key(config)} = {size}"
        )
    left = size - config.lost_per_round
    if left < config.cohort.minimum <= size:
        yield (
            f"cohort.dropout_rate: {config.cohort.dropout_rate} leaves {left} of {size} clients; "
            f"cohort.minimum = {config.cohort.minimum} must remain"
        )


def _cohort_key(config: RunSections) -> str:
    """Return the key that states the number of clients in a round."""
    return "task.clients" if config.cohort.size is None else "cohort.size"


def _secure_aggregation(config: RunSections) -> Iterator[str]:
    section = config.secure_aggregation
    if not section.enabled:
        if section.adversary == "active":
            yield (
                "secure_aggregation.adversary: active has no meaning with "
                "secure_aggregation.enabled = false, which shows the server every upload; valid: "
                "semi_honest"
            )
        return
    size, threshold = config.cohort_size, config.threshold
    if size < 2:
        key = _cohort_key(config)
        yield f"{key}: {size} is too small for secure aggregation; valid: at least 2"
    elif threshold > size:
        yield (
            f"secure_aggregation.threshold: {threshold} is more than the cohort; valid: "
            f"{section.corrupt + 1} to {_cohort_key(config)} = {size}"
        )
    elif threshold < 2:
        yield "secure_aggregation.threshold: 1 would open a single update; valid: at least 2"
    if threshold <= section.corrupt:
        yield (
            f"secure_aggregation.threshold: {threshold} does not exceed "
            f"secure_aggregation.corrupt = {section.corrupt}; valid: at least {section.corrupt + 1}"
        )
    left = size - config.lost_per_round
    if left < threshold <= size:
        yield (
            f"cohort.dropout_rate: {config.cohort.dropout_rate} leaves {left} of {size} clients, "
            f"fewer than secure_aggregation.threshold = {threshold}"
        )


SCHEDULES_WITH = {"gamma": "exponential", "final": "cosine", "rounds": "cosine"}
"""The kind of schedule under which a key has a meaning."""
LEAST_FACTOR = 1e-30
"""The smallest factor whose product with a rate single precision can hold."""


def training_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions in the section on local training."""
    section = config.training
    if section.optimizer != "sgd" and section.momentum:
        where = f"with training.optimizer = {section.optimizer}"
        yield meaningless("training.momentum", section.momentum, where, 0)
    for name in ("betas", "eps"):
        value = getattr(section, name)
        if section.optimizer == "sgd" and value is not None:
            valid = "null, or the optimizer adam or adamw"
            yield meaningless(f"training.{name}", value, "with training.optimizer = sgd", valid)
    schedule, where = config.training.schedule, "training.schedule"
    if schedule is None:
        return
    for name, kind in SCHEDULES_WITH.items():
        value = getattr(schedule, name)
        if value is not None and schedule.kind != kind:
            valid = f"null, or the kind {kind}"
            under = f"with {where}.kind = {schedule.kind}"
            yield meaningless(f"{where}.{name}", value, under, valid)
    if schedule.kind == "exponential" and schedule.gamma is None:
        yield (
            f"{where}.gamma: null does not say how rates change; valid with {where}.kind = "
            "exponential: above 0 and at most 1, such as 0.8"
        )
    if schedule.warm_up_factor is not None and not schedule.warm_up_rounds:
        under = f"with {where}.warm_up_rounds = 0"
        yield meaningless(f"{where}.warm_up_factor", schedule.warm_up_factor, under, "null")
    if schedule.warm_up_rounds >= config.rounds:
        yield (
            f"{where}.warm_up_rounds: {schedule.warm_up_rounds} leave no round after them; valid: "
            f"less than rounds = {config.rounds}"
        )
    elif schedule.rounds is not None and schedule.rounds < config.rounds:
        yield (
            f"{where}.rounds: {schedule.rounds} end before the run does, and its last rounds would "
            f"have {schedule.final or 0:g} times their rates; valid: null, or at least rounds "
            f"= {config.rounds}"
        )
    elif schedule.least(config.rounds) < LEAST_FACTOR:
        yield (
            f"{where}.gamma: {schedule.gamma} leaves nothing of the rates in round "
            f"{config.rounds}; valid: a factor that leaves {LEAST_FACTOR:g} of them or more"
        )


HELD: Final = "held_by_clients"
"""The data set of a federation: each client's images in its own folder."""


def federation_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions with a federation section, or with a missing one.

    The coordinator of a federation has no images, so it can neither deal them out nor measure.
    """
    section, dataset = config.federation, config.task.dataset
    if section is None:
        if dataset == HELD:
            yield (
                f"task.dataset: {HELD} are images in clients' own folders; valid with a "
                "federation section only"
            )
        return
    if dataset != HELD:
        yield (
            f"task.dataset: {dataset} has no meaning with a federation section, whose clients have "
            f"images of their own; valid: {HELD}"
        )
    for field, names in (("clients", section.clients), ("classes", section.classes)):
        for name, times in Counter(names).items():
            if times > 1:
                yield f"federation.{field}: {name!r} is listed twice; valid: each name once"
    if config.task.clients != len(section.clients):
        yield (
            f"task.clients: {config.task.clients} is not the number of federation.clients; valid: "
            f"{len(section.clients)}"
        )
    least = config.threshold if config.secure_aggregation.enabled else 1
    needed = max(config.cohort.minimum, least)
    for field, enough, most, why in (
        ("start_with", section.start_with, len(section.clients), _CHARGED),
        ("go_on_with", section.go_on_with, config.cohort_size, _TIMED),
    ):
        if enough is None:
            continue
        if not needed <= enough <= most:
            yield (
                f"federation.{field}: {enough} is not a number of clients with which a round can "
                f"run; valid: null, or {needed} to {most}"
            )
        if config.has_secret_cohorts:
            yield (
                f"federation.{field}: {enough} does not go with cohorts that are drawn in secret, "
                f"{why}; valid: null"
            )
    evaluation = config.evaluation
    for field, value, valid in (
        ("evaluation.local_twins", evaluation.local_twins, False),
        ("evaluation.worth_of_sharing", evaluation.worth_of_sharing, False),
        ("evaluation.measured_clients", evaluation.measured_clients, None),
        ("evaluation.protocol", evaluation.protocol, "client_mean"),
        ("evaluation.selection", evaluation.selection, "last"),
        ("cohort.dropout_rate", config.cohort.dropout_rate, 0.0),
        ("task.new_clients", config.task.new_clients, 0),
        ("task.domains", config.task.domains, None),
        ("privacy.noise_source", config.privacy.noise_source, "os"),
        ("phase_two_of", config.phase_two_of, None),
        ("audit", None if config.audit is None else "a section", None),
    ):
        if value != valid:
            yield (
                f"{field}: {_shown(value)} is for simulations, which see all clients' images; "
                f"valid with a federation section: {_shown(valid)}"
            )
    if config.privacy.subspace == "public_images":
        yield (
            "privacy.subspace: public_images is not built for a federation section yet; valid: "
            "none, text_jacobian, random"
        )


_CHARGED: Final = "as all clients are charged for these draws from the first round on"
_TIMED: Final = "as the fastest clients are not a random draw, and only a draw lowers the charge"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


_OF_MASKS: Final = ("threshold", "graph", "corrupt", "enrolment", "largest_weight")


def void_settings(config: RunSections) -> Iterator[str]:
    """Yield the settings that do nothing in this run, for any method.

    Sotto warns of them before the first round and never refuses them, because a sweep or an
    override may leave them behind: masks that are switched off leave their threshold.
    """
    task, fields = config.task, TaskConfig.model_fields
    if task.root != fields["root"].default and task.dataset in FILELESS:
        yield (
            f"task.root: {task.root} is not read, as task.dataset = {task.dataset} comes with the "
            "program; your own images are task.dataset: images"
        )
    drawn = (*MADE, TUNING)
    if task.test_per_class != fields["test_per_class"].default and task.dataset not in drawn:
        yield (
            f"task.test_per_class: {task.test_per_class} does nothing with task.dataset = "
            f"{task.dataset}, whose files hold its test images; it is for "
            f"{', '.join(drawn)}"
        )
    cohort, every = config.cohort, config.evaluation.every
    if cohort.dropout_rate and not config.lost_per_round and not config.has_secret_cohorts:
        yield (
            f"cohort.dropout_rate: {cohort.dropout_rate:g} of {config.cohort_size} clients is less "
            "than half a client, so no client is lost; use a larger rate or more clients"
        )
    if every > config.rounds:
        yield (
            f"evaluation.every: {every} is more than rounds = {config.rounds}, so only the last "
            "round is measured"
        )
    if cohort.sampling == "poisson" and config.cohort_size == config.task.clients:
        yield (
            f"cohort.sampling: poisson draws all {config.task.clients} clients in every round, as "
            "cohort.size is their number, so it amplifies nothing; use a smaller cohort.size"
        )
    section, masks = config.secure_aggregation, SecureAggregationConfig.model_fields
    for name in () if section.enabled else _OF_MASKS:
        value = getattr(section, name)
        if value != masks[name].default:
            yield (
                f"secure_aggregation.{name}: {value} does nothing with "
                "secure_aggregation.enabled = false, which shows the server every upload; use "
                "enabled: true"
            )


MOST: Final = 10_000
"""The most canaries that a run may have."""


def audit_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions between `audit` and other settings."""
    section = config.audit
    if section is None:
        return
    if section.canaries > MOST:
        yield f"audit.canaries: {section.canaries} is not valid; valid: 1 to {MOST}"
    directions = section.directions
    if directions is not None and section.canaries % directions:
        yield (
            f"audit.directions: {directions} does not divide audit.canaries = {section.canaries} "
            "evenly; valid: null, or a divisor of it"
        )
    mechanism = config.mechanism
    able = [
        other.name
        for other in config.mechanisms
        if other.facts.claims and not (other.facts.is_in_steps or other.facts.noises_alone)
    ]
    if mechanism.name not in able:
        yield (
            f"audit: canary clients are seen in noised sums, and privacy.mechanism = "
            f"{mechanism.name} has its noise elsewhere, or adds no noise; valid: null, or one of "
            f"{', '.join(able)}"
        )
    secure, cohort = config.secure_aggregation, config.cohort
    # Canaries get the complete graph, unless the configuration names another.
    graph = "k_regular" if secure.graph == "k_regular" else "complete"
    for field, value, valid, why in (
        ("cohort.size", config.cohort_size, config.task.clients, _ALWAYS),
        ("cohort.sampling", cohort.sampling, "fixed_size", _ALWAYS),
        ("cohort.dropout_rate", cohort.dropout_rate, 0.0, _ALWAYS),
        ("secure_aggregation.adversary", secure.adversary, "semi_honest", _UNENROLLED),
        ("secure_aggregation.graph", graph, "complete", _MANY),
        ("pool.kind", config.pool.kind, "entries", "as a canary is in no group"),
        ("privacy.subspace", config.privacy.subspace, "none", "as its directions change"),
        ("privacy.adaptive_clipping", _given(config.privacy.adaptive_clipping), None, _NORM),
        ("privacy.lifetime_budget", config.privacy.lifetime_budget, None, _ONE_LIFE),
        ("evaluation.release", config.evaluation.release, "none", "as a canary has no accuracy"),
        ("method.server_optimizer", _given(config.method.server_optimizer), None, _LOOK),
        ("phase_two_of", config.phase_two_of, None, "as that run has no sums of its own"),
    ):
        if value != valid:
            yield (
                f"{field}: {value} does not go with canary clients, {why}; valid: "
                f"{'null' if valid is None else valid}, or audit: null"
            )


_ALWAYS: Final = "as each of them is in every sum"
_UNENROLLED: Final = "as their keys are in no enrolment file"
_MANY: Final = "as more of them may collude than a client's neighbours withstand"
_NORM: Final = "as their uploads have one norm in all rounds"
_ONE_LIFE: Final = "as they live for one run"
_LOOK: Final = "as the audit looks for their uploads in the sum of all changes of the model"


def _given(section: object) -> str | None:
    return None if section is None else "a section"

"""Checks that join sections of a configuration.

Each rule raises ValueError with one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from platform.config.audit_rules import audit_problems
from platform.config.federation_rules import federation_problems
from platform.config.group_rules import group_problems
from platform.config.privacy_rules import privacy_problems, unknown_mechanism
from platform.config.schema import RunSections
from platform.config.training_rules import training_problems
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
"""Under which kinds of partition a key means something."""
MADE = ("headlines", "homonyms", "shapes")
"""Data sets of any size, made from the seed."""
OWN = ("images", "client_folders")
"""Data sets that are folders of the user's own images."""
OWNED = "client_folders"
"""The data set that is dealt out already: a folder a client."""


def require_consistent(config: RunSections) -> None:
    """Refuse a configuration whose sections contradict each other.

    Raises:
        ValueError: With the first contradiction as one sentence.
    """
    for problem in _problems(config):
        raise ValueError(problem)


def _problems(config: RunSections) -> Iterator[str]:
    yield from _storage(config)
    yield from unknown_mechanism(config)
    yield from federation_problems(config)
    yield from _own_images(config)
    yield from _partition(config)
    yield from _shots_of_records(config)
    yield from _senses(config)
    yield from _protocol(config)
    yield from training_problems(config)
    yield from _cohort(config)
    yield from _secure_aggregation(config)
    yield from group_problems(config)
    yield from privacy_problems(config)
    yield from audit_problems(config)


def _storage(config: RunSections) -> Iterator[str]:
    try:
        file_of(config.storage.url)
    except InvalidRecordError as error:
        yield str(error)


def _own_images(config: RunSections) -> Iterator[str]:
    task = config.task
    for name, value, valid in (
        ("layout", task.layout, OWN[:1]),
        ("class_names", task.class_names, OWN),
    ):
        if value is not None and task.dataset not in valid:
            yield (
                f"task.{name}: {value} has no meaning with task.dataset = {task.dataset}; valid: "
                f"null, or the data set {' or '.join(valid)}"
            )


def _partition(config: RunSections) -> Iterator[str]:
    section, domains = config.task.partition, config.task.domains or ()
    for name, kinds in KINDS_WITH.items():
        value = getattr(section, name)
        if value is not None and section.kind not in kinds:
            yield (
                f"task.partition.{name}: {value} has no meaning with task.partition.kind = "
                f"{section.kind}; valid: null, or the kind {' or '.join(kinds)}"
            )
    if section.kind == "shared_ratio" and section.shared_ratio is None:
        yield (
            "task.partition.shared_ratio: null does not say which share of each class all clients "
            "have alike; valid with task.partition.kind = shared_ratio: 0 to 1, such as 0.2"
        )
    if config.task.dataset == OWNED and section.kind != "domain":
        yield (
            f"task.partition.kind: {section.kind} does not fit task.dataset = {OWNED}, whose "
            "folders say who has what; valid: domain"
        )
    if section.kind == "hierarchical_dirichlet" and config.task.shots is not None:
        yield (
            f"task.shots: {config.task.shots} does not fit task.partition.kind = "
            "hierarchical_dirichlet, which deals out all images; valid: null"
        )
    yield from _many_clients(config)
    by_client = section.images_per_client is not None
    if config.task.shots is None and config.task.dataset in MADE and not by_client:
        yield (
            f"task.shots: null takes all training examples, and {config.task.dataset} makes as "
            "many as are asked for; valid: 1 or more"
        )
    # The same domain twice is the same pictures twice, and two clients could be dealt one each.
    for name in domains:
        if domains.count(name) > 1:
            yield f"task.domains: {name!r} is listed twice; valid: each domain once"


def _shots_of_records(config: RunSections) -> Iterator[str]:
    task, facts = config.task, config.mechanism.facts
    # What is made from the seed has as many records as are asked for.
    is_own = task.partition.kind == "domain" and task.dataset not in MADE
    if facts.unit == "record" and is_own and task.shots is not None and config.federation is None:
        yield (
            f"task.shots: {task.shots} of each class does not fit privacy.mechanism = "
            f"{facts.name}, whose epsilon is about one record: of a fixed number one record more "
            "displaces another; valid with task.partition.kind = domain: null"
        )


def _many_clients(config: RunSections) -> Iterator[str]:
    section, shots = config.task.partition, config.task.shots
    if section.images_per_client is not None and shots is not None:
        yield (
            f"task.shots: {shots} of each class does not fit task.partition.images_per_client = "
            f"{section.images_per_client}, which are drawn whatever their class; valid: null"
        )
    if section.classes_per_client is not None and section.shared_classes is not None:
        yield (
            f"task.partition.shared_classes: {section.shared_classes} has no meaning with "
            f"task.partition.classes_per_client = {section.classes_per_client}, where all classes "
            "are shared; valid: null"
        )
    if section.classes_per_client is not None and section.slices is not None:
        yield (
            f"task.partition.slices: {section.slices} has no meaning with "
            f"task.partition.classes_per_client = {section.classes_per_client}, where classes are "
            "drawn one by one; valid: null"
        )


def _senses(config: RunSections) -> Iterator[str]:
    senses, dataset, protocol = config.task.senses, config.task.dataset, config.evaluation.protocol
    if senses is not None and dataset != "homonyms":
        yield (
            f"task.senses: {senses} has no meaning with task.dataset = {dataset}; valid: null, or "
            "the data set homonyms"
        )
    if senses == "clients" and protocol not in ("client_mean", "all_classes"):
        yield (
            f"task.senses: clients does not fit evaluation.protocol = {protocol}, which measures "
            "clients of all senses on the same images; valid: styles, one sense for all, or "
            "client_mean or all_classes"
        )


def _protocol(config: RunSections) -> Iterator[str]:
    protocol, held_out = config.evaluation.protocol, config.task.held_out_domain
    measured, clients = config.evaluation.measured_clients, config.task.clients
    if measured is not None and measured > clients:
        yield (
            f"evaluation.measured_clients: {measured} is more than the clients; valid: null, or 1 "
            f"to task.clients = {clients}"
        )
    kind = config.task.partition.kind
    # Its pool has no test images that nobody trains on.
    if kind == "shared_ratio" and protocol == "base_to_novel":
        yield (
            "task.partition.kind: shared_ratio does not fit evaluation.protocol = base_to_novel, "
            "as it deals out test images for training; valid: another kind, or client_mean"
        )
    if protocol != "leave_one_domain_out":
        if held_out is not None:
            yield (
                f"task.held_out_domain: {held_out!r} has no meaning with evaluation.protocol = "
                f"{protocol}; valid: null, or the protocol leave_one_domain_out"
            )
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
    if left < config.cohort.minimum:
        yield (
            f"cohort.dropout_rate: {config.cohort.dropout_rate} leaves {left} of {size} clients; "
            f"cohort.minimum = {config.cohort.minimum} must remain"
        )


def _cohort_key(config: RunSections) -> str:
    """Return the key that says how many clients a round has; of two, the one that was given."""
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
    if threshold > size:
        yield (
            f"secure_aggregation.threshold: {threshold} is more than the cohort; valid: "
            f"{section.corrupt + 1} to {_cohort_key(config)} = {size}"
        )
    if threshold < 2:
        yield "secure_aggregation.threshold: 1 would open a single update; valid: at least 2"
    if threshold <= section.corrupt:
        yield (
            f"secure_aggregation.threshold: {threshold} does not exceed "
            f"secure_aggregation.corrupt = {section.corrupt}; valid: at least {section.corrupt + 1}"
        )
    left = size - config.lost_per_round
    if left < threshold:
        yield (
            f"cohort.dropout_rate: {config.cohort.dropout_rate} leaves {left} of {size} clients, "
            f"fewer than secure_aggregation.threshold = {threshold}"
        )

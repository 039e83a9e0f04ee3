"""Settings that do nothing in a run as it is configured, said before its first round.

None of them is refused: a sweep or an override leaves them behind legitimately, as masks that are
switched off leave their threshold. What contradicts a choice is refused by the other rules.

Each rule gives one sentence that names the field, its value and what it would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from platform.config.rules import MADE
from platform.config.run import RunConfig
from platform.config.schema import SecureAggregationConfig
from platform.config.sections import TaskConfig

_WITHOUT_FILES: Final = (*MADE, "digits")
_OF_MASKS: Final = ("threshold", "graph", "corrupt", "enrolment", "largest_weight")


def void_settings(config: RunConfig) -> Iterator[str]:
    """Yield what of a configuration does nothing, whatever its method is."""
    yield from _task(config)
    yield from _rounds(config)
    yield from _masks(config)


def _task(config: RunConfig) -> Iterator[str]:
    task, fields = config.task, TaskConfig.model_fields
    if task.root != fields["root"].default and task.dataset in _WITHOUT_FILES:
        yield (
            f"task.root: {task.root} is not read, as task.dataset = {task.dataset} comes with the "
            "program; your own images are task.dataset: images"
        )
    if task.test_per_class != fields["test_per_class"].default and task.dataset not in MADE:
        yield (
            f"task.test_per_class: {task.test_per_class} does nothing with task.dataset = "
            f"{task.dataset}, whose test images are what its files hold; it is for "
            f"{', '.join(MADE)}"
        )


def _rounds(config: RunConfig) -> Iterator[str]:
    cohort, every = config.cohort, config.evaluation.every
    if cohort.dropout_rate and not config.lost_per_round and not config.has_secret_cohorts:
        yield (
            f"cohort.dropout_rate: {cohort.dropout_rate:g} of {config.cohort_size} clients is less "
            "than half a client, so nobody is lost; it takes a larger rate or more clients"
        )
    if every > config.rounds:
        yield (
            f"evaluation.every: {every} is more than rounds = {config.rounds}, so only the last "
            "round is measured"
        )
    if cohort.sampling == "poisson" and config.cohort_size == config.task.clients:
        yield (
            f"cohort.sampling: poisson draws all {config.task.clients} clients in every round, as "
            "cohort.size is their number, so it amplifies nothing; it takes a smaller cohort.size"
        )


def _masks(config: RunConfig) -> Iterator[str]:
    section = config.secure_aggregation
    if section.enabled:
        return
    fields = SecureAggregationConfig.model_fields
    given = [name for name in _OF_MASKS if getattr(section, name) != fields[name].default]
    for name in given:
        yield (
            f"secure_aggregation.{name}: {getattr(section, name)} does nothing with "
            "secure_aggregation.enabled = false, which shows the server every upload; it takes "
            "enabled: true"
        )

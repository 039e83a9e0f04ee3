"""Checks of a federation whose clients are processes of their own.

Nobody can measure there what a simulation measures, and nothing may be dealt out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from platform.config.federation_section import FederationConfig
from platform.config.schema import RunSections

HELD: Final = "held_by_clients"
"""The data set of such a federation: what each client has in its own folder."""


def federation_problems(config: RunSections) -> Iterator[str]:
    """Yield what contradicts a federation, or its absence."""
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
    yield from _numbers(section, config)
    yield from _simulations_only(config)


def _numbers(section: FederationConfig, config: RunSections) -> Iterator[str]:
    """Yield what is wrong with the numbers of clients that are enough for something."""
    needed = max(
        config.cohort.minimum, config.threshold if config.secure_aggregation.enabled else 1
    )
    for field, enough, most, why in (
        ("start_with", section.start_with, len(section.clients), _CHARGED),
        ("go_on_with", section.go_on_with, config.cohort_size, _TIMED),
    ):
        if enough is None:
            continue
        if not needed <= enough <= most:
            yield (
                f"federation.{field}: {enough} is not a number of clients that a round can be held "
                f"with; valid: null, or {needed} to {most}"
            )
        if config.has_secret_cohorts:
            yield (
                f"federation.{field}: {enough} does not go with cohorts that are drawn in secret, "
                f"{why}; valid: null"
            )


_CHARGED: Final = "as what a draw costs is charged to all clients from the first round on"
_TIMED: Final = "as who answers first is no draw, and what is drawn costs less for a draw only"


def _simulations_only(config: RunSections) -> Iterator[str]:
    evaluation, task = config.evaluation, config.task
    for field, value, valid in (
        ("evaluation.local_twins", evaluation.local_twins, False),
        ("evaluation.worth_of_sharing", evaluation.worth_of_sharing, False),
        ("evaluation.measured_clients", evaluation.measured_clients, None),
        ("evaluation.protocol", evaluation.protocol, "client_mean"),
        ("evaluation.selection", evaluation.selection, "last"),
        ("cohort.dropout_rate", config.cohort.dropout_rate, 0.0),
        ("task.new_clients", task.new_clients, 0),
        ("task.domains", task.domains, None),
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


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)

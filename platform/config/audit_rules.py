"""What an audit by canary clients needs, and what it cannot be combined with: `audit`.

Each rule gives one sentence that names the field, its value and what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from platform.config.schema import RunSections

MOST: Final = 10_000
"""Canaries; a run with more of them than that would be about nothing else."""


def audit_problems(config: RunSections) -> Iterator[str]:
    """Yield contradictions between `audit` and all else."""
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
    yield from _mechanism(config)
    yield from _unlike(config)


def _mechanism(config: RunSections) -> Iterator[str]:
    mechanism = config.mechanism
    valid = [
        other.name
        for other in config.mechanisms
        if other.facts.claims and not (other.facts.is_in_steps or other.facts.noises_alone)
    ]
    if mechanism.name not in valid:
        yield (
            f"audit: canary clients are seen in noised sums, and privacy.mechanism = "
            f"{mechanism.name} has its noise elsewhere, or none; valid: null, or one of "
            f"{', '.join(valid)}"
        )


def _unlike(config: RunSections) -> Iterator[str]:
    """Yield what canaries are not built for, or would not be covered in."""
    secure, cohort = config.secure_aggregation, config.cohort
    for field, value, valid, why in (
        ("cohort.size", config.cohort_size, config.task.clients, _ALWAYS),
        ("cohort.sampling", cohort.sampling, "fixed_size", _ALWAYS),
        ("cohort.dropout_rate", cohort.dropout_rate, 0.0, _ALWAYS),
        ("secure_aggregation.adversary", secure.adversary, "semi_honest", _UNENROLLED),
        ("secure_aggregation.graph", _graph(secure.graph), "complete", _MANY),
        ("pool.kind", config.pool.kind, "entries", "as a canary is in no group"),
        ("privacy.subspace", config.privacy.subspace, "none", "which has other directions a round"),
        ("privacy.adaptive_clipping", _given(config.privacy.adaptive_clipping), None, _NORM),
        ("privacy.lifetime_budget", config.privacy.lifetime_budget, None, _ONE_LIFE),
        ("evaluation.release", config.evaluation.release, "none", "as a canary has no accuracy"),
        ("method.server_optimizer", _given(config.method.server_optimizer), None, _LOOK),
        ("phase_two_of", config.phase_two_of, None, "which has no sums of its own"),
    ):
        if value != valid:
            yield (
                f"{field}: {value} does not go with canary clients, {why}; valid: "
                f"{'null' if valid is None else valid}, or audit: null"
            )


_ALWAYS: Final = "each of whom is in every sum"
_UNENROLLED: Final = "whose keys are in no enrolment file"
_MANY: Final = "more of whom may collude than a client's neighbours withstand"
_NORM: Final = "whose uploads have one norm in all rounds"
_ONE_LIFE: Final = "who live for one run"
_LOOK: Final = "whose uploads are looked for in the sum of all changes of the model"


def _graph(asked: str) -> str:
    """Return the graph that there will be: with canaries nobody looks for a thinner one."""
    return asked if asked == "k_regular" else "complete"


def _given(section: object) -> str | None:
    return None if section is None else "a section"

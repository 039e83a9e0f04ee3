"""What must be said of a run before any of its numbers, so that none is misread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from platform.agreement import Agreed
from platform.agreement.attempts import stopping_warnings
from platform.agreement.statements import stopping_of
from platform.experiment.caveats import canary_warnings, privacy_warnings
from platform.reports.hazards import (
    large_epsilon,
    other_releases,
    own_code,
    trusted_records,
    unit_of_privacy,
)
from platform.reports.subject import Subject
from platform.rounds.documents import in_rounds


def stated_warnings(agreed: Agreed) -> list[str]:
    """Return what must be said of a run so that its numbers are not misread, finished or not."""
    if agreed.summary is not None:
        return list(agreed.summary["warnings"])
    over = len(in_rounds([row.document for row in agreed.spending.rounds]))
    document = {"status": agreed.records.run.status, "planned_rounds": agreed.config.rounds}
    return [f"the run {unfinished_words(document, over)}", *claim_warnings(agreed)]


def claim_warnings(agreed: Agreed) -> list[str]:
    """Return what must be said of a run's claim, as far as its configuration says it."""
    if agreed.is_unpriced:
        return [
            f"mechanism {agreed.config.mechanism.name}: nothing was charged so far; it adds no "
            "noise, so the first release has no finite epsilon"
        ]
    if not agreed.spending.ledger:
        # Where nothing has been charged, nothing was released that could be misread.
        return []
    stopping = stopping_of(agreed.spending, agreed.config)
    return [*stopping_warnings(stopping), *privacy_warnings(agreed.config)]


def unfinished_words(document: Mapping[str, Any], over: int) -> str:
    """Return where a run stands that has not finished, in words that nobody takes for an end.

    Args:
        document: Its `status` and `planned_rounds`.
        over: Rounds that are.
    """
    status = document["status"]
    # Nobody can write down that a process was killed.
    status = "running, unless its process was killed" if status == "running" else status
    rounds = f"{over} of {document['planned_rounds']} rounds"
    return f"has not finished ({status}): {rounds} are over, and all numbers are so far only"


ADDED = (
    large_epsilon,
    unit_of_privacy,
    other_releases,
    own_code,
    trusted_records,
)
"""Hazards that are warned of beside what a run says of itself, most important first."""


def report_warnings(subject: Subject) -> tuple[str, ...]:
    """Return the warnings of a report: hazards that are there, then what the run says of itself."""
    found = (*_canaries(subject), *_hazards(subject), *_budgets(subject), *_stated(subject))
    return tuple(dict.fromkeys(found))


def _canaries(subject: Subject) -> Iterator[str]:
    yield from canary_warnings((subject.summary or {}).get("canaries"))


def _hazards(subject: Subject) -> Iterator[str]:
    for hazard in ADDED:
        answer = hazard(subject)
        if answer.status == "hazard":
            yield answer.says


def _budgets(subject: Subject) -> Iterator[str]:
    problems = {one.lifetime.problem for one in subject.budget.clients}
    for problem in sorted(text for text in problems if text is not None):
        yield f"what a client has spent over its lifetime has no epsilon: {problem}"


def _stated(subject: Subject) -> Iterator[str]:
    yield from stated_warnings(subject.agreed)

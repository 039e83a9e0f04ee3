"""Whether a run's newest attempt is the one that its audit log saw opened, and as open as it says.

An attempt that is forgotten, or that was ended and is open again, would be carried out twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from platform.agreement.reading import RunRecords, TrailEntry
from platform.disk.log_files import document_digest

ENDED = ("round.aborted", "round.committed", "round.lost")


def attempt_disagreements(records: RunRecords) -> Iterator[str]:
    """Yield where the newest attempt is not what the audit log saw."""
    opened, newest = records.entries("round.opened"), records.attempt
    if not opened or newest is None:
        if opened or newest is not None:
            told = "none" if not opened else opened[-1].name
            row = "none" if newest is None else f"round {newest.round_number}"
            yield f"its newest attempt is of {row}, but the audit log saw {told} opened"
        return
    last = opened[-1]
    key = (last.entry.round, last.detail.get("attempt"))
    if (newest.round_number, newest.attempt) != key:
        yield (
            f"its newest attempt is round {newest.round_number}, attempt {newest.attempt}, but "
            f"{last.name} opened round {key[0]}, attempt {key[1]}"
        )
        return
    ended = _ending(records, last)
    if newest.is_open == (ended is not None):
        state = "open" if newest.is_open else "closed"
        told = "no audit entry ended it" if ended is None else f"{ended.name} ended it"
        yield f"its attempt {newest.attempt} at round {newest.round_number} is {state}, but {told}"
    cohort, sealed = newest.plan.get("cohort"), last.detail.get("plan_sha256")
    if sealed is not None and sealed != document_digest(newest.plan):
        yield f"the plan of its newest attempt is not the one that {last.name} commits to"
    elif sealed is None and len(cohort or ()) != last.detail.get("cohort"):
        yield f"the cohort of its newest attempt is not of the size that {last.name} says"


def _ending(records: RunRecords, opened: TrailEntry) -> TrailEntry | None:
    for item in records.entries(*ENDED):
        same = item.entry.round == opened.entry.round
        if same and item.detail.get("attempt") == opened.detail.get("attempt"):
            return item
    return None

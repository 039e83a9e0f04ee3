"""One run's records in the coordinator's database, read at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from platform.config import RunConfig
from platform.rounds.audit_trail import PRUNED, parsed_detail
from storage import (
    AttemptRecord,
    AuditEntry,
    AuditHead,
    LedgerRow,
    RoundRecord,
    RunRecord,
    StateRecord,
    UnitOfWork,
)

ENDINGS = ("round.committed", "round.lost")
"""The actions of audit entries that end a round."""


@dataclass(frozen=True)
class TrailEntry:
    """One audit entry, its detail parsed."""

    entry: AuditEntry
    detail: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"audit entry {self.entry.sequence} ({self.entry.action})"


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """One run in the coordinator's database.

    Attributes:
        rounds: The rounds that are over, in order.
        state: The newest server state, None before the first.
        attempt: The newest attempt at a round, None before the first.
        trail: The audit log, whose chain holds.
        generations: Number of pool entries of each living generation.
    """

    run: RunRecord
    rounds: tuple[RoundRecord, ...]
    state: StateRecord | None
    attempt: AttemptRecord | None
    ledger: tuple[LedgerRow, ...]
    trail: tuple[TrailEntry, ...]
    head: AuditHead
    generations: Mapping[int, int]

    @property
    def run_id(self) -> str:
        """The run."""
        return self.run.run_id

    @property
    def is_pruned(self) -> bool:
        """Whether its models were erased, so that no run can continue from it."""
        return bool(self.entries(PRUNED))

    def entries(self, *actions: str) -> tuple[TrailEntry, ...]:
        """Return the audit entries of some actions, in order."""
        return tuple(item for item in self.trail if item.entry.action in actions)


def read_records(uow: UnitOfWork, run_id: str, head: AuditHead | None = None) -> RunRecords:
    """Read a run, whose audit chain must hold and go through `head`.

    One transaction reads all records, so they are of one moment. `head` is the end of the audit
    chain at an earlier time, None without a kept end.
    """
    reached = uow.audit.verify(run_id, head)
    rounds, attempt = uow.rounds.all(run_id), uow.attempts.newest(run_id)
    for row in rounds:
        if not isinstance(row.document.get("survivors"), list):
            raise ValueError(f"the document of round {row.round_number} has no list of survivors")
    if attempt is not None and not isinstance(attempt.plan.get("cohort"), list):
        raise ValueError(f"the plan of its attempt {attempt.attempt} has no list of a cohort")
    generations = Counter(entry.generation for entry in uow.pool.entries(run_id))
    return RunRecords(
        run=uow.runs.get(run_id),
        rounds=rounds,
        state=uow.states.latest(run_id),
        attempt=attempt,
        ledger=uow.ledger.rows(run_id),
        trail=tuple(TrailEntry(e, parsed_detail(e)) for e in uow.audit.query(run=run_id)),
        head=reached,
        generations=generations,
    )


@dataclass(frozen=True)
class Agreed:
    """A run whose records agree.

    Attributes:
        spending: The records of the run whose ledger counts: the run itself, or its first phase.
        summary: The content of `summary.json`, None for a run that has not finished.
    """

    config: RunConfig
    records: RunRecords
    spending: RunRecords
    summary: Mapping[str, Any] | None

    @property
    def is_unpriced(self) -> bool:
        """Whether it has no noise and has not begun its first attempt.

        Its first release will have no finite epsilon, so the 0 of an empty ledger would mislead.
        After the first attempt was opened, the ledger tells whether the method releases anything.
        """
        bare = not self.config.mechanism.facts.claims
        return bare and self.summary is None and self.spending.attempt is None

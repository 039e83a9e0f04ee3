"""Attempts at rounds: what was fixed before anything was sent, and what came back so far.

An attempt is executed once: whoever goes on with a run continues the open attempt from the stages
kept here. They may hold masked sums, so they are erased when the attempt ends (the database runs
with ``secure_delete``); the attempt's number stays, so that it is never given out again.
"""

from __future__ import annotations

from collections.abc import Mapping

from storage._validate import (
    canonical_json,
    require_at_least_one,
    require_bytes,
    require_text,
    stored_object,
)
from storage.errors import AlreadyExistsError, InvalidRecordError, NotFound
from storage.records import AttemptRecord
from storage.runs import require_run
from storage.sealing import Rows
from storage.tables import Attempts, Stages


class AttemptRepository:
    """The attempts of all runs; of each run at most one is open."""

    def __init__(self, rows: Rows) -> None:
        """Work within one transaction."""
        self._rows = rows

    def open(
        self, run_id: str, round_number: int, attempt: int, plan: Mapping[str, object]
    ) -> None:
        """Add an attempt; commit before anything is sent.

        Args:
            run_id: The run.
            round_number: The round, from 1.
            attempt: The attempt, from 1.
            plan: What is fixed about it, a JSON object.

        Raises:
            NotFound: Unknown run.
            AlreadyExistsError: Another attempt is open.
            InvalidRecordError: The attempt is not newer than all others, or the plan is not JSON.
        """
        require_at_least_one(round_number=round_number, attempt=attempt)
        text, newest = canonical_json("plan", plan), self.newest(run_id)
        if newest is not None and newest.is_open:
            raise AlreadyExistsError(
                f"round {newest.round_number}, attempt {newest.attempt} of run {run_id!r} is open"
                " still"
            )
        if newest is not None and (round_number, attempt) <= (newest.round_number, newest.attempt):
            raise InvalidRecordError(
                f"round {round_number}, attempt {attempt} is not newer than round"
                f" {newest.round_number}, attempt {newest.attempt} of run {run_id!r}"
            )
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        self._rows.insert(Attempts, {**key, "plan": text, "is_open": True})

    def newest(self, run_id: str) -> AttemptRecord | None:
        """Return the run's newest attempt, None before the first.

        Raises:
            NotFound: Unknown run.
            DatabaseDamaged: If its plan is no JSON object.
        """
        require_run(self._rows, run_id)
        order = ("round_number", "attempt")
        rows = self._rows.read(
            Attempts, {"run_id": run_id}, order=order, newest_first=True, limit=1
        )
        if not rows:
            return None
        row = rows[0]
        plan = stored_object(row.plan, f"the plan of attempt {row.attempt}")
        return AttemptRecord(row.round_number, row.attempt, plan, row.is_open)

    def add_stage(
        self, run_id: str, round_number: int, attempt: int, *, stage: str, blob: bytes
    ) -> None:
        """Keep what a stage of the open attempt yielded; commit before the next is asked for.

        Raises:
            NotFound: The attempt is not open.
            AlreadyExistsError: The stage is kept already.
        """
        require_text(stage=stage)
        require_bytes(blob=blob)
        self._require_open(run_id, round_number, attempt)
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        self._rows.insert(Stages, {**key, "stage": stage, "blob": blob})

    def stages(self, run_id: str, round_number: int, attempt: int) -> dict[str, bytes]:
        """Return what the stages of an attempt yielded, by stage; nothing once it has ended."""
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        return {row.stage: row.blob for row in self._rows.read(Stages, key)}

    def erase_stages(self, run_id: str) -> None:
        """Erase what the stages of a run's open attempt yielded; it stays open, and charged."""
        self._rows.delete(Stages, {"run_id": run_id})

    def close(self, run_id: str, round_number: int, attempt: int) -> None:
        """End an attempt, committed or given up, and erase what its stages yielded.

        Raises:
            NotFound: The attempt is not open.
        """
        self._require_open(run_id, round_number, attempt)
        self._rows.delete(Stages, {"run_id": run_id})
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        self._rows.update(Attempts, key, is_open=False)

    def _require_open(self, run_id: str, round_number: int, attempt: int) -> None:
        newest = self.newest(run_id)
        asked = (round_number, attempt, True)
        if newest is None or (newest.round_number, newest.attempt, newest.is_open) != asked:
            raise NotFound(f"round {round_number}, attempt {attempt} of run {run_id!r} is not open")

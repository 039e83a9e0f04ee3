"""Repositories of runs, of server states, of committed rounds and of attempts at rounds.

An attempt keeps its fixed plan and the results so far. An attempt is executed once: a process that
continues a run continues the open attempt from the stages kept here. Stages may hold masked sums,
so they are erased when the attempt ends (the database runs with `secure_delete`); the attempt's
number stays, so that it is never given out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from storage._validate import (
    canonical_json,
    require_at_least_one,
    require_bytes,
    require_count,
    require_member,
    require_text,
    stored_object,
    utc_text,
)
from storage.errors import AlreadyExistsError, InvalidRecordError, NotFound, run_not_found
from storage.records import (
    RUN_STATUSES,
    AttemptRecord,
    RoundRecord,
    RunRecord,
    RunStatus,
    StateRecord,
)
from storage.sealing import Repository, Rows
from storage.tables import Attempts, Rounds, Runs, Stages, States

STATES_KEPT = 2
_NEWEST_ROUND = (
    "SELECT round_number, attempt FROM rounds WHERE run_id = ? ORDER BY round_number DESC LIMIT 1"
)


def require_run(rows: Rows, run_id: str) -> None:
    """Raise `NotFound` unless the run exists."""
    require_text(run_id=run_id)
    if not rows.column(Runs, "run_id", {"run_id": run_id}):
        raise run_not_found(run_id)


class RunRepository:
    """The runs that this database knows."""

    def __init__(self, rows: Rows, now: Callable[[], datetime]) -> None:
        """Work within one transaction."""
        self._rows = rows
        self._now = now

    def create(
        self,
        run_id: str,
        *,
        name: str,
        config_json: str,
        config_digest: str,
        versions_json: str,
        created: datetime | None = None,
    ) -> RunRecord:
        """Add a run, with status `running`, created at a moment with a time zone or now.

        Raises:
            AlreadyExistsError: There is a run with this key.
            InvalidRecordError: A value is empty, or the time has no zone.
        """
        require_text(run_id=run_id, name=name, config_json=config_json)
        require_text(config_digest=config_digest, versions_json=versions_json)
        if self._find(run_id) is not None:
            raise AlreadyExistsError(f"run {run_id!r} exists already")
        moment = utc_text("created", self._now() if created is None else created)
        record = RunRecord(
            run_id=run_id,
            name=name,
            config_json=config_json,
            config_digest=config_digest,
            versions_json=versions_json,
            status="running",
            created=moment,
        )
        self._rows.insert(Runs, asdict(record))
        return record

    def get(self, run_id: str) -> RunRecord:
        """Return the run."""
        found = self._find(run_id)
        if found is None:
            raise run_not_found(run_id)
        return found

    def list(self) -> tuple[RunRecord, ...]:
        """Return all runs, oldest first."""
        rows = self._rows.read(Runs, {}, order=("created", "run_id"))
        return tuple(_run_record(row) for row in rows)

    def set_status(self, run_id: str, status: RunStatus) -> None:
        """Set the run's status, one of `RUN_STATUSES`."""
        require_member("status", status, RUN_STATUSES)
        require_run(self._rows, run_id)
        self._rows.update(Runs, {"run_id": run_id}, status=status)

    def _find(self, run_id: str) -> RunRecord | None:
        require_text(run_id=run_id)
        rows = self._rows.read(Runs, {"run_id": run_id})
        return _run_record(rows[0]) if rows else None


class StateRepository(Repository):
    """Server states as opaque bytes; only a run's newest two are kept."""

    def save(self, run_id: str, round_number: int, blob: bytes) -> None:
        """Add a round's state, and keep the newest two; `InvalidRecordError` if it is not newer."""
        require_count(round_number=round_number)
        require_bytes(blob=blob)
        require_run(self._rows, run_id)
        rounds = self._rows.column(States, "round_number", {"run_id": run_id}, newest_first=True)
        if rounds and round_number <= rounds[0]:
            raise InvalidRecordError(
                f"round_number is {round_number}; the newest state of run {run_id!r} is of round"
                f" {rounds[0]}, and states are only added after it"
            )
        row = {"run_id": run_id, "round_number": round_number, "blob": blob}
        self._rows.insert(States, row)
        old = rounds[STATES_KEPT - 1 :]
        self._rows.delete(States, {"run_id": run_id, "round_number": old})

    def rounds(self, run_id: str) -> tuple[int, ...]:
        """Return the rounds of the kept states, without reading a state."""
        require_run(self._rows, run_id)
        return tuple(sorted(self._rows.column(States, "round_number", {"run_id": run_id})))

    def erase(self, run_id: str) -> None:
        """Delete all states of a run, so that nothing continues it."""
        require_run(self._rows, run_id)
        self._rows.delete(States, {"run_id": run_id})

    def latest(self, run_id: str) -> StateRecord | None:
        """Return the newest state, as (round_number, blob), or None before the first."""
        require_run(self._rows, run_id)
        rows = self._rows.read(
            States, {"run_id": run_id}, order=("round_number",), newest_first=True, limit=1
        )
        return StateRecord(rows[0].round_number, rows[0].blob) if rows else None


class RoundRepository(Repository):
    """Committed rounds, each with its metrics."""

    def add(
        self, run_id: str, round_number: int, attempt: int, document: Mapping[str, object]
    ) -> None:
        """Record that an attempt of a round is committed, with its metrics, a JSON object.

        Raises:
            AlreadyExistsError: The round was committed before.
            InvalidRecordError: The document is not JSON.
        """
        require_count(round_number=round_number, attempt=attempt)
        text = canonical_json("document", document)
        require_run(self._rows, run_id)
        key = {"run_id": run_id, "round_number": round_number}
        if self._rows.column(Rounds, "attempt", key):
            raise AlreadyExistsError(f"round {round_number} of run {run_id!r} exists already")
        self._rows.insert(Rounds, {**key, "attempt": attempt, "document": text})

    def newest(self, run_id: str) -> tuple[int, int] | None:
        """Return round and attempt of the newest committed round, None before the first."""
        found = self._rows.statements.run(_NEWEST_ROUND, (run_id,))
        return (int(found[0][0]), int(found[0][1])) if found else None

    def all(self, run_id: str) -> tuple[RoundRecord, ...]:
        """Return the committed rounds in order; `DatabaseDamaged` if a document is not JSON."""
        require_run(self._rows, run_id)
        rows = self._rows.read(Rounds, {"run_id": run_id}, order=("round_number",))
        found = []
        for row in rows:
            document = stored_object(row.document, f"the document of round {row.round_number}")
            found.append(RoundRecord(row.round_number, row.attempt, document))
        return tuple(found)


def _run_record(row: Any) -> RunRecord:
    names = [field.name for field in fields(RunRecord)]
    return RunRecord(**{name: getattr(row, name) for name in names})


class AttemptRepository(Repository):
    """The attempts of all runs; of each run at most one is open."""

    def open(
        self, run_id: str, round_number: int, attempt: int, plan: Mapping[str, object]
    ) -> None:
        """Add an attempt (both numbers from 1) with its fixed plan; commit before sending.

        Raises:
            AlreadyExistsError: Another attempt is open.
            InvalidRecordError: The attempt is not newer than all others, or the plan is not JSON.
        """
        require_at_least_one(round_number=round_number, attempt=attempt)
        text, newest = canonical_json("plan", plan), self.newest(run_id)
        if newest is not None and newest.is_open:
            raise AlreadyExistsError(
                f"round {newest.round_number}, attempt {newest.attempt} of run {run_id!r} is still"
                " open"
            )
        if newest is not None and (round_number, attempt) <= (newest.round_number, newest.attempt):
            raise InvalidRecordError(
                f"round {round_number}, attempt {attempt} is not newer than round"
                f" {newest.round_number}, attempt {newest.attempt} of run {run_id!r}"
            )
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        self._rows.insert(Attempts, {**key, "plan": text, "is_open": True})

    def newest(self, run_id: str) -> AttemptRecord | None:
        """Return the run's newest attempt, None before the first."""
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
        """Keep the result of a stage of the open attempt; commit before asking for the next.

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
        """Return the results of an attempt's stages, by stage; empty once the attempt has ended."""
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        return {row.stage: row.blob for row in self._rows.read(Stages, key)}

    def erase_stages(self, run_id: str) -> None:
        """Erase the results of the open attempt's stages; it stays open, and charged."""
        self._rows.delete(Stages, {"run_id": run_id})

    def close(self, run_id: str, round_number: int, attempt: int) -> None:
        """End an attempt, and erase its stages' results; `NotFound` if it is not open."""
        self._require_open(run_id, round_number, attempt)
        self._rows.delete(Stages, {"run_id": run_id})
        key = {"run_id": run_id, "round_number": round_number, "attempt": attempt}
        self._rows.update(Attempts, key, is_open=False)

    def _require_open(self, run_id: str, round_number: int, attempt: int) -> None:
        newest = self.newest(run_id)
        asked = (round_number, attempt, True)
        if newest is None or (newest.round_number, newest.attempt, newest.is_open) != asked:
            raise NotFound(f"round {round_number}, attempt {attempt} of run {run_id!r} is not open")

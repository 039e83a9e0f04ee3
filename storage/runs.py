"""Repositories of runs, of server states and of committed rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import cast

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from storage._validate import (
    canonical_json,
    require_bytes,
    require_count,
    require_member,
    require_text,
    utc_text,
)
from storage.errors import AlreadyExistsError, InvalidRecordError, run_not_found
from storage.records import RUN_STATUSES, RoundRecord, RunRecord, RunStatus, StateRecord
from storage.tables import Rounds, Runs, States

STATES_KEPT = 2


def require_run(session: Session, run_id: str) -> None:
    """The run exists.

    Raises:
        NotFound: It does not.
    """
    require_text(run_id=run_id)
    if session.scalar(select(Runs.run_id).where(Runs.run_id == run_id)) is None:
        raise run_not_found(run_id)


class RunRepository:
    """The runs that this database knows."""

    def __init__(self, session: Session, now: Callable[[], datetime]) -> None:
        """Work within the session's transaction."""
        self._session = session
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
        """Add a run, with status ``running``.

        Args:
            run_id: Its key, new.
            name: For people.
            config_json: Effective configuration, JSON text.
            config_digest: Digest of the configuration's canonical form.
            versions_json: Versions of the software, JSON text.
            created: With a time zone; default is now.

        Raises:
            AlreadyExistsError: There is a run with this key.
            InvalidRecordError: A value is empty, or the time has no zone.
        """
        require_text(run_id=run_id, name=name, config_json=config_json)
        require_text(config_digest=config_digest, versions_json=versions_json)
        if self._find(run_id) is not None:
            raise AlreadyExistsError(f"run {run_id!r} exists already")
        moment = utc_text("created", self._now() if created is None else created)
        row = Runs(
            run_id=run_id,
            name=name,
            config_json=config_json,
            config_digest=config_digest,
            versions_json=versions_json,
            status="running",
            created=moment,
        )
        self._session.add(row)
        self._session.flush()
        return _run_record(row)

    def get(self, run_id: str) -> RunRecord:
        """The run.

        Raises:
            NotFound: There is none with this key.
        """
        row = self._find(run_id)
        if row is None:
            raise run_not_found(run_id)
        return _run_record(row)

    def list(self) -> tuple[RunRecord, ...]:
        """All runs, oldest first."""
        rows = self._session.scalars(select(Runs).order_by(Runs.created, Runs.run_id))
        return tuple(_run_record(row) for row in rows)

    def set_status(self, run_id: str, status: RunStatus) -> None:
        """Say where the run stands.

        Raises:
            NotFound: Unknown run.
            InvalidRecordError: Unknown status.
        """
        require_member("status", status, RUN_STATUSES)
        require_run(self._session, run_id)
        self._session.execute(update(Runs).where(Runs.run_id == run_id).values(status=status))

    def _find(self, run_id: str) -> Runs | None:
        require_text(run_id=run_id)
        return self._session.scalar(select(Runs).where(Runs.run_id == run_id))


class StateRepository:
    """Server states as opaque bytes; only a run's newest two are kept."""

    def __init__(self, session: Session) -> None:
        """Work within the session's transaction."""
        self._session = session

    def save(self, run_id: str, round_number: int, blob: bytes) -> None:
        """Add the state after a round and delete all but the newest two.

        Raises:
            NotFound: Unknown run.
            InvalidRecordError: The round is not newer than the newest state.
        """
        require_count(round_number=round_number)
        require_bytes(blob=blob)
        require_run(self._session, run_id)
        rounds = self._rounds(run_id)
        if rounds and round_number <= rounds[0]:
            raise InvalidRecordError(
                f"round_number is {round_number}; the newest state of run {run_id!r} is of round"
                f" {rounds[0]}, and states are only added after it"
            )
        self._session.execute(
            insert(States).values(run_id=run_id, round_number=round_number, blob=blob)
        )
        self._session.execute(
            delete(States).where(
                States.run_id == run_id,
                States.round_number.in_(rounds[STATES_KEPT - 1 :]),
            )
        )

    def latest(self, run_id: str) -> StateRecord | None:
        """The newest state, as (round_number, blob), or None before the first.

        Raises:
            NotFound: Unknown run.
        """
        require_run(self._session, run_id)
        row = self._session.execute(
            select(States.round_number, States.blob)
            .where(States.run_id == run_id)
            .order_by(States.round_number.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None else StateRecord(row[0], row[1])

    def _rounds(self, run_id: str) -> tuple[int, ...]:
        """Rounds of the stored states, newest first."""
        query = select(States.round_number).where(States.run_id == run_id)
        return tuple(self._session.scalars(query.order_by(States.round_number.desc())))


class RoundRepository:
    """Committed rounds, each with its metrics."""

    def __init__(self, session: Session) -> None:
        """Work within the session's transaction."""
        self._session = session

    def add(
        self, run_id: str, round_number: int, attempt: int, document: Mapping[str, object]
    ) -> None:
        """Record that an attempt of a round is committed.

        Args:
            run_id: The run.
            round_number: The round; each is committed once.
            attempt: The attempt that succeeded.
            document: Its metrics: a JSON object, numbers finite.

        Raises:
            NotFound: Unknown run.
            AlreadyExistsError: The round was committed before.
            InvalidRecordError: The document is not JSON.
        """
        require_count(round_number=round_number, attempt=attempt)
        text = canonical_json("document", document)
        require_run(self._session, run_id)
        key = select(Rounds.attempt).where(
            Rounds.run_id == run_id, Rounds.round_number == round_number
        )
        if self._session.scalar(key) is not None:
            raise AlreadyExistsError(f"round {round_number} of run {run_id!r} exists already")
        self._session.execute(
            insert(Rounds).values(
                run_id=run_id, round_number=round_number, attempt=attempt, document=text
            )
        )

    def all(self, run_id: str) -> tuple[RoundRecord, ...]:
        """The committed rounds in order.

        Raises:
            NotFound: Unknown run.
        """
        require_run(self._session, run_id)
        query = select(Rounds).where(Rounds.run_id == run_id).order_by(Rounds.round_number)
        return tuple(
            RoundRecord(row.round_number, row.attempt, json.loads(row.document))
            for row in self._session.scalars(query)
        )


def _run_record(row: Runs) -> RunRecord:
    return RunRecord(
        run_id=row.run_id,
        name=row.name,
        config_json=row.config_json,
        config_digest=row.config_digest,
        versions_json=row.versions_json,
        status=cast(RunStatus, row.status),
        created=row.created,
    )

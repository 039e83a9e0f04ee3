"""How far a client has come in its newest attempt, kept in its own store.

An attempt is executed once. What a client answered last is kept with the request it answered, so
the same request gets the same bytes, whatever was restarted in between, and the number of the
newest attempt never goes back, so no older attempt is ever answered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from storage._validate import require_bytes, require_count, require_text
from storage.client_tables import Sessions
from storage.errors import InvalidRecordError
from storage.records import SessionRecord
from storage.sealing import insert_sealed, read_sealed, update_sealed

Transaction = Callable[..., AbstractContextManager[Session]]


class ClientSessions:
    """The sessions of one client, at most one for each run."""

    def __init__(self, transaction: Transaction) -> None:
        """Made by `ClientStore` only."""
        self._transaction = transaction

    def newest(self, run_id: str) -> SessionRecord | None:
        """How far the client has come in the run, None before its first attempt."""
        with self._transaction(read_only=True) as session:
            return _read(session, run_id)

    def keep(self, record: SessionRecord) -> None:
        """Takes the place of the run's session; send the reply only after this is durable.

        Raises:
            InvalidRecordError: If the attempt is older than the one kept, or a value is no such.
        """
        _require(record)
        with self._transaction() as session:
            known = _read(session, record.run_id)
            if known is not None and _key(record) < _key(known):
                raise InvalidRecordError(
                    f"round {record.round_number}, attempt {record.attempt} is older than round"
                    f" {known.round_number}, attempt {known.attempt}, which this client answered"
                )
            session.execute(delete(Sessions).where(Sessions.run_id == record.run_id))
            insert_sealed(session, Sessions, asdict(record))

    def forget(self, run_id: str) -> None:
        """Erases request, reply and state of the run's session; its number stays."""
        empty: dict[str, Any] = dict.fromkeys(("request_digest", "reply", "state"), b"")
        with self._transaction() as session:
            update_sealed(session, Sessions, Sessions.run_id == run_id, **empty)


def _read(session: Session, run_id: str) -> SessionRecord | None:
    rows = read_sealed(session, Sessions, Sessions.run_id == run_id)
    names = [field.name for field in fields(SessionRecord)]
    return SessionRecord(*(getattr(rows[0], name) for name in names)) if rows else None


def _key(record: SessionRecord) -> tuple[int, int, int]:
    # A round whose vector has left without noise stays so, whatever attempt follows.
    return record.round_number, record.attempt, record.noiseless_round


def _require(record: SessionRecord) -> None:
    require_text(run_id=record.run_id)
    require_count(round_number=record.round_number, attempt=record.attempt)
    require_count(noiseless_round=record.noiseless_round)
    require_bytes(request_digest=record.request_digest, reply=record.reply, state=record.state)

"""How far a client has come in its newest attempt, kept in its own store.

An attempt is executed once. What a client answered is kept with the request it answered, so the
same request gets the same bytes, whatever was restarted in between; and the number of the newest
attempt never goes back, so no older attempt is ever answered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields

from sqlalchemy import delete
from sqlalchemy.orm import Session

from storage._validate import require_bytes, require_count, require_text
from storage.client_tables import Replies, Sessions
from storage.errors import InvalidRecordError, SessionMovedError
from storage.records import SessionRecord
from storage.sealing import insert_sealed, read_sealed, update_sealed

Transaction = Callable[..., AbstractContextManager[Session]]


class ClientSessions:
    """The sessions of one client, at most one for each run."""

    def __init__(self, transaction: Transaction) -> None:
        """Made by `ClientStore` only."""
        self._transaction = transaction

    def newest(self, run_id: str) -> SessionRecord | None:
        """Return how far the client has come in the run, None before its first attempt."""
        with self._transaction(read_only=True) as session:
            return _read(session, run_id)

    def reply(self, run_id: str, request_digest: bytes) -> bytes | None:
        """Return what was answered to a request of the newest attempt, None if nothing was."""
        where = (Replies.run_id == run_id, Replies.request_digest == request_digest)
        with self._transaction(read_only=True) as session:
            rows = read_sealed(session, Replies, *where)
        return rows[0].reply if rows else None

    def keep(
        self,
        record: SessionRecord,
        *,
        after: SessionRecord | None,
        request_digest: bytes,
        reply: bytes,
    ) -> None:
        """Take the place of the run's session; send the reply only after this is durable.

        Args:
            record: How far the client has come now.
            after: What the answer was made from. Another process of the client may have answered
                something else meanwhile, and then this answer must never leave.
            request_digest: SHA-256 of the request.
            reply: The answer to it.

        Raises:
            SessionMovedError: If the session is not `after` any more.
            InvalidRecordError: If the record goes back behind it, or a value is no such.
        """
        _require(record)
        require_bytes(request_digest=request_digest, reply=reply)
        with self._transaction() as session:
            known = _read(session, record.run_id)
            if known != after:
                raise SessionMovedError(
                    f"the session of run {record.run_id!r} is not the one that was answered from"
                )
            if known is not None:
                _require_forward(known, record)
            is_new = known is None or _place(known) != _place(record)
            session.execute(delete(Sessions).where(Sessions.run_id == record.run_id))
            insert_sealed(session, Sessions, asdict(record))
            if is_new:
                session.execute(delete(Replies).where(Replies.run_id == record.run_id))
            answered = {"request_digest": request_digest, "reply": reply}
            insert_sealed(session, Replies, {"run_id": record.run_id, **answered})

    def forget(self, run_id: str) -> None:
        """Erase replies and state of the run's session; its number stays."""
        with self._transaction() as session:
            session.execute(delete(Replies).where(Replies.run_id == run_id))
            update_sealed(session, Sessions, Sessions.run_id == run_id, state=b"")


def _read(session: Session, run_id: str) -> SessionRecord | None:
    rows = read_sealed(session, Sessions, Sessions.run_id == run_id)
    names = [field.name for field in fields(SessionRecord)]
    return SessionRecord(*(getattr(rows[0], name) for name in names)) if rows else None


def _place(record: SessionRecord) -> tuple[int, int]:
    return record.round_number, record.attempt


def _require_forward(known: SessionRecord, record: SessionRecord) -> None:
    # A round whose vector has left without noise stays so, whatever attempt follows.
    if _place(record) < _place(known) or record.noiseless_round < known.noiseless_round:
        raise InvalidRecordError(
            f"round {record.round_number}, attempt {record.attempt} is older than round"
            f" {known.round_number}, attempt {known.attempt}, which this client answered"
        )


def _require(record: SessionRecord) -> None:
    require_text(run_id=record.run_id)
    require_count(round_number=record.round_number, attempt=record.attempt)
    require_count(noiseless_round=record.noiseless_round)
    require_bytes(state=record.state)

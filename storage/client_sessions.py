"""How far a client has come in its newest attempt, kept in its own store.

An attempt is executed once. What a client answered is kept with the request it answered, so the
same request gets the same bytes, whatever was restarted in between; and the number of the newest
attempt never goes back, so no older attempt is ever answered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from operator import attrgetter
from typing import Final

from storage._validate import require_bytes, require_count, require_text
from storage.client_rows import OwnRows
from storage.client_tables import Replies, Sessions
from storage.errors import AlreadyExistsError, InvalidRecordError, SessionMovedError
from storage.records import SessionRecord

_NAMES: Final = tuple(field.name for field in fields(SessionRecord))
_FACTS: Final = attrgetter(*_NAMES)
Transaction = Callable[..., AbstractContextManager[OwnRows]]


class ClientSessions:
    """The sessions of one client, at most one for each run."""

    def __init__(self, transaction: Transaction) -> None:
        """Made by `ClientStore` only."""
        self._transaction = transaction

    def newest(self, run_id: str) -> SessionRecord | None:
        """Return how far the client has come in the run, None before its first attempt."""
        with self._transaction(read_only=True) as rows:
            return _read(rows, run_id)

    def of_other_runs(self, run_id: str) -> tuple[SessionRecord, ...]:
        """Return how far the client has come in each run but this, by run."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Sessions, {}, order=("run_id",))
        return tuple(SessionRecord(*_FACTS(row)) for row in found if row.run_id != run_id)

    def reply(self, run_id: str, request_digest: bytes) -> bytes | None:
        """Return what was answered to a request of the newest attempt, None if nothing was."""
        where = {"run_id": run_id, "request_digest": request_digest}
        with self._transaction(read_only=True) as rows:
            found = rows.read(Replies, where)
        return found[0].reply if found else None

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
        if after is not None:
            _require_forward(after, record)
        is_new = after is None or _place(after) != _place(record)
        with self._transaction() as rows:
            _move(rows, after, record)
            if is_new:
                rows.delete(Replies, {"run_id": record.run_id})
            answered = {"request_digest": request_digest, "reply": reply}
            rows.insert(Replies, {"run_id": record.run_id, **answered})

    def forget(self, run_id: str) -> None:
        """Erase replies and state of the run's session; its number stays."""
        with self._transaction() as rows:
            rows.delete(Replies, {"run_id": run_id})
            rows.update(Sessions, {"run_id": run_id}, state=b"")


def _read(rows: OwnRows, run_id: str) -> SessionRecord | None:
    found = rows.read(Sessions, {"run_id": run_id})
    return SessionRecord(*_FACTS(found[0])) if found else None


def _move(rows: OwnRows, after: SessionRecord | None, record: SessionRecord) -> None:
    moved = SessionMovedError(
        f"the session of run {record.run_id!r} is not the one that was answered from"
    )
    if after is None:
        try:
            rows.insert(Sessions, _columns(record))
        except AlreadyExistsError as error:
            raise moved from error
    elif not rows.swap(Sessions, _columns(after), _columns(record)):
        raise moved


def _columns(record: SessionRecord) -> dict[str, object]:
    return dict(zip(_NAMES, _FACTS(record), strict=True))


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

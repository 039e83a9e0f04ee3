"""Rows of one client's own store: its sessions, its receipts, and its return from a backup.

`ClientSessions` knows the client's newest attempt. An attempt is executed once. The store keeps an
answer with its request, so the same request gets the same bytes, also after restarts. The number of
the newest attempt never goes back, so the client never answers an older attempt.

`ClientReceipts` keeps the receipts of a coordinator's log, and the newest head of each log.

`ClientRestoring` knows whether the store came back from a backup. A backup is older than the
client's last release. So a restored store records its return, continues no open attempt, and
catches up by adding the client's later charges: charges are only added, and attempts only end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from storage._validate import require_bytes, require_count, require_text, utc_text
from storage.client_tables import (
    ClientLedger,
    Identity,
    Logs,
    Noise,
    Personal,
    Receipts,
    Replies,
    Restored,
    Sessions,
    Tombstones,
)
from storage.client_tables import Receipted as ReceiptedRow
from storage.errors import (
    AlreadyExistsError,
    DatabaseDamaged,
    InvalidRecordError,
    SessionMovedError,
)
from storage.ledger import add_rows, read_rows, require_ledger_row
from storage.records import KeptReceipt, LedgerRow, PersonalState, Receipted, SeenLog, SessionRecord
from storage.sealing import Rows, Where
from storage.tables import Sealed


class OwnRows:
    """One client's rows of a file that may hold other clients' rows, which no call here reaches."""

    def __init__(self, rows: Rows, client: str) -> None:
        """Look at this client's rows only."""
        self._rows = rows
        self.client = client

    @property
    def where(self) -> str:
        """The file, for messages."""
        return self._rows.statements.where

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows of this client."""
        self._rows.insert(table, *({"client": self.client, **row} for row in rows))

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row of this client, in place of a row with the same key."""
        self._rows.put(table, {"client": self.client, **row})

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Replace a row of this client, if it is still as it was."""
        own = {"client": self.client}
        return self._rows.swap(table, {**own, **before}, {**own, **row})

    def read(self, table: type[Sealed], where: Where, *, order: Sequence[str] = ()) -> list[Any]:
        """Return this client's rows that meet all conditions."""
        return self._rows.read(table, {"client": self.client, **where}, order=order)

    def update(self, table: type[Sealed], where: Where, **changes: object) -> int:
        """Change columns outside the key in this client's rows that meet all conditions."""
        return self._rows.update(table, {"client": self.client, **where}, **changes)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns outside the key in rows that `read` returned."""
        self._rows.reseal(table, rows, **changes)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete this client's rows that meet all conditions."""
        self._rows.delete(table, {"client": self.client, **where})


Transaction = Callable[..., AbstractContextManager[OwnRows]]
"""Opens a transaction of one client, for reading alone where `read_only` is given."""


def identity_row(rows: OwnRows) -> Any:
    """Return the one row that identifies the store's client, or `DatabaseDamaged`."""
    found = rows.read(Identity, {})
    if not found:
        raise DatabaseDamaged(
            f"database {rows.where} is damaged: it does not say whose store {rows.client!r} is"
        )
    return found[0]


def slots_of(rows: OwnRows, run_id: str) -> dict[str, PersonalState]:
    """Return a run's personal parts by slot, `committed` or `pending`."""
    return {
        row.slot: PersonalState(row.round_number, row.attempt, row.personal, row.experts)
        for row in rows.read(Personal, {"run_id": run_id})
    }


def fill_slot(rows: OwnRows, run_id: str, slot: str, state: PersonalState) -> None:
    """Store a personal part, in place of an earlier one."""
    rows.put(Personal, {"run_id": run_id, "slot": slot, **state._asdict()})


_NAMES: Final = tuple(field.name for field in fields(SessionRecord))
_FACTS: Final = attrgetter(*_NAMES)


class _OfClient:
    """Made by `ClientStore` only."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction


class ClientSessions(_OfClient):
    """The sessions of one client, at most one for each run."""

    def newest(self, run_id: str) -> SessionRecord | None:
        """Return the client's progress in the run, None before its first attempt."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Sessions, {"run_id": run_id})
        return SessionRecord(*_FACTS(found[0])) if found else None

    def of_other_runs(self, run_id: str) -> tuple[SessionRecord, ...]:
        """Return the client's progress in each other run, by run."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Sessions, {}, order=("run_id",))
        return tuple(SessionRecord(*_FACTS(row)) for row in found if row.run_id != run_id)

    def reply(self, run_id: str, request_digest: bytes) -> bytes | None:
        """Return the answer to a request of the newest attempt, None without an answer."""
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
        """Replace the run's session; send the reply only after this is durable.

        `record` is the client's progress now, and `after` the session behind the answer: another
        process of the client may have answered something else meanwhile, and then this answer must
        never leave. The digest is SHA-256 of the request.

        Raises:
            SessionMovedError: If the session is not `after` any more.
            InvalidRecordError: If the record is older than the session, or a value is invalid.
        """
        require_text(run_id=record.run_id)
        require_count(round_number=record.round_number, attempt=record.attempt)
        require_count(noiseless_round=record.noiseless_round)
        require_bytes(state=record.state)
        require_bytes(request_digest=request_digest, reply=reply)
        is_new = after is None or _place(after) != _place(record)
        # Once a round's vector has left without noise, later attempts must not forget that.
        if after is not None and (
            _place(record) < _place(after) or record.noiseless_round < after.noiseless_round
        ):
            raise InvalidRecordError(
                f"round {record.round_number}, attempt {record.attempt} is older than round"
                f" {after.round_number}, attempt {after.attempt}, which this client answered"
            )
        with self._transaction() as rows:
            moved = SessionMovedError(
                f"the session of run {record.run_id!r} has changed since this answer was made"
            )
            if after is None:
                try:
                    rows.insert(Sessions, _columns(record))
                except AlreadyExistsError as error:
                    raise moved from error
            elif not rows.swap(Sessions, _columns(after), _columns(record)):
                raise moved
            if is_new:
                rows.delete(Replies, {"run_id": record.run_id})
            answered = {"request_digest": request_digest, "reply": reply}
            rows.insert(Replies, {"run_id": record.run_id, **answered})

    def forget(self, run_id: str) -> None:
        """Erase replies and state of the run's session; its number stays."""
        with self._transaction() as rows:
            rows.delete(Replies, {"run_id": run_id})
            rows.update(Sessions, {"run_id": run_id}, state=b"")


def _columns(record: SessionRecord) -> dict[str, object]:
    return dict(zip(_NAMES, _FACTS(record), strict=True))


def _place(record: SessionRecord) -> tuple[int, int]:
    return record.round_number, record.attempt


class ClientReceipts(_OfClient):
    """The receipts of one client; no receipt is ever deleted, as charges are not."""

    def all(self, run_id: str | None = None) -> tuple[KeptReceipt, ...]:
        """Return the receipts of a run, or of all, by run and size."""
        where = {} if run_id is None else {"run_id": run_id}
        with self._transaction(read_only=True) as rows:
            found = rows.read(Receipts, where, order=("run_id", "size"))
        return tuple(KeptReceipt(row.run_id, row.size, row.receipt) for row in found)

    def of(self, run_id: str, size: int) -> bytes | None:
        """Return the receipt of a run at some size of the log, None if there is none."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Receipts, {"run_id": run_id, "size": size})
        return found[0].receipt if found else None

    def reached(self, run_id: str) -> Receipted | None:
        """Return the progress of a run's receipts, None before the first."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(ReceiptedRow, {"run_id": run_id})
        names = Receipted._fields
        return Receipted(*(getattr(found[0], name) for name in names)) if found else None

    def seen(self, origin: str) -> SeenLog | None:
        """Return the newest head that the client saw of a log, None before the first."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Logs, {"origin": origin})
        return SeenLog(origin, found[0].signer, found[0].size, found[0].root) if found else None

    def keep(self, kept: KeptReceipt, reached: Receipted, seen: SeenLog) -> None:
        """Keep a checked receipt, the progress that it shows, and its log's head.

        Raises:
            InvalidRecordError: The client has seen a longer log under that origin.
        """
        require_text(run_id=kept.run_id, origin=seen.origin, signer=seen.signer)
        require_count(size=kept.size, round_number=reached.round_number, attempt=reached.attempt)
        require_bytes(receipt=kept.receipt, root=seen.root)
        with self._transaction() as rows:
            before = rows.read(Logs, {"origin": seen.origin})
            if before and before[0].size > seen.size:
                raise InvalidRecordError(
                    f"log {seen.origin!r} has {seen.size} leaves, but {before[0].size} were seen"
                )
            rows.put(Receipts, kept._asdict())
            rows.put(ReceiptedRow, {"run_id": kept.run_id, **reached._asdict()})
            rows.put(Logs, seen._asdict())


_NEVER: Final = ""
_UNKNOWN_PAYLOAD: Final = b""
"""In place of a digest: the store no longer knows the payload, so no payload equals it."""


class ClientRestoring(_OfClient):
    """Whether one store came back from a backup, and its catching up."""

    def pending_since(self) -> str | None:
        """Return when the store was restored, None where it has nothing to catch up with."""
        with self._transaction(read_only=True) as rows:
            found = rows.read(Restored, {})
        return found[0].restored if found and found[0].caught_up == _NEVER else None

    def mark(self, moment: datetime) -> None:
        """Note that the store was restored at `moment`, and drop every attempt in it.

        An open attempt of the backup may have continued since: a new answer would be a second
        release under the same keys.
        """
        row = {"restored": utc_text("moment", moment), "caught_up": _NEVER}
        with self._transaction() as rows:
            rows.put(Restored, row)
            rows.update(Sessions, {}, state=b"")
            rows.delete(Replies, {})
            # Later attempts may have used the noise that follows this state: never use it twice.
            rows.delete(Noise, {})

    def take_over(self, charged: Sequence[LedgerRow], newest: Mapping[str, tuple[int, int]]) -> int:
        """Add charges that the client's own ledger lacks, and end all attempts up to the newest.

        Charges have the status `reserved`; known charges stay as they are. `newest` has by run the
        newest (round, attempt) that the client may have answered: it answers neither this attempt
        nor an older one again.

        Returns:
            The number of added charges.

        Raises:
            InvalidRecordError: A row is another client's, invalid, or states other facts than the
                client's own ledger; nothing changes.
        """
        with self._transaction() as rows:
            pseudonym = identity_row(rows).pseudonym
            fresh = [row for row in charged if _is_new(rows, row, pseudonym)]
            for row in fresh:
                rows.insert(Tombstones, {**release_key(row), "payload_digest": _UNKNOWN_PAYLOAD})
            add_rows(rows, ClientLedger, fresh)
            ends = {run_id: tuple(place) for run_id, place in newest.items()}
            for row in charged:
                place = (row.round_number, row.attempt)
                ends[row.run_id] = max(place, ends.get(row.run_id, place))
            for run_id, (round_number, attempt) in ends.items():
                _end(rows, run_id, round_number, attempt)
        return len(fresh)

    def settle(self, moment: datetime) -> None:
        """Note at `moment` that everything was taken over; does nothing if nothing was open."""
        with self._transaction() as rows:
            rows.update(Restored, {"caught_up": _NEVER}, caught_up=utc_text("moment", moment))

    def has_taken_over(self, run_id: str, attempt: tuple[int, int]) -> bool:
        """Return whether a charge of this attempt was taken over, not made here."""
        where = {"run_id": run_id, "round_number": attempt[0], "attempt": attempt[1]}
        with self._transaction(read_only=True) as rows:
            found = rows.read(Tombstones, where)
        return any(row.payload_digest == _UNKNOWN_PAYLOAD for row in found)


def _is_new(rows: OwnRows, row: LedgerRow, pseudonym: str) -> bool:
    require_ledger_row(row)
    if row.pseudonym != pseudonym:
        raise InvalidRecordError(f"pseudonym is {row.pseudonym!r}; valid: {pseudonym!r}")
    known = read_rows(rows, ClientLedger, release_key(row))
    if not known:
        return True
    if any(own.as_own() != row.as_own() for own in known):
        raise InvalidRecordError(
            f"channel {row.channel!r} of round {row.round_number}, attempt {row.attempt} of run"
            f" {row.run_id!r} is charged differently in the client's own ledger"
        )
    return False


def release_key(row: LedgerRow) -> dict[str, object]:
    """Return what names one release of a client: run, round, attempt and channel."""
    names = ("run_id", "round_number", "attempt", "channel")
    return {name: getattr(row, name) for name in names}


def _end(rows: OwnRows, run_id: str, round_number: int, attempt: int) -> None:
    """End this attempt and all older ones, as if this store had answered them."""
    require_text(run_id=run_id)
    require_count(round_number=round_number, attempt=attempt)
    known = rows.read(Sessions, {"run_id": run_id})
    newest, noiseless = (round_number, attempt), round_number
    if known:
        newest = max(newest, (known[0].round_number, known[0].attempt))
        # A masked vector without noise may have left in any attempt of that round.
        noiseless = max(noiseless, known[0].noiseless_round)
    ended = {"round_number": newest[0], "attempt": newest[1], "noiseless_round": noiseless}
    rows.put(Sessions, {"run_id": run_id, **ended, "state": b""})
    rows.delete(Replies, {"run_id": run_id})

"""Privacy ledgers: rows are reserved before a release and settled after it, never deleted.

The coordinator's ledger and a client's own have the same columns, so the functions here work on
either table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, insert, select, tuple_, update
from sqlalchemy.orm import Session

from storage._validate import require_count, require_member, require_text
from storage.errors import (
    AlreadyExistsError,
    InvalidRecordError,
    InvalidTransitionError,
    NotFound,
)
from storage.records import LEDGER_STATUSES, LedgerRow, LedgerStatus
from storage.runs import require_run
from storage.tables import Ledger

if TYPE_CHECKING:
    from storage.client_tables import ClientLedger

    LedgerTable = type[Ledger] | type[ClientLedger]


class LedgerRepository:
    """The coordinator's ledger."""

    def __init__(self, session: Session) -> None:
        """Work within the session's transaction."""
        self._session = session

    def reserve(self, rows: Sequence[LedgerRow]) -> None:
        """Add rows, all of status ``reserved``; commit before anything leaves a client.

        Raises:
            NotFound: Unknown run.
            AlreadyExistsError: A (run, round, attempt, pseudonym, channel) was reserved before.
            InvalidRecordError: A row has a value out of range or another status.
        """
        for run_id in {row.run_id for row in rows}:
            require_run(self._session, run_id)
        insert_rows(self._session, Ledger, rows)

    def set_status(
        self,
        run_id: str,
        round_number: int,
        attempt: int,
        status: LedgerStatus,
        *,
        pseudonyms: Collection[str] | None = None,
        channel: str | None = None,
    ) -> None:
        """Settle the rows of an attempt as ``released`` or ``aborted``.

        Args:
            run_id: The run.
            round_number: The round.
            attempt: The attempt.
            status: The new status.
            pseudonyms: Only these clients' rows; default all.
            channel: Only this channel's rows; default all.

        Raises:
            NotFound: Unknown run, or no row of a client that was named.
            InvalidTransitionError: A row is settled already; then none is changed.
        """
        require_run(self._session, run_id)
        where = [
            Ledger.run_id == run_id,
            Ledger.round_number == round_number,
            Ledger.attempt == attempt,
        ]
        if channel is not None:
            where.append(Ledger.channel == channel)
        settle(self._session, Ledger, where, status=status, pseudonyms=pseudonyms)

    def rows(self, run_id: str, *, pseudonym: str | None = None) -> tuple[LedgerRow, ...]:
        """The rows of a run (of one client), by round, attempt, pseudonym and channel.

        Raises:
            NotFound: Unknown run.
        """
        require_run(self._session, run_id)
        where = [Ledger.run_id == run_id]
        if pseudonym is not None:
            where.append(Ledger.pseudonym == pseudonym)
        return read_rows(self._session, Ledger, where)


def insert_rows(session: Session, table: LedgerTable, rows: Sequence[LedgerRow]) -> None:
    """Check the rows and add them; see ``LedgerRepository.reserve``."""
    for row in rows:
        require_ledger_row(row)
    keys = [_key(row) for row in rows]
    if len(set(keys)) != len(keys):
        raise AlreadyExistsError("the rows to reserve hold the same key twice")
    columns = (table.run_id, table.round_number, table.attempt, table.pseudonym, table.channel)
    for key in keys:
        if session.execute(select(table.run_id).where(tuple_(*columns) == key)).first():
            raise AlreadyExistsError(
                "the release of (run, round, attempt, pseudonym, channel) ="
                f" {key!r} is in the ledger already"
            )
    if rows:
        session.execute(insert(table), [asdict(row) for row in rows])


def settle(
    session: Session,
    table: LedgerTable,
    where: Sequence[ColumnElement[bool]],
    *,
    status: LedgerStatus,
    pseudonyms: Collection[str] | None = None,
) -> None:
    """Move rows from ``reserved`` to another status; see ``LedgerRepository.set_status``."""
    require_member("status", status, LEDGER_STATUSES)
    rows = read_rows(session, table, where)
    if pseudonyms is not None:
        rows = tuple(row for row in rows if row.pseudonym in pseudonyms)
        missing = set(pseudonyms) - {row.pseudonym for row in rows}
        if missing:
            raise NotFound(f"nothing was reserved for {', '.join(sorted(missing))}")
    elif not rows:
        raise NotFound("nothing was reserved under this run, round and attempt")
    for row in rows:
        if row.status != "reserved" or status == "reserved":
            raise InvalidTransitionError(
                f"the ledger row of {row.pseudonym} in round {row.round_number}, attempt"
                f" {row.attempt} is {row.status} and cannot become {status}; only reserved rows"
                " become released or aborted"
            )
    change: Any = update(table).where(*where)
    if pseudonyms is not None:
        change = change.where(table.pseudonym.in_(sorted(set(pseudonyms))))
    session.execute(change.values(status=status))


def read_rows(
    session: Session, table: LedgerTable, where: Sequence[ColumnElement[bool]]
) -> tuple[LedgerRow, ...]:
    """The rows that meet all conditions, in the order of their key."""
    names = [field.name for field in fields(LedgerRow)]
    query = select(*(getattr(table, name) for name in names)).where(*where)
    order = (table.run_id, table.round_number, table.attempt, table.pseudonym, table.channel)
    return tuple(LedgerRow(*row) for row in session.execute(query.order_by(*order)))


def require_ledger_row(row: LedgerRow) -> None:
    """The row says everything that an accountant needs, and is not settled yet.

    Raises:
        InvalidRecordError: Naming the field.
    """
    require_text(run_id=row.run_id, pseudonym=row.pseudonym, channel=row.channel)
    require_text(mechanism=row.mechanism, relation=row.relation, sampling=row.sampling)
    require_count(round_number=row.round_number, attempt=row.attempt)
    for name in ("standard_deviation", "clipping_norm"):
        if not isinstance(getattr(row, name), float):
            raise InvalidRecordError(f"{name} must be a float")
    # NaN would be stored as NULL, and minus zero would lose its sign.
    if not (math.isfinite(row.standard_deviation) and row.standard_deviation >= 0.0):
        raise InvalidRecordError("standard_deviation must be finite and at least 0")
    if not row.clipping_norm > 0.0:
        raise InvalidRecordError("clipping_norm must be above 0 (infinity where nothing bounds it)")
    if row.status != "reserved":
        raise InvalidRecordError(f"status is {row.status!r}; new ledger rows must be reserved")


def _key(row: LedgerRow) -> tuple[str, int, int, str, str]:
    return row.run_id, row.round_number, row.attempt, row.pseudonym, row.channel

"""Rows of a client's own store, as the calls of `ClientStore` need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Row, delete
from sqlalchemy.orm import Session

from storage.client_tables import Identity, Personal, Receipts
from storage.engine import file_of
from storage.errors import DatabaseDamaged
from storage.records import PersonalState, Receipt
from storage.sealing import insert_sealed, read_sealed
from storage.tables import Sealed


def identity_row(session: Session) -> Row[Any]:
    """Return the one row that says whose the store is.

    Raises:
        DatabaseDamaged: There is none, or more than one.
    """
    rows = read_sealed(session, Identity)
    if len(rows) != 1:
        raise DatabaseDamaged(
            f"database {file_of(session)} is damaged: it says {len(rows)} times whose it is"
        )
    return rows[0]


def equal_to(table: type[Sealed], key: Mapping[str, object]) -> list[ColumnElement[bool]]:
    """Return the conditions that columns of a table have these values."""
    return [getattr(table, name) == value for name, value in key.items()]


def slot_of(session: Session, run_id: str, slot: str) -> PersonalState | None:
    """Return a run's personal part, committed or pending, or None."""
    rows = read_sealed(session, Personal, Personal.run_id == run_id, Personal.slot == slot)
    if not rows:
        return None
    row = rows[0]
    return PersonalState(row.round_number, row.attempt, row.personal, row.experts)


def fill_slot(session: Session, run_id: str, slot: str, state: PersonalState) -> None:
    """Put a personal part in the place of another."""
    drop_slot(session, run_id, slot)
    insert_sealed(session, Personal, {"run_id": run_id, "slot": slot, **state._asdict()})


def drop_slot(session: Session, run_id: str, slot: str) -> None:
    """Delete a personal part, if there is one."""
    session.execute(delete(Personal).where(Personal.run_id == run_id, Personal.slot == slot))


def receipts_of(session: Session, run_id: str) -> tuple[Receipt, ...]:
    """Return a run's receipts, by round and attempt."""
    order = (Receipts.round_number, Receipts.attempt)
    rows = read_sealed(session, Receipts, Receipts.run_id == run_id, order=order)
    return tuple(Receipt(run_id, row.round_number, row.attempt, row.receipt) for row in rows)

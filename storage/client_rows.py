"""Rows of one client's own store, as the calls of `ClientStore` need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.client_tables import Identity, Personal
from storage.errors import DatabaseDamaged
from storage.records import PersonalState
from storage.sealing import Rows, Where
from storage.statements import Statements
from storage.tables import Sealed


class OwnRows(Rows):
    """One client's rows of a file that may hold those of others: no call here reaches these."""

    def __init__(self, statements: Statements, client: str) -> None:
        """Look at this client's rows only."""
        super().__init__(statements)
        self.client = client

    def insert(self, table: type[Sealed], *rows: Mapping[str, Any]) -> None:
        """Add rows of this client."""
        super().insert(table, *({"client": self.client, **row} for row in rows))

    def put(self, table: type[Sealed], row: Mapping[str, Any]) -> None:
        """Add a row of this client, in the place of one with the same key."""
        super().put(table, {"client": self.client, **row})

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Put a row of this client in the place of another, if that is still as it was."""
        own = {"client": self.client}
        return super().swap(table, {**own, **before}, {**own, **row})

    def read(
        self,
        table: type[Sealed],
        where: Where,
        *,
        order: Sequence[str] = (),
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Any]:
        """Return this client's rows that meet all conditions."""
        own = {"client": self.client, **where}
        return super().read(table, own, order=order, newest_first=newest_first, limit=limit)

    def column(
        self, table: type[Sealed], name: str, where: Where, *, newest_first: bool = False
    ) -> tuple[Any, ...]:
        """Return the different values of a column of this client's rows."""
        own = {"client": self.client, **where}
        return super().column(table, name, own, newest_first=newest_first)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete this client's rows that meet all conditions."""
        super().delete(table, {"client": self.client, **where})


def identity_row(rows: OwnRows) -> Any:
    """Return the one row that says whose the store is.

    Raises:
        DatabaseDamaged: There is none.
    """
    found = rows.read(Identity, {})
    if not found:
        raise DatabaseDamaged(
            f"database {rows.statements.where} is damaged: it does not say whose store"
            f" {rows.client!r} is"
        )
    return found[0]


def slot_of(rows: OwnRows, run_id: str, slot: str) -> PersonalState | None:
    """Return a run's personal part, committed or pending, or None."""
    return slots_of(rows, run_id).get(slot)


def slots_of(rows: OwnRows, run_id: str) -> dict[str, PersonalState]:
    """Return a run's personal parts, those of committed and pending that there are."""
    return {
        row.slot: PersonalState(row.round_number, row.attempt, row.personal, row.experts)
        for row in rows.read(Personal, {"run_id": run_id})
    }


def fill_slot(rows: OwnRows, run_id: str, slot: str, state: PersonalState) -> None:
    """Put a personal part in the place of another."""
    rows.put(Personal, {"run_id": run_id, "slot": slot, **state._asdict()})


def drop_slot(rows: OwnRows, run_id: str, slot: str) -> None:
    """Delete a personal part, if there is one."""
    rows.delete(Personal, {"run_id": run_id, "slot": slot})

"""Rows of one client's own store, as the calls of `ClientStore` need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.client_tables import Identity, Personal
from storage.errors import DatabaseDamaged
from storage.records import PersonalState
from storage.sealing import Rows, Where
from storage.tables import Sealed


class OwnRows:
    """One client's rows of a file that may hold those of others: no call here reaches these."""

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
        """Add a row of this client, in the place of one with the same key."""
        self._rows.put(table, {"client": self.client, **row})

    def swap(self, table: type[Sealed], before: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
        """Put a row of this client in the place of another, if that is still as it was."""
        own = {"client": self.client}
        return self._rows.swap(table, {**own, **before}, {**own, **row})

    def read(self, table: type[Sealed], where: Where, *, order: Sequence[str] = ()) -> list[Any]:
        """Return this client's rows that meet all conditions."""
        return self._rows.read(table, {"client": self.client, **where}, order=order)

    def update(self, table: type[Sealed], where: Where, **changes: object) -> int:
        """Change columns that are no key in this client's rows that meet all conditions."""
        return self._rows.update(table, {"client": self.client, **where}, **changes)

    def reseal(self, table: type[Sealed], rows: Sequence[Any], **changes: object) -> None:
        """Change columns that are no key in rows that `read` returned."""
        self._rows.reseal(table, rows, **changes)

    def delete(self, table: type[Sealed], where: Where) -> None:
        """Delete this client's rows that meet all conditions."""
        self._rows.delete(table, {"client": self.client, **where})


def identity_row(rows: OwnRows) -> Any:
    """Return the one row that says whose the store is.

    Raises:
        DatabaseDamaged: There is none.
    """
    found = rows.read(Identity, {})
    if not found:
        raise DatabaseDamaged(
            f"database {rows.where} is damaged: it does not say whose store {rows.client!r} is"
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

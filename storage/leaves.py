"""Leaves of the log as they are added: a place for each event and charge, in one tree a database.

Rows are only ever added (triggers see to it). A leaf says which row it is of; what is hashed is
made of that row, so a row that is changed later no longer fits its leaf. How a charge was settled
is a leaf of its own, because that is the one thing of a ledger row that changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from storage.errors import LogBroken
from storage.leaf_data import SALT_BYTES, charge_data, is_secret, sealed_data, settled_data
from storage.merkle import TILE_HEIGHT, completed, leaf_hash
from storage.records import LeafKind, LedgerRow
from storage.statements import Statements

LEAF_COLUMNS: Final = (
    "position, kind, run_id, sequence, round_number, attempt, pseudonym, channel, status, salt,"
    " hash"
)
_INSERTION: Final = f"INSERT INTO leaves ({LEAF_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_TILE_INSERTION: Final = "INSERT INTO tiles (level, position, hash) VALUES (?, ?, ?)"
_LEAF_HASHES: Final = (
    "SELECT hash FROM leaves WHERE position >= ? AND position < ? ORDER BY position"
)
_TILE_HASHES: Final = (
    "SELECT hash FROM tiles WHERE level = ? AND position >= ? AND position < ? ORDER BY position"
)
_SIZE: Final = "SELECT coalesce(max(position) + 1, 0) FROM leaves"


class NewLeaves:
    """Leaves of one transaction; they get their places when it is committed."""

    def __init__(self, statements: Statements) -> None:
        """Work within one transaction."""
        self._statements = statements
        self._new: list[tuple[Any, ...]] = []

    def add_event(self, run_id: str, sequence: int, data: bytes) -> None:
        """Add the leaf of an event, given what its place in the run's chain is hashed of."""
        key = (run_id, sequence, None, None, None, None, None, None)
        self._new.append(("event", *key, leaf_hash(data)))

    def add_charges(self, rows: Iterable[LedgerRow]) -> None:
        """Add the leaves of new ledger rows."""
        self._new += [_of_row("charge", row, None, charge_data(row)) for row in rows]

    def add_settled(self, rows: Iterable[LedgerRow]) -> None:
        """Add the leaves that tell what the status of ledger rows became."""
        self._new += [_of_row("settled", row, row.status, settled_data(row)) for row in rows]

    def place(self) -> int | None:
        """Give all that was added its place at the end of the tree, and return the tree's size.

        None where nothing was added.
        """
        if not self._new:
            return None
        size, new = tree_size(self._statements), self._new
        self._new = []
        values = [(size + at, *leaf) for at, leaf in enumerate(new)]
        tiles = list(
            completed(partial(read_hashes, self._statements), size, [leaf[-1] for leaf in new])
        )
        self._statements.run_many(_INSERTION, values)
        if tiles:
            self._statements.run_many(_TILE_INSERTION, tiles)
        return size + len(new)


def tree_size(statements: Statements) -> int:
    """Return how many leaves there are."""
    ((size,),) = statements.run(_SIZE)
    return int(size)


def read_hashes(statements: Statements, level: int, start: int, count: int) -> list[bytes]:
    """Return stored hashes: of leaves at level 0, of tiles above.

    Raises:
        LogBroken: Some are missing.
    """
    end = start + count
    if level == 0:
        rows = statements.run(_LEAF_HASHES, (start, end))
    else:
        rows = statements.run(_TILE_HASHES, (level, start, end))
    if len(rows) != count:
        raise LogBroken(start << (TILE_HEIGHT * level), f"a hash of level {level} is missing")
    return [bytes(found) for (found,) in rows]


def _of_row(kind: LeafKind, row: LedgerRow, status: str | None, data: bytes) -> tuple[Any, ...]:
    salt = secrets.token_bytes(SALT_BYTES) if is_secret(row) else None
    seen = data if salt is None else sealed_data(row.run_id, data, salt)
    key = (row.run_id, None, row.round_number, row.attempt, row.pseudonym, row.channel)
    return (kind, *key, status, salt, leaf_hash(seen))

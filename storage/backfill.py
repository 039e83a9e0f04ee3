"""Leaves for what was written before there was a log."""

from __future__ import annotations

import sqlite3
from typing import Final, cast

from sqlalchemy import Connection

from storage.leaf_data import event_data
from storage.leaves import NewLeaves
from storage.ledger import read_rows
from storage.records import GENESIS_HASH
from storage.sealing import Rows
from storage.statements import Statements
from storage.tables import Ledger

_RUNS: Final = "SELECT run_id FROM runs ORDER BY created, run_id"
_EVENTS: Final = (
    "SELECT sequence, run_id, actor, action, round_number, channel, time, detail, hash FROM audit"
    " WHERE run_id = ? ORDER BY sequence"
)


def fill_log(connection: Connection) -> None:
    """Give all events and charges of a database without leaves theirs.

    Args:
        connection: A transaction in which the empty tables of the log were made.

    Raises:
        DatabaseDamaged: A row of the ledger does not fit its digest.
    """
    raw = cast("sqlite3.Connection", connection.connection.driver_connection)
    statements = Statements(lambda: raw, "to be migrated")
    leaves, rows = NewLeaves(statements), Rows(statements)
    for (run_id,) in statements.run(_RUNS):
        previous = GENESIS_HASH
        for *facts, found in statements.run(_EVENTS, (run_id,)):
            leaves.add_event(run_id, facts[0], event_data(previous, facts))
            previous = found
        charged = read_rows(rows, Ledger, {"run_id": run_id})
        leaves.add_charges(charged)
        leaves.add_settled(row for row in charged if row.status != "reserved")
    leaves.place()

"""What the coordinator's ledger charges one client, stated for that client alone."""

from __future__ import annotations

from datetime import datetime

from platform.errors import ConfigError
from platform.wire.charges import Charges, RunCharges
from storage import LedgerRow, UnitOfWork


def charges_of(uow: UnitOfWork, pseudonym: str, now: datetime) -> Charges:
    """Return what a client was charged in all runs.

    What was aborted before anything left a client is free, and so is what an early version noted of
    a client that was not drawn: neither is stated. Their attempts are over all the same.

    Args:
        uow: Read from here.
        pseudonym: The client's.
        now: The time, with a time zone.

    Raises:
        ConfigError: If the ledger knows no such client.
    """
    by_run: dict[str, list[LedgerRow]] = {}
    for row in uow.ledger.rows_of([pseudonym]):
        by_run.setdefault(row.run_id, []).append(row)
    if not by_run:
        raise ConfigError(
            f"PSEUDONYM: {pseudonym!r} has no row in the ledger; valid is a client's pseudonym, as "
            "its own store and the ledger have it"
        )
    runs = {run: _of_run(uow, run, rows) for run, rows in by_run.items()}
    return Charges(pseudonym, now, runs)


def _of_run(uow: UnitOfWork, run_id: str, rows: list[LedgerRow]) -> RunCharges:
    newest = max((row.round_number, row.attempt) for row in rows)
    begun = uow.attempts.newest(run_id)
    if begun is not None:
        newest = max(newest, (begun.round_number, begun.attempt))
    charged = (row for row in rows if row.status != "aborted" and row.cohort_drawn is not False)
    return RunCharges(newest, tuple(row.as_own() for row in charged))

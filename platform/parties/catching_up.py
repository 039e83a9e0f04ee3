"""A client whose store came back from a backup catches up with what it released since.

Its own record of that is lost, so it takes over the coordinator's. It only ever adds: a charge that
it knows stays, an attempt that is over stays over, and a coordinator that charges too much makes
the client take part in less. One that states too little cannot be found out by the client alone,
so nobody but the client's owner sets this going, with charges that the owner was handed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from platform.errors import ConfigError
from platform.wire.charges import Charges
from storage import ClientStore, InvalidRecordError


def catch_up(store: ClientStore, handed: Sequence[Charges], now: datetime) -> int:
    """Take over what coordinators charged, and let the client take part again.

    Args:
        store: The client's, restored from a backup.
        handed: Of each coordinator in whose runs it has taken part since the backup.
        now: The time, for the record.

    Returns:
        How many charges were added to the client's own ledger.

    Raises:
        ConfigError: If they are not this client's, lack what its own ledger has, or tell it
            otherwise; nothing has changed then.
    """
    since = store.restoring.pending_since()
    if since is None:
        raise ConfigError("CHARGES: this client's store has nothing to catch up with")
    if not handed:
        raise ConfigError("CHARGES: there are none; valid are those of each coordinator")
    for charges in handed:
        # What the lost store released until then would be in none of them.
        if charges.made < datetime.fromisoformat(since):
            raise ConfigError(
                f"CHARGES: they were made at {charges.made.isoformat()}, before the store was "
                f"restored at {since}; valid are later ones"
            )
    stated = {run_id for charges in handed for run_id in charges.runs}
    for session in store.sessions.of_other_runs(""):
        if session.run_id not in stated:
            raise ConfigError(
                f"CHARGES: run {session.run_id}, in which this client has taken part, is not in "
                "them; valid are those of each coordinator"
            )
    try:
        with store.atomically():
            added = sum([_take_over(store, charges) for charges in handed])
            store.restoring.settle(now)
    except InvalidRecordError as error:
        raise ConfigError(f"CHARGES: {error}") from error
    return added


def _take_over(store: ClientStore, charges: Charges) -> int:
    own = store.identity.pseudonym
    if charges.pseudonym != own:
        raise ConfigError(f"CHARGES: they are of client {charges.pseudonym!r}; valid: {own!r}")
    for run_id, run in charges.runs.items():
        stated = {(row.round_number, row.attempt, row.channel) for row in run.rows}
        for row in store.rows(run_id):
            if (row.round_number, row.attempt, row.channel) not in stated:
                raise ConfigError(
                    f"CHARGES: they lack round {row.round_number}, attempt {row.attempt} of run "
                    f"{run_id}, which this client's own ledger has; they were made from an older "
                    "copy of the coordinator's database"
                )
    charged = [row for run in charges.runs.values() for row in run.rows]
    newest = {run_id: run.newest for run_id, run in charges.runs.items()}
    return store.restoring.take_over(charged, newest)

"""`federation status`: who can be reached, whom a run waits for, and where each client stands."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from platform.agreement import stored_tree
from platform.cli.access import resolved
from platform.cli.output import console, print_json, table
from platform.disk.opening import open_existing
from platform.errors import ConfigError
from platform.relay.links import status_of
from platform.rounds.leaving import Standing, standings

PATIENCE = 10.0
"""Seconds that a hub may take to answer."""
NOTE = (
    "reachable: a relay is connected for it; whether its process is there as well, only an answer "
    "shows, and a Flower app says so of all its clients as long as it runs"
)


def status_command(socket: Path, storage: str | None, run_id: str, *, as_json: bool) -> None:
    """Print what a running coordinator knows of its clients, and what its records say of them.

    Args:
        socket: Of its hub.
        storage: Its database; None for the hub's knowledge only.
        run_id: The run in it.
        as_json: Whether stdout gets JSON.

    Raises:
        ConfigError: If no coordinator listens there, or the run has no federation.
        UnknownRun: If there is no such run.
    """
    try:
        found = status_of(socket, PATIENCE)
    except OSError as error:
        raise ConfigError(
            f"SOCKET: nobody answers at {str(socket)!r} ({error.strerror or error}); valid is the "
            "federation.socket of a run that goes on"
        ) from error
    known = {} if storage is None else _standings(storage, run_id)
    standing = {name: one.words for name, one in known.items()}
    if as_json:
        clients = [asdict(client) for client in found.clients]
        print_json([{**client, "standing": standing.get(client["name"])} for client in clients])
        return
    rows = [
        (c.name, "yes" if c.reachable else "no", c.asked or "-", c.last or "-")
        + ((standing.get(c.name, "-"),) if known else ())
        for c in found.clients
    ]
    columns = ("client", "reachable", "asked for", "last answer", *(("standing",) if known else ()))
    out = console()
    out.print(table(None, columns, rows))
    out.print(NOTE)


def _standings(storage: str, run_id: str) -> dict[str, Standing]:
    with closing(open_existing(storage)) as database:
        name = resolved(database, run_id, storage)
        with database.unit_of_work(read_only=True) as uow:
            section = stored_tree(uow.runs.get(name)).get("federation")
            if section is None:
                raise ConfigError(f"--run: {name} is a simulation; valid: a run with a federation")
            return standings(uow, name, section["clients"])

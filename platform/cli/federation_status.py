"""`federation status`: who can be reached, whom a run waits for, and who refused last."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from platform.cli.output import console, print_json, table
from platform.errors import ConfigError
from platform.relay.links import status_of

PATIENCE = 10.0
"""Seconds that a hub may take to answer."""


def status_command(socket: Path, *, as_json: bool) -> None:
    """Print what a running coordinator knows of its clients.

    Raises:
        ConfigError: If no coordinator listens there.
    """
    try:
        found = status_of(socket, PATIENCE)
    except OSError as error:
        raise ConfigError(
            f"SOCKET: nobody answers at {str(socket)!r} ({error.strerror or error}); valid is the "
            "federation.socket of a run that goes on"
        ) from error
    if as_json:
        print_json([asdict(client) for client in found.clients])
        return
    rows = [
        (c.name, "yes" if c.reachable else "no", c.asked or "-", c.last or "-")
        for c in found.clients
    ]
    console().print(table(None, ("client", "reachable", "asked for", "last answer"), rows))

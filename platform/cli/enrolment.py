"""`enrolment`: whose keys are whose, for secure aggregation against an active server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from platform.cli.output import console, print_json, table
from platform.errors import ConfigError
from platform.parties.identities import (
    client_names,
    create_enrolment,
    node_of,
    read_enrolment,
    write_enrolment,
)
from privacy.secure_aggregation import Enrolment, fingerprint, node_fingerprint


def create_command(folder: Path, clients: int, *, as_json: bool) -> None:
    """Make keys and an enrolment for the clients of a simulation, all in one folder.

    Raises:
        ConfigError: If the folder holds one already.
    """
    _show(create_enrolment(folder, client_names(clients)), as_json=as_json)


def show_command(path: Path, *, as_json: bool) -> None:
    """Show who is enrolled.

    Raises:
        ConfigError: If the file is no enrolment.
    """
    _show(read_enrolment(path), as_json=as_json)


def change_command(path: Path, change: Callable[[Enrolment], Enrolment], *, as_json: bool) -> None:
    """Apply one change to an enrolment file, which is made where there is none.

    Raises:
        ConfigError: If the change is not possible; the file stays as it was.
    """
    before = read_enrolment(path) if path.exists() else Enrolment()
    try:
        after = change(before)
    except ValueError as error:
        raise ConfigError(f"enrolment: {error}") from error
    write_enrolment(path, after)
    _show(after, as_json=as_json)


def parse_public(text: str) -> bytes:
    """Return a public key from hex.

    Raises:
        ConfigError: If it is none.
    """
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ConfigError(f"PUBLIC: {text!r} is not valid; it must be 64 hex digits") from error


def parse_node(text: str) -> str:
    """Return a node key from what programs print, which may have a comment at its end."""
    return " ".join(text.split()[:2])


def show_node_command(path: Path, name: str) -> None:
    """Print a client's node key, as OpenSSH writes it.

    Raises:
        ConfigError: If the file is no enrolment, or it binds no such key to this name.
    """
    sys.stdout.write(f"{node_of(read_enrolment(path), name)}\n")


def _short(node: str | None) -> str:
    return "-" if node is None else node_fingerprint(node)


def _show(enrolment: Enrolment, *, as_json: bool) -> None:
    members = [
        (name, "-" if m.current is None else fingerprint(m.current), m.node, len(m.retired))
        for name, m in sorted(enrolment.members.items())
    ]
    if as_json:
        print_json(
            {
                "serial": enrolment.serial,
                "fingerprint": enrolment.fingerprint,
                "members": [
                    {"name": name, "fingerprint": key, "node": node, "retired_keys": retired}
                    for name, key, node, retired in members
                ],
            }
        )
        return
    out = console()
    rows = [(name, key, _short(node), str(retired)) for name, key, node, retired in members]
    out.print(table(None, ("name", "fingerprint of the key", "node key", "retired keys"), rows))
    out.print(f"serial {enrolment.serial}, fingerprint {enrolment.fingerprint}")
    out.print("compare the fingerprint with the other parties by telephone or in person")

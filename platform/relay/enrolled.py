"""Which machine is whose, as the enrolment says: read where nothing is installed that trains.

The enrolment binds a client's name to the key that it signs with, which is no business of a
relay's, and to its node key: what the machine proves to have that carries the client's messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platform.errors import ConfigError

WHOLE: Final = {"members", "serial", "version"}
MEMBER: Final = {"current", "node", "retired"}


def read_nodes(path: Path) -> Mapping[str, str]:
    """Return each client's node key as OpenSSH writes it, by the client's name.

    Args:
        path: The enrolment file.

    Returns:
        Those who take part and have one; nobody else's machine is let in.

    Raises:
        ConfigError: If the file is no enrolment, two clients have the same node, or nobody has one.
    """
    try:
        whole = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read; valid: an enrolment") from error
    if not isinstance(whole, dict) or whole.keys() != WHOLE:
        raise ConfigError(f"{path}: is no enrolment")
    found = _bound(path, whole["members"])
    if not found:
        raise ConfigError(f"{path}: binds nobody to a node; valid after `enrolment bind`")
    if len(set(found.values())) != len(found):
        raise ConfigError(f"{path}: two clients have the same node; valid: one each")
    return found


def _bound(path: Path, members: Any) -> dict[str, str]:
    if not isinstance(members, dict):
        raise ConfigError(f"{path}: is no enrolment")
    found = {}
    for name, member in members.items():
        if not isinstance(member, dict) or member.keys() != MEMBER:
            raise ConfigError(f"{path}: {name!r} is no member of an enrolment")
        if member["current"] is not None and member["node"] is not None:
            found[str(name)] = str(member["node"])
    return found


def development_enrolment(nodes: Mapping[str, str]) -> bytes:
    """Return an enrolment that binds names to nodes and says nothing of who signs, for development.

    Args:
        nodes: Each client's node key by the client's name.
    """
    members = {
        name: {"current": f"{number:064x}", "node": node, "retired": []}
        for number, (name, node) in enumerate(sorted(nodes.items()))
    }
    whole = {"version": 1, "serial": len(members), "members": members}
    return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"

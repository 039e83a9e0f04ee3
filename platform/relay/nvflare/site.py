"""What a site decides for itself: where its relay delivers to, and what a job may load there.

Both lie in the folder `local` of FLARE's start-up kit, which no job can write to. A job names no
path and brings no code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from platform.errors import ConfigError

FILE: Final = "sotto.json"
SERVER_CLASSES: Final = (
    "nvflare.collab.runtime.controller.CollabController",
    "platform.relay.nvflare.job.ServerRelay",
)
CLIENT_CLASSES: Final = (
    "nvflare.collab.runtime.executor.CollabExecutor",
    "platform.relay.nvflare.job.ClientRelay",
)
ROLES: Final = ("org_admin", "lead", "member")


def socket_of(local: Path) -> Path:
    """Return the socket that a site's own file names.

    Args:
        local: The folder `local` of the site's kit.

    Raises:
        ConfigError: If the file is missing or says anything but this.
    """
    return _paths(local / FILE, ("socket",))["socket"]


def server_paths_of(local: Path) -> tuple[Path, Path]:
    """Return the hub and the enrolment that the server's own file names.

    Args:
        local: The folder `local` of the server's kit.

    Raises:
        ConfigError: If the file is missing or says anything but this.
    """
    paths = _paths(local / FILE, ("enrolment", "socket"))
    return paths["socket"], paths["enrolment"]


def _paths(path: Path, keys: tuple[str, ...]) -> dict[str, Path]:
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read; valid: as `site` writes it") from error
    found = tree if isinstance(tree, dict) and sorted(tree) == list(keys) else {}
    if not found or not all(isinstance(v, str) and Path(v).is_absolute() for v in found.values()):
        raise ConfigError(f"{path}: valid: {' and '.join(keys)}, each an absolute path")
    return {key: Path(value) for key, value in found.items()}


def settle(kit: Path, socket: Path, enrolment: Path | None = None) -> None:
    """Write which socket a site's relay may use, and that jobs may load our two classes only.

    Args:
        kit: The start-up kit of a server or a client, unpacked.
        socket: The coordinator's hub, or the data holder's process.
        enrolment: At the server, the file that says which site's key is whose.

    Raises:
        ConfigError: If it is no such kit, or a server is given no enrolment, or a site is.
    """
    server = (kit / "startup" / "fed_server.json").is_file()
    if not server and not (kit / "startup" / "fed_client.json").is_file():
        raise ConfigError(f"{str(kit)!r} is no start-up kit of a server or a client")
    if server != (enrolment is not None):
        raise ConfigError(f"{str(kit)!r}: valid: the enrolment at the server, and none at a site")
    local = kit / "local"
    resources = _defaults(local / "resources.json.default")
    resources["class_allow_list"] = list(SERVER_CLASSES if server else CLIENT_CLASSES)
    resources["class_list_enforcement_mode"] = "enforce"
    resources["allow_log_streaming"] = False
    # It would send a site's logs to the server.
    parts = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    resources["components"] = parts
    if server:
        _keep_within(resources, kit.absolute() / "jobs")
    _write(local / "resources.json", resources)
    rights = _defaults(local / "authorization.json.default")
    _write(local / "authorization.json", _without_code(rights))
    own = {"socket": socket} | ({} if enrolment is None else {"enrolment": enrolment})
    _write(local / FILE, {key: str(path.absolute()) for key, path in own.items()})


def _keep_within(resources: dict[str, Any], folder: Path) -> None:
    """Keep jobs in the kit's folder: by default all servers of a machine share one."""
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(folder / "kept")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(folder / "stored")


def _without_code(rights: dict[str, Any]) -> dict[str, Any]:
    """Return rights that let nobody bring code, whatever else they may do."""
    permissions = dict(rights["permissions"])
    permissions["project_admin"] = {
        "submit_job": "any",
        "manage_job": "any",
        "view": "any",
        "operate": "any",
        "shell_commands": "none",
        "byoc": "none",
    }
    for role in ROLES:
        own = permissions.get(role)
        if isinstance(own, dict):
            permissions[role] = {**own, "shell_commands": "none", "byoc": "none"}
    return {**rights, "permissions": permissions}


def _defaults(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read; valid: a kit as FLARE makes it") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: valid: a kit as FLARE makes it")
    return tree


def _write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", "utf-8")

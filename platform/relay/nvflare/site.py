"""A site's own decisions: the socket of its relay, the classes that jobs may load, its signature.

The site's settings lie in the folder `local` of FLARE's start-up kit, where no job can write. A
job names no path and brings no code.

FLARE admits every machine that has a certificate of the project's root under a site's name. The
enrolment names the key that a site must have. The site signs each outcome with its FLARE key, and
the server accepts the outcome only if that key is the enrolled key.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_public_key,
)

from platform.errors import ConfigError, ProtocolError

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


CERTIFICATE: Final = "client.crt"
PRIVATE_KEY: Final = "client.key"
_MEANT: Final = b"sotto/relay/outcome"
_HEAD: Final = 2
"""Bytes of the signature's length, which precedes the signature."""


def socket_of(local: Path) -> Path:
    """Return the socket that a site's own file names, in the folder `local` of its kit."""
    return _paths(local / FILE, ("socket",))["socket"]


def server_paths_of(local: Path) -> tuple[Path, Path]:
    """Return the hub and the enrolment that the server's own file names, in `local` of its kit."""
    paths = _paths(local / FILE, ("enrolment", "socket"))
    return paths["socket"], paths["enrolment"]


def _paths(path: Path, keys: tuple[str, ...]) -> dict[str, Path]:
    found = _tree(path, "the file that `site` writes")
    if sorted(found) != list(keys) or not all(
        isinstance(v, str) and Path(v).is_absolute() for v in found.values()
    ):
        raise ConfigError(f"{path}: valid: {' and '.join(keys)}, each an absolute path")
    return {key: Path(value) for key, value in found.items()}


def settle(kit: Path, socket: Path, enrolment: Path | None = None) -> None:
    """Set the socket that a site's relay may use, and let jobs load only our two classes.

    The kit is unpacked. The socket is that of the coordinator's hub, or of the data holder's
    process. At the server, and only there, the enrolment binds sites to keys.
    """
    server = (kit / "startup" / "fed_server.json").is_file()
    if not server and not (kit / "startup" / "fed_client.json").is_file():
        raise ConfigError(f"{str(kit)!r} is not the start-up kit of a server or a client")
    if server != (enrolment is not None):
        raise ConfigError(f"{str(kit)!r}: valid: the enrolment at the server, and none at a site")
    local = kit / "local"
    resources = _tree(local / "resources.json.default")
    resources["class_allow_list"] = list(SERVER_CLASSES if server else CLIENT_CLASSES)
    resources["class_list_enforcement_mode"] = "enforce"
    resources["allow_log_streaming"] = False
    # This component would send a site's logs to the server.
    parts = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    resources["components"] = parts
    if server:
        # By default all servers of a machine keep their jobs in one folder.
        jobs = kit.absolute() / "jobs"
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(jobs / "kept")
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(jobs / "stored")
    _write(local / "resources.json", resources)
    rights = _tree(local / "authorization.json.default")
    # No role may submit code.
    no_code = {"shell_commands": "none", "byoc": "none"}
    permissions = dict(rights["permissions"])
    permissions["project_admin"] = {
        **{right: "any" for right in ("submit_job", "manage_job", "view", "operate")},
        **no_code,
    }
    for role in ROLES:
        own = permissions.get(role)
        if isinstance(own, dict):
            permissions[role] = {**own, **no_code}
    _write(local / "authorization.json", {**rights, "permissions": permissions})
    paths = {"socket": socket} | ({} if enrolment is None else {"enrolment": enrolment})
    _write(local / FILE, {key: str(path.absolute()) for key, path in paths.items()})


def _tree(path: Path, valid: str = "a kit as FLARE makes it") -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read; valid: {valid}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: valid: {valid}")
    return tree


def _write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", "utf-8")


def node_of(startup: Path) -> str:
    """Return a site's public key, as OpenSSH writes it, from its kit's folder `startup`."""
    path = startup / CERTIFICATE
    try:
        key = x509.load_pem_x509_certificate(path.read_bytes()).public_key()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: is not a certificate; valid: a site's kit") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise ConfigError(f"{path}: valid: the certificate of an RSA key, as FLARE makes it")
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")


def signed(startup: Path, request: bytes, outcome: bytes) -> bytes:
    """Return the site's signature of request and outcome, followed by the outcome."""
    path = startup / PRIVATE_KEY
    try:
        key = _private_key(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: is not a private key; valid: a site's kit") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigError(f"{path}: valid: an RSA key, as FLARE makes it")
    signature = key.sign(_digest(request, outcome), padding.PKCS1v15(), SHA256())
    return len(signature).to_bytes(_HEAD, "big") + signature + outcome


def verified(node: str, request: bytes, answer: object) -> bytes:
    """Return the outcome in an answer; `ProtocolError` if this node did not sign both."""
    try:
        key = _public_key(node.encode("ascii"))
        if isinstance(answer, bytes) and isinstance(key, rsa.RSAPublicKey):
            end = _HEAD + int.from_bytes(answer[:_HEAD], "big")
            signature, outcome = answer[_HEAD:end], answer[end:]
            key.verify(signature, _digest(request, outcome), padding.PKCS1v15(), SHA256())
            return outcome
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        pass
    raise ProtocolError("the site did not sign with the node key that is enrolled for it")


# Loading also checks a key's numbers, which takes far longer than signing.
_private_key = lru_cache(maxsize=1)(partial(load_pem_private_key, password=None))
_public_key = lru_cache(maxsize=1024)(load_ssh_public_key)


def _digest(request: bytes, outcome: bytes) -> bytes:
    return _MEANT + hashlib.sha256(request).digest() + hashlib.sha256(outcome).digest()

"""Clients on disk: their names, stores of a simulation, private keys, and the enrolment.

Keys and the enrolment do not reach a machine through the coordinator. A key file holds 64 hex
digits and only its owner can read it. The enrolment is canonical JSON, which people compare by its
fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from platform.config import RunConfig
from platform.disk.files import write_bytes, written
from platform.errors import ConfigError
from platform.protection.charging import Source
from platform.protection.sums import SecureTerms
from platform.wire.transport import ClientId
from privacy import Authentication
from privacy.secure_aggregation import (
    Credentials,
    Enrolment,
    Identity,
    decode_enrolment,
    new_identity,
)
from storage import DatabaseBusy, StorageError, open_client_stores
from storage.files import make_folder, sync_folder

STORES: Final = "stores.db"
SHARED: Final = "clients"
"""The folder, beside the database, of stores that several runs share."""


def client_names(count: int, kind: str = "client") -> tuple[ClientId, ...]:
    """Return names of all clients, in an order that sorting keeps."""
    return tuple(f"{kind}-{i:05d}" for i in range(count))


def shared_stores(folder: Path) -> tuple[Path, ...]:
    """Return the files of the stores that runs share, for the database in this folder."""
    return tuple(sorted((folder / SHARED).glob(f"*/{STORES}")))


def stores_file(config: RunConfig, run_folder: Path) -> Path:
    """Return the file with the stores of all clients of a run.

    The file lies in the run's folder. Under a lifetime budget it lies beside that folder, and all
    runs on the same source of data share it. A run of an earlier version, where keys of the task
    and seeds told clients apart, keeps the stores that hold its charges.

    The configuration may be that of another run of the same clients. The folder has the name of the
    run.
    """
    if config.privacy.lifetime_budget is None:
        return run_folder / "clients" / STORES
    source = Source.of(config.task.dataset, config.task.root)
    digest = hashlib.sha256((source.name or str(source.root)).encode()).hexdigest()[:16]
    file = run_folder.parent / SHARED / digest / STORES
    others = [one for one in shared_stores(run_folder.parent) if one != file]
    if others and not _remembers(file, run_folder.name):
        return next((one for one in others if _remembers(one, run_folder.name)), file)
    return file


def _remembers(file: Path, run_id: str) -> bool:
    """Whether a client of these stores was charged in a run; damaged stores remember nothing."""
    if not file.exists():
        return False
    try:
        opened = open_client_stores(file, read_only=True)
        with opened.kept_open():
            return any(store.rows(run_id) for store in opened.stores.values())
    except DatabaseBusy:
        raise
    except StorageError:
        return False


ENROLMENT_FILE = "enrolment.json"
RUN_KEY: Final = "secure_aggregation.enrolment"
"""The key of the file in a run's configuration, for messages; a data holder uses another key."""


def read_enrolment(path: Path, *, key: str = RUN_KEY) -> Enrolment:
    """Return an enrolment from its file; `key` names the file in a `ConfigError`."""
    try:
        return decode_enrolment(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{key}: {str(path)!r} cannot be read ({error.strerror}); valid: a file that "
            "`enrolment` made"
        ) from error
    except Authentication as error:
        raise ConfigError(f"{key}: {str(path)!r}: {error}") from error


def enrolment_of(config: RunConfig, terms: SecureTerms | None) -> Enrolment | None:
    """Return the enrolment of a run, None against a semi-honest server."""
    path = config.secure_aggregation.enrolment
    if path is None or terms is None or not terms.active:
        return None
    return read_enrolment(Path(path))


def fingerprint_of(enrolment: Enrolment | None) -> str | None:
    """Return the fingerprint that people compare, None without a file."""
    return None if enrolment is None else enrolment.fingerprint


def node_of(enrolment: Enrolment, name: str, *, key: str = "FILE") -> str:
    """Return the key of a client's machine, as OpenSSH writes it; `ConfigError` without one."""
    member = enrolment.members.get(name)
    if member is None or member.node is None:
        raise ConfigError(
            f"{key}: no node is bound to {name!r}; make it known with `enrolment bind`"
        )
    return member.node


def write_enrolment(path: Path, enrolment: Enrolment) -> None:
    """Write an enrolment, whole or not at all."""
    try:
        write_bytes(path, enrolment.encode())
    except OSError as error:
        raise ConfigError(f"FILE: {str(path)!r} cannot be written ({error.strerror})") from error


def key_path(enrolment: Path, name: str) -> Path:
    """Return the file of a simulated client's key, beside the enrolment."""
    return enrolment.parent / f"{name}.key"


def create_key(path: Path) -> Identity:
    """Draw a new private key and write it; keys are never overwritten (`ConfigError`)."""
    private = new_identity()
    try:
        make_folder(path.parent)
        with written(path) as file:
            file.write(f"{private.hex()}\n".encode("ascii"))
        sync_folder(path.parent)
    except OSError as error:
        if path.exists():
            raise ConfigError(
                f"KEY: {str(path)!r} exists already; keys are never replaced; valid: a new file"
            ) from error
        raise ConfigError(f"KEY: {str(path)!r} cannot be written ({error.strerror})") from error
    return Identity(private)


def read_key(path: Path, *, key: str = RUN_KEY) -> Identity:
    """Return a private key from its file; a `ConfigError` has `key`, never the text."""
    try:
        return Identity(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key}: {str(path)!r} holds no private key of 64 hex digits; valid: a file "
            "that `keys create` made"
        ) from error


def credentials_of(enrolment: Path, name: str, *, corrupt_rate: float) -> Credentials:
    """Return a simulated client's credentials for rounds against an active adversary."""
    known, identity = read_enrolment(enrolment), read_key(key_path(enrolment, name))
    require_enrolled(known, identity, name)
    return Credentials(identity, known, corrupt_rate)


def require_enrolled(
    known: Enrolment, identity: Identity, name: str, *, key: str = RUN_KEY
) -> None:
    """Refuse a key that is not the one that is enrolled under a name."""
    if known.names.get(identity.public) != name:
        raise ConfigError(f"{key}: the key of {name} is not enrolled under that name")


def create_enrolment(folder: Path, names: Sequence[str]) -> Enrolment:
    """Return new keys and an enrolment for these clients, for development.

    All private keys lie in one new folder then, which tests the code but proves no identity.
    """
    path = folder / ENROLMENT_FILE
    if path.exists():
        raise ConfigError(f"FOLDER: {str(path)!r} exists already; choose another folder")
    enrolment = Enrolment()
    for name in names:
        enrolment = enrolment.enrol(name, create_key(key_path(path, name)).public)
    write_enrolment(path, enrolment)
    return enrolment

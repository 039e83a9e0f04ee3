"""Backups of a data holder's own store, and what becomes of a client that comes back from one.

A backup is older than the client's last release. Restored, the store says so, and the client takes
part in no round before it has caught up (`platform.parties.catching_up`): it would otherwise take
itself for one that has spent less, and answer a second time what it has answered. The private key
is in no backup: it stays where it was made.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from platform.disk.archives import Archive, Manifest
from platform.disk.backups import make_backup, restore_backup
from platform.disk.files import make_folder
from platform.errors import ConfigError
from platform.holder.keeping import KEPT, may_be_kept
from platform.holder.settings import STORE, HolderSettings
from storage import ClientStore, open_client_store
from storage.client_files import stored_version
from storage.copying import copy_databases

KIND: Final = "client"


def back_up_store(settings: HolderSettings, file: Path, now: datetime) -> Manifest:
    """Back up a holder's own store and what it keeps of its runs, also while the client runs.

    Args:
        settings: The holder's.
        file: The backup, which is not there yet.
        now: When it is made, for its manifest.

    Raises:
        ConfigError: If there is no store, or the backup is there already.
        StorageError: If the store is damaged, or the backup cannot be written; then there is none.
    """
    store = require_store(settings)

    def build(folder: Path) -> tuple[Manifest, Mapping[str, Path]]:
        copy = folder / STORE
        copy_databases(store, copy, dict, folder.joinpath)
        examined = folder / "examined"
        shutil.copyfile(copy, examined)
        # A copy of the copy, which may be of an older schema, and stays so.
        opened = open_client_store(examined)
        opened.verify_integrity()
        beside = (f"{KEPT}/{path.name}" for path in (settings.storage / KEPT).glob("*"))
        # What is written just now has another name, and is not there yet.
        known = {name: settings.storage / name for name in beside if may_hold(name)}
        members = {STORE: copy} | known
        facts = {"pseudonym": opened.identity.pseudonym}
        made = now.isoformat(timespec="seconds")
        version = stored_version(copy)
        return Manifest(kind=KIND, schema=version, made=made, facts=facts), members

    return make_backup(file, build, may_hold)


def restore_store(file: Path, settings: HolderSettings, now: datetime) -> Manifest:
    """Bring a data holder's store back where there is none; it must then catch up.

    Args:
        file: The backup.
        settings: The holder's; its storage folder must be missing or empty.
        now: The time, which the store remembers.

    Raises:
        ConfigError: If the backup is none that is whole, or there is something in the folder.
        StorageError: If the store in it is damaged or of a newer version, or cannot be written;
            then nothing is there.
    """

    def lay_out(archive: Archive, folder: Path) -> None:
        if STORE not in archive.manifest.digests:
            raise ConfigError(f"FILE: {str(file)!r} holds no store")
        for name in archive.manifest.digests:
            target = folder / name
            make_folder(target.parent)
            archive.extract(name, target)
        store = open_client_store(folder / STORE)
        store.verify_integrity()
        store.restoring.mark(now)

    return restore_backup(file, settings.storage, kind=KIND, lay_out=lay_out, may_hold=may_hold)


def may_hold(name: str) -> bool:
    """Return whether a backup may hold a member of this name."""
    return name == STORE or may_be_kept(name)


def own_store(settings: HolderSettings) -> ClientStore:
    """Return the holder's own store, to be written to.

    Raises:
        ConfigError: If there is none.
        StorageError: If it cannot be used.
    """
    return open_client_store(require_store(settings))


def require_store(settings: HolderSettings) -> Path:
    """Return where the holder's store lies.

    Raises:
        ConfigError: If there is none.
    """
    path = settings.store_file
    if not path.is_file():
        raise ConfigError(
            f"storage: there is no store at {str(path)!r}; "
            "valid: one that the client's first start has made"
        )
    return path

"""Clients' names, and where the stores of a simulation's clients lie."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from platform.config import RunConfig
from platform.protection.lifetimes import Source
from platform.wire.transport import ClientId
from storage import DatabaseBusy, StorageError, open_client_stores

STORES: Final = "stores.db"
SHARED: Final = "clients"
"""Beside the database: the folder of stores that several runs share."""


def client_names(count: int, kind: str = "client") -> tuple[ClientId, ...]:
    """Return names of all clients, in an order that sorting keeps."""
    return tuple(f"{kind}-{i:05d}" for i in range(count))


def shared_stores(folder: Path) -> tuple[Path, ...]:
    """Return the files of stores that several runs share, of the database in this folder."""
    return tuple(sorted((folder / SHARED).glob(f"*/{STORES}")))


def stores_file(config: RunConfig, run_folder: Path) -> Path:
    """Return the file with the stores of all clients of a run.

    It lies in the run's folder; under a lifetime budget beside it, shared by all runs on the same
    source of data, whatever else they are configured with. A run of an earlier version, where keys
    of the task and seeds told clients apart, keeps the stores that remember it.

    Args:
        config: The run's, or that of a run of the same clients.
        run_folder: The folder of the run whose clients these are; its name is the run's.
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

"""Who has the client's own store: one process that answers, and whoever reads it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from platform.disk.run_lock import Held, held
from platform.errors import ConfigError
from platform.holder.settings import HolderSettings
from storage import ClientStore, StorageFull, open_client_store

Found = TypeVar("Found")
LOCK: Final = "client.lock"
"""File in the storage folder which the process that answers holds."""


@contextmanager
def only_process_with(settings: HolderSettings) -> Iterator[None]:
    """Keep a store to this process, whatever socket another one would answer at.

    Raises:
        ConfigError: If another process answers with it.
        Unwritable: If the lock cannot be made.
    """
    try:
        with held(settings.storage / LOCK):
            yield
    except Held as error:
        raise ConfigError(
            f"storage: another process answers with the store in {str(settings.storage)!r} "
            "already; valid: one process a store"
        ) from error


def read_store(settings: HolderSettings, read: Callable[[ClientStore], Found]) -> Found | None:
    """Return what is read of the holder's store, also beside its client, or after that was killed.

    Who reads beside a writer reads better as one of them: what lies in the write-ahead log then is
    part of what is read, and a log that a killed process left is taken up. Where nothing can be
    written, as in a backup, nobody writes, and it is read alone.

    Args:
        settings: The holder's.
        read: Told the store; writes nothing.

    Returns:
        None where there is no store yet.

    Raises:
        StorageError: The file is no store, or damaged.
    """
    if not settings.store_file.exists():
        return None
    try:
        return read(open_client_store(settings.store_file))
    except StorageFull:
        return read(open_client_store(settings.store_file, read_only=True))

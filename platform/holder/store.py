"""Reading the client's own store beside the process that may be writing to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from platform.holder.settings import HolderSettings
from storage import ClientStore, StorageFull, open_client_store

Found = TypeVar("Found")


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

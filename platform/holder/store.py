"""Reading the client's own store beside the process that may be writing to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from platform.holder.settings import HolderSettings
from storage import ClientStore, DatabaseBusy, open_client_store

ATTEMPTS: Final = 50
PAUSE: Final = 0.1
"""Seconds between two attempts; a client writes for milliseconds at a time."""

Found = TypeVar("Found")


def read_store(settings: HolderSettings, read: Callable[[ClientStore], Found]) -> Found | None:
    """Return what is read of the holder's store; nothing is written, not even beside it.

    Args:
        settings: The holder's.
        read: Called again where the client wrote at the same time.

    Returns:
        None where there is no store yet.

    Raises:
        DatabaseBusy: The client wrote all the time.
        StorageError: The file is no store, or damaged.
    """
    for left in reversed(range(ATTEMPTS)):
        if not settings.store_file.exists():
            return None
        try:
            return read(open_client_store(settings.store_file, read_only=True))
        except DatabaseBusy:
            if not left:
                raise
            time.sleep(PAUSE)
    return None

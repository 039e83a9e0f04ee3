"""The long-lived process of a data holder: it waits on its own socket for what relays bring."""

from __future__ import annotations

from platform.errors import PlatformError
from platform.holder.settings import HolderSettings


def serve(settings: HolderSettings, *, as_json: bool) -> None:
    """Serve the holder's socket until the process is ended.

    Args:
        settings: The holder's.
        as_json: Whether log lines are JSON.

    Raises:
        PlatformError: Always, so far.
    """
    raise PlatformError(f"client {settings.name}: serving is not built yet")

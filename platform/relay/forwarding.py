"""A relay without an engine: from the hub to clients' sockets on the same machine, and back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

from platform.errors import ProtocolError
from platform.relay.links import FIRST_PAUSE, LONGEST_PAUSE, HubLink, Parcel, deliver, lost


def forward(hub: Path, clients: Mapping[str, Path], ended: Event) -> None:
    """Carry messages until told to end, however often coordinator or clients are started anew.

    Args:
        hub: The coordinator's socket.
        clients: Each client's socket by its name.
        ended: Says when to end.
    """
    pause = FIRST_PAUSE
    with ThreadPoolExecutor(max(1, len(clients)), thread_name_prefix="relay") as workers:
        while not ended.is_set():
            try:
                with HubLink.to(hub, tuple(clients)) as link:
                    pause = FIRST_PAUSE
                    while not ended.is_set():
                        for parcel in link.waiting(0.2):
                            workers.submit(_carry, link, clients[parcel.client], parcel)
            except (OSError, ProtocolError):
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


def _carry(link: HubLink, client: Path, parcel: Parcel) -> None:
    try:
        outcome = deliver(client, parcel.packet, parcel.seconds)
    except TimeoutError:
        outcome = lost(parcel.number, "the client's process gave no outcome in time")
    # If the coordinator is gone it will ask again.
    with suppress(OSError):
        link.answer(outcome)

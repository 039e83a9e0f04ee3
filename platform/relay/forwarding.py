"""What every relay does: takes requests from the hub, has them carried, hands back the outcomes.

Each request is carried in a thread of its own, so a client that is slow holds up nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from platform.errors import ProtocolError
from platform.relay.links import FIRST_PAUSE, LONGEST_PAUSE, HubLink, Parcel, deliver, lost
from platform.relay.packets import decode_outcome

Carrying = Callable[[Parcel], bytes | None]
"""Brings a request to its client and returns the outcome; None if the hub is to ask again."""
LATE = "the client's process gave no outcome in time"


def relay(hub: Path, clients: Sequence[str], carry: Carrying, ended: Callable[[], bool]) -> None:
    """Have messages carried until told to end, however often the coordinator is started anew.

    Args:
        hub: The coordinator's socket.
        clients: Whose messages are carried.
        carry: Brings a request to its client, and knows by itself that no other one answers.
        ended: Says whether to end.
    """
    pause = FIRST_PAUSE
    while not ended():
        try:
            with HubLink.to(hub, tuple(clients)) as link:
                pause = FIRST_PAUSE
                while not ended():
                    for parcel in link.waiting(0.2):
                        _start(link, carry, parcel)
        except (OSError, ProtocolError):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def forward(hub: Path, clients: Mapping[str, Path], ended: threading.Event) -> None:
    """Carry messages between sockets of one machine until told to end.

    Args:
        hub: The coordinator's socket.
        clients: Each client's socket by its name.
        ended: Says when to end.
    """
    relay(
        hub, tuple(clients), lambda parcel: hand_over(clients[parcel.client], parcel), ended.is_set
    )


def hand_over(client: Path, parcel: Parcel) -> bytes:
    """Return what a client's process says to a request, or that it says nothing in time."""
    try:
        return deliver(client, parcel.packet, parcel.seconds)
    except TimeoutError:
        return lost(parcel.number, LATE)


def _start(link: HubLink, carry: Carrying, parcel: Parcel) -> None:
    name = f"relay-{parcel.client}-{parcel.number}"
    work = partial(_bring_back, link, carry, parcel)
    threading.Thread(target=work, name=name, daemon=True).start()


def _bring_back(link: HubLink, carry: Carrying, parcel: Parcel) -> None:
    outcome = carry(parcel)
    if outcome is None:
        return
    # If the coordinator is gone it will ask again.
    with suppress(OSError):
        link.answer(_of(parcel, outcome))


def _of(parcel: Parcel, outcome: bytes) -> bytes:
    """Return the outcome if it is this request's: nobody answers what another was asked."""
    try:
        same = decode_outcome(outcome).number == parcel.number
    except ProtocolError:
        same = False
    return outcome if same else lost(parcel.number, "what came back is no outcome of this request")

"""The server's side: it carries messages between hub and SuperLink, also after restarts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform.relay.flower.connection import Place, asked, outcome_of
from platform.relay.flower.superlink import SuperLink
from platform.relay.links import LONGEST_PAUSE, Parcel, lost, relay

LOOK: Final = 0.05
"""Seconds between two checks for answers."""
NODES: Final = 1.0
"""Seconds between two checks for connected nodes."""
AGAIN: Final = 15.0
"""Seconds until `Pump` sends a message without an answer again; doubled each time."""
ABSENT: Final = 0.2
"""Seconds until `Pump` offers a message again that SuperLink refused."""
LATE: Final = "the client's node gave no outcome in time"


@dataclass(eq=False, kw_only=True)
class _Asked:
    """An open request, with the secret of each of its messages by the message's number."""

    parcel: Parcel
    outcome: Future[bytes | None] = field(default_factory=Future)
    secrets: dict[str, bytes] = field(default_factory=dict)
    end: float = 0.0
    again: float = 0.0
    wait: float = AGAIN

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.parcel.seconds


def carry_through(
    *,
    place: Place,
    secret: bytes,
    enrolled: Mapping[str, bytes],
    hub: Path,
    ended: threading.Event,
    tell: Callable[[str], None],
) -> None:
    """Carry messages between a hub and nodes until told to end.

    Args:
        place: Where SuperLink is.
        secret: Allows its owner to take SuperLink's tasks.
        enrolled: Each client's public key by the client's name.
        hub: The coordinator's socket.
        ended: Set when the relay must end.
        tell: Gets a line for each event.
    """
    while not ended.is_set():
        try:
            with SuperLink.opened(place, secret, enrolled) as superlink:
                _follow(superlink, hub, ended, tell)
        except Exception as error:  # the engine may raise any error: try again
            tell(f"not connected: {type(error).__name__}: {error}")
            ended.wait(LONGEST_PAUSE)


def _follow(
    superlink: SuperLink, hub: Path, ended: threading.Event, tell: Callable[[str], None]
) -> None:
    pump = Pump(superlink, tell)
    worker = threading.Thread(target=pump.until, args=(ended,), daemon=True)
    worker.start()
    # If SuperLink is lost, end the link to the hub too; the hub then repeats all open requests.
    relay(hub, tuple(superlink.nodes), pump.carry, lambda: not worker.is_alive())


class Pump:
    """Hands requests to SuperLink and fetches answers, all in one thread."""

    def __init__(self, superlink: SuperLink, tell: Callable[[str], None]) -> None:
        """Take an open run, and a function that gets a line for each event."""
        self._superlink = superlink
        self._tell = tell
        self._new: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._open: list[_Asked] = []
        self._there: frozenset[str] = frozenset()
        self._since: dict[str, str] = {}
        self._looked = 0.0
        self._lost = False

    def carry(self, parcel: Parcel) -> bytes | None:
        """Bring a request to its client's node; return the outcome, or None to be asked again."""
        request = _Asked(parcel=parcel)
        self._new.put(request)
        if self._lost:
            return None
        return request.outcome.result()

    def until(self, ended: threading.Event) -> None:
        """Work until `ended` is set or SuperLink is lost."""
        try:
            while not ended.is_set():
                self._step()
                time.sleep(LOOK)
        except Exception as error:  # the engine may raise any error: connect anew
            self._tell(f"lost: {type(error).__name__}: {error}")
        self._lost = True
        self._take()
        for request in self._open:
            request.outcome.set_result(None)

    def _step(self) -> None:
        now = time.monotonic()
        if now - self._looked > NODES:
            self._look()
            self._looked = now
        self._take()
        due = [request for request in self._open if now >= request.again]
        self._push(due, now)
        numbers = {number: r for r in self._open for number in r.secrets}
        for reply in self._superlink.pull(list(numbers)) if numbers else ():
            number = reply.metadata.reply_to_message_id
            request = numbers[number]
            outcome = outcome_of(reply, request.secrets.pop(number))
            if outcome is None:
                # The answer came from an unknown sender: ask the client again.
                request.again = 0.0
            elif request in self._open:
                self._close(request, outcome)
        for request in [r for r in self._open if now >= r.end]:
            self._close(request, lost(request.parcel.number, LATE))

    def _take(self) -> None:
        while not self._new.empty():
            self._open.append(self._new.get())

    def _push(self, due: list[_Asked], now: float) -> None:
        messages = []
        for request in due:
            parcel, left = request.parcel, max(0.1, request.end - now)
            node = self._superlink.nodes[parcel.client]
            messages.append((request, *asked(node, parcel.packet, left)))
        numbers = self._superlink.push([message for _, message, _ in messages])
        for number, (request, _, secret) in zip(numbers, messages, strict=True):
            # SuperLink refuses messages for a node that never connected.
            request.again = now + (request.wait if number else ABSENT)
            if number:
                request.wait *= 2
                request.secrets[number] = secret

    def _close(self, request: _Asked, outcome: bytes) -> None:
        self._open.remove(request)
        request.outcome.set_result(outcome)

    def _look(self) -> None:
        since = self._superlink.looked()
        if since.keys() != self._there:
            self._tell(f"there: {' '.join(sorted(since))}")
        for request in self._open:
            client = request.parcel.client
            # The node connected anew and has lost the messages that it had fetched.
            if client in since and since[client] != self._since.get(client, since[client]):
                request.again = 0.0
        self._since |= since
        self._there = frozenset(since)

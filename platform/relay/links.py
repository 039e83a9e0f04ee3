"""A relay's two ends: what an engine's job on the server's side and on a client's side call.

    with HubLink.to(hub, clients) as link:              with engine:
        for request in link.waiting(1.0): ...               outcome = deliver(socket, request)
        link.answer(outcome)

Requests and outcomes are bytes to whoever carries them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from platform.errors import ProtocolError
from platform.relay.packets import (
    Hello,
    Outcome,
    Query,
    Status,
    decode_packet,
    decode_request,
    encode_packet,
)
from platform.relay.streams import connect, is_readable, receive, send

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True)
class Parcel:
    """A request as a relay carries it.

    Attributes:
        number: Tells it from all others.
        client: Whom it is for.
        seconds: How long the hub waits.
        packet: To be handed to the client's process as it is.
    """

    number: int
    client: str
    seconds: float
    packet: bytes


@dataclass(frozen=True)
class HubLink:
    """A connection to the coordinator's hub; several threads may answer through it."""

    sock: socket.socket
    _sending: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def to(cls, hub: Path, clients: Sequence[str]) -> Self:
        """Connect, and say whose messages are carried here.

        Raises:
            OSError: If no coordinator listens there.
        """
        link = cls(connect(hub))
        link._send(encode_packet(Hello(tuple(clients))))
        return link

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.sock.close()

    def waiting(self, seconds: float) -> list[Parcel]:
        """Return the requests that are there, waiting so long for the first; [] if none came.

        Raises:
            ConnectionError: If the coordinator has hung up.
            OSError: If the connection failed.
            ProtocolError: If it says what is no request.
        """
        found: list[Parcel] = []
        while is_readable(self.sock, 0.0 if found else seconds):
            packet = receive(self.sock)
            if packet is None:
                raise ConnectionResetError("the coordinator has hung up")
            asked = decode_request(packet)
            found.append(Parcel(asked.number, asked.client, asked.seconds, packet))
        return found

    def answer(self, outcome: bytes) -> None:
        """Hand over an outcome as it came from the client's process.

        Raises:
            OSError: If the connection failed; the hub will ask again.
        """
        self._send(outcome)

    def _send(self, packet: bytes) -> None:
        with self._sending:
            send(self.sock, packet)


def status_of(hub: Path, seconds: float) -> Status:
    """Ask a hub who is there.

    Raises:
        OSError: If no coordinator listens there, or it does not answer in that time.
        ProtocolError: If what it says is no status.
    """
    with connect(hub, seconds) as sock:
        send(sock, encode_packet(Query()))
        packet = receive(sock)
    found = decode_packet(packet or b"")
    if not isinstance(found, Status):
        raise ProtocolError("packet: a status was expected")
    return found


def lost(number: int, reason: str) -> bytes:
    """Return the outcome of a request that could not be delivered."""
    return encode_packet(Outcome(number, "lost", reason))


def deliver(client: Path, packet: bytes, seconds: float) -> bytes:
    """Hand a request to a client's process, and return its outcome.

    Tried again while the process is not there (it may be starting), until the time is over. The
    same request may be delivered any number of times.

    Args:
        client: The process's socket.
        packet: The request.
        seconds: How long to try and wait.

    Raises:
        TimeoutError: If there is no outcome in that time.
    """
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client gave no outcome in time")
        try:
            with connect(client, left) as sock:
                send(sock, packet)
                outcome = receive(sock)
        except TimeoutError:
            raise
        except (OSError, ProtocolError):
            outcome = None
        if outcome is not None:
            return outcome
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, LONGEST_PAUSE)

"""The data holder's socket: one message at a time, however many relays are connected.

Nothing that a message causes ends the process but the operator: an error inside becomes "no
answer", and what it was stays in the process's own log.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform.errors import CoordinatorBehind, ProtocolError
from platform.relay.packets import (
    LONGEST_REASON,
    Outcome,
    Request,
    decode_request,
    encode_packet,
    is_readable,
    listening,
    receive,
    send,
)
from platform.wire.transport import Dropout, Handler, answer

FIELD: Final = "socket"
_PATIENCE: Final = 0.2
_IDLE: Final = 3600.0
"""Seconds after which a silent connection is closed; a relay connects for each request."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Answers requests at a socket.

    Attributes:
        name: The client's; requests for others are refused.
        path: Of the socket.
        handler: Answers a message.
        tell: Told of what failed, for the process's own log.
    """

    name: str
    path: Path
    handler: Handler
    tell: Callable[[str], None] = lambda line: None
    _one: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def until(self, ended: threading.Event, started: Callable[[], None] = lambda: None) -> None:
        """Serve until told to end; a request that is being answered is answered first.

        Args:
            ended: Says when.
            started: Called once the socket listens.

        Raises:
            ConfigError: If the socket cannot be had, or another process serves there.
        """
        with listening(self.path, FIELD) as sock:
            started()
            try:
                while not ended.is_set():
                    if is_readable(sock, _PATIENCE):
                        self._accept(sock, ended)
            finally:
                self.path.unlink(missing_ok=True)
                # Whoever is at work ends its transaction first.
                self._one.acquire()

    def _accept(self, sock: socket.socket, ended: threading.Event) -> None:
        """Take one connection; where there are too many it waits until others are closed."""
        try:
            connection, _ = sock.accept()
        except OSError as error:
            self.tell(f"no further connection: {error.strerror}")
            ended.wait(_PATIENCE)
            return
        worker = threading.Thread(target=self._talk, args=(connection,), daemon=True)
        worker.start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ProtocolError):
            connection.settimeout(_IDLE)
            while (packet := receive(connection)) is not None:
                send(connection, encode_packet(self._outcome(decode_request(packet))))

    def _outcome(self, request: Request) -> Outcome:
        if request.client != self.name:
            return Outcome(request.number, "lost", "the message is for another client")
        try:
            with self._one:
                reply = answer(self.handler, request.body)
        except CoordinatorBehind as error:
            self.tell(f"refused: {error}")
            return Outcome(request.number, "behind", str(error)[:LONGEST_REASON])
        # Of any kind: the next message must find somebody here.
        except Exception as error:
            self.tell(f"failed: {type(error).__name__}: {error}")
            return Outcome(request.number, "lost", "the client failed")
        if isinstance(reply, Dropout):
            self.tell(f"refused: {reply.reason}")
            return Outcome(request.number, "lost", reply.reason)
        return Outcome(request.number, "answer", "", reply)

"""The process of a data holder: its socket, the offers that it considers, and its clients of runs.

The process keeps an accepted offer beside the client's store. So a restarted process is the same
client in the same runs. Under one run's name the holder accepts only one configuration.

The socket answers one message at a time, for any number of connected relays. Only the operator ends
the process: an error inside becomes "no answer", and its text stays in the process's own log.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from platform.errors import ConfigError, CoordinatorBehind, Declined, ProtocolError, UnknownRun
from platform.holder.store import Keeping
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
from platform.wire.codec import peek
from platform.wire.outside_rounds import (
    Acceptance,
    Offer,
    decode_offer,
    encode_acceptance,
    encode_offer,
)
from platform.wire.receipt_messages import bare
from platform.wire.transport import Dropout, Handler, answer

if TYPE_CHECKING:
    from platform.parties.client import Client

MOST_RUNS: Final = 4
"""Runs whose clients are in memory at once, the newest."""
UNFIT: Final = "the run cannot be set up on this client's machine; its own log says why"
"""The coordinator hears this sentence if the reason itself must stay with the data holder."""


@dataclass(kw_only=True)
class Host:
    """Answers every message that reaches a data holder's process.

    Attributes:
        folder: The client's storage folder.
        consider: Raises `Declined` or `ConfigError` to decline an offered run. It reads settings
            and public facts, and no images, because its answer has no charge.
        join: Makes the client of an accepted run, when the run sends its first message. It raises
            as `consider` does if limits were tightened since, and never because of the images.
        tell: Hears of accepted and declined offers, for the log.
        erase: Erases a run that the client left from the client's store, except its charges.
    """

    folder: Path
    consider: Callable[[Offer], object]
    join: Callable[[Offer], Client]
    tell: Callable[[str], None] = lambda line: None
    erase: Callable[[str], None] = lambda run_id: None
    _clients: dict[str, Client] = field(default_factory=dict, init=False)
    _erased: set[str] = field(default_factory=set, init=False)

    def handle(self, message: bytes) -> bytes:
        """Answer one message of an accepted run; the run's client may refuse it."""
        kind, envelope = peek(message)
        run_id = envelope.run_id
        farewell = self._farewell(run_id)
        if farewell is not None:
            return farewell
        try:
            reply = self._answer(kind, run_id, message)
        finally:
            # The owner may have left meanwhile in another process: this erases new writes too.
            farewell = self._farewell(run_id)
        return reply if farewell is None else farewell

    def _answer(self, kind: str, run_id: str, message: bytes) -> bytes:
        if kind == "offer":
            return self._reply(decode_offer(message))
        reply = self.client_of(run_id).handle(message)
        if kind in ("parting", "enclosed") and peek(bare(message))[0] == "parting":
            # All clients get the same model after the last round; the first parting counts.
            if self._keeping.read(run_id, "parting") is None:
                self._keeping.keep(run_id, "parting", bare(message))
                self.tell(f"run {run_id}: has ended, and its model is kept here")
        return reply

    def _farewell(self, run_id: str) -> bytes | None:
        """Return the statement of having left a run for good, None if the holder has not left.

        Before the statement's first use the host erases all of the run: the process that left may
        have been killed before it had erased the run.
        """
        statement = self._keeping.read(run_id, "left")
        if statement is not None and run_id not in self._erased:
            self._clients.pop(run_id, None)
            self.erase(run_id)
            self._erased.add(run_id)
            self.tell(f"run {run_id}: was left for good; nothing more is answered in it")
        return statement

    @property
    def _keeping(self) -> Keeping:
        return Keeping(self.folder)

    def parting(self, run_id: str) -> bytes:
        """Return the parting of a run that is over, or `UnknownRun`."""
        try:
            kept = self._keeping.read(run_id, "parting")
        except ProtocolError:
            kept = None
        if kept is None:
            raise UnknownRun(
                f"RUN: no run {run_id!r} has ended here; valid: one that has, see `budget`"
            )
        return kept

    def offer(self, run_id: str) -> Offer:
        """Return the offer of an accepted run; `ProtocolError` for another run."""
        kept = self._keeping.read(run_id, "offer")
        if kept is None:
            raise ProtocolError("message: it belongs to no run that was accepted here")
        return decode_offer(kept)

    def _reply(self, offer: Offer) -> bytes:
        run_id = offer.envelope.run_id
        kept = self._keeping.read(run_id, "offer")
        if kept is not None and decode_offer(kept) != offer:
            reasons: tuple[str, ...] = (f"run {run_id} was offered before with other terms",)
        else:
            reasons = self._accept(offer)
        said = "accepted" if not reasons else f"declined: {'; '.join(reasons)}"
        self.tell(f"run {run_id}: {said}")
        return encode_acceptance(Acceptance(offer.envelope, reasons))

    def _accept(self, offer: Offer) -> tuple[str, ...]:
        run_id = offer.envelope.run_id
        try:
            if run_id not in self._clients:
                self.consider(offer)
        except Declined as error:
            return error.reasons
        except ConfigError as error:
            # The error may name this machine's files.
            self.tell(f"run {run_id}: {error}")
            return (UNFIT,)
        # Only accepted offers are kept.
        self._keeping.keep(run_id, "offer", encode_offer(offer))
        return ()

    def client_of(self, run_id: str) -> Client:
        """Return the client of an accepted run in which it takes part, or `ProtocolError`."""
        if run_id not in self._clients:
            try:
                client = self.join(self.offer(run_id))
            except (Declined, ConfigError) as error:
                # Limits were tightened since it was accepted, or keys or weights were moved.
                self.tell(f"run {run_id}: no longer takes part: {error}")
                raise ProtocolError("message: the client does not take part in the run") from error
            # A client's state is in its store: the next message makes a dropped client again.
            while len(self._clients) >= MOST_RUNS:
                del self._clients[next(iter(self._clients))]
            self._clients[run_id] = client
        return self._clients[run_id]


FIELD: Final = "socket"
_PATIENCE: Final = 0.2
_IDLE: Final = 3600.0
"""Seconds after which a silent connection is closed; a relay connects for each request."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Answers requests at a socket.

    Attributes:
        name: The client's; requests for other clients are refused.
        path: Path of the socket.
        handler: Answers a message.
        tell: Hears of failures, for the process's own log.
    """

    name: str
    path: Path
    handler: Handler
    tell: Callable[[str], None] = lambda line: None
    _one: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def until(self, ended: threading.Event, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `ended` is set; a request in progress is answered first.

        `started` is called after the socket listens.
        """
        with listening(self.path, FIELD) as sock:
            started()
            try:
                while not ended.is_set():
                    if is_readable(sock, _PATIENCE):
                        self._accept(sock, ended)
            finally:
                self.path.unlink(missing_ok=True)
                # A thread that is answering ends its transaction first.
                self._one.acquire()

    def _accept(self, sock: socket.socket, ended: threading.Event) -> None:
        """Take one connection; if there are too many, wait until others are closed."""
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
        # Every type of error: the process must go on and answer the next message.
        except Exception as error:
            self.tell(f"failed: {type(error).__name__}: {error}")
            return Outcome(request.number, "lost", "the client failed")
        if isinstance(reply, Dropout):
            self.tell(f"refused: {reply.reason}")
            return Outcome(request.number, "lost", reply.reason)
        return Outcome(request.number, "answer", "", reply)

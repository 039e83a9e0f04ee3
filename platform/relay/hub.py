"""The coordinator's end: a socket that relays connect to, and the transport that speaks through it.

A request stays open until it is answered or its time is over. A relay that connects, for the first
time or again, gets all open requests of its clients. So an engine that dies and is started again
goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from platform.errors import ConfigError, CoordinatorBehind, ProtocolError
from platform.relay.packets import (
    LENGTH,
    ClientStatus,
    Hello,
    Outcome,
    Query,
    Request,
    Status,
    decode_outcome,
    decode_packet,
    encode_packet,
    listening,
    require_length,
)
from platform.wire.messages import Stage
from platform.wire.transport import ClientId, Dropout

FIELD: Final = "federation.socket"
NUMBER_BITS: Final = 52
"""Bits of a hub's first number, so that all later numbers are exact integers in any JSON."""
TELLING: Final = 0.1
"""Seconds between two reports to the observer of who is missing."""
Result = TypeVar("Result")


@dataclass
class _Open:
    """A request that has no outcome yet."""

    client: ClientId
    stage: Stage
    packet: bytes
    outcome: asyncio.Future[Outcome]


@dataclass(frozen=True)
class Told:
    """The hub's calls to an observer, made in the hub's own thread.

    Attributes:
        connected: Says whether a client can be reached now.
        waiting: Names the clients that a stage waits for; an empty set at its end.
    """

    connected: Callable[[ClientId, bool], None] = lambda client, there: None
    waiting: Callable[[Stage, frozenset[ClientId]], None] = lambda stage, clients: None


class Hub:
    """Listens for relays, and hands clients their messages."""

    def __init__(
        self, *, path: Path, clients: Sequence[ClientId], told: Told | None = None
    ) -> None:
        """Keep the settings; `__enter__` opens the socket.

        Args:
            path: Of its socket.
            clients: All clients' names; a relay may carry no other client's messages.
            told: The observer.
        """
        self.path = path
        self.clients = tuple(clients)
        self.told = told or Told()
        self._links: dict[ClientId, asyncio.StreamWriter] = {}
        self._open: dict[int, _Open] = {}
        self._relays: set[asyncio.Task[None]] = set()
        self._last: dict[ClientId, str] = {}
        # The first number is drawn, so late outcomes for an earlier coordinator match no request.
        self._numbers = secrets.randbits(NUMBER_BITS)

    def __enter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: If the hub cannot listen at this path.
        """
        sock = listening(self.path, FIELD)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)
        self._thread.start()
        self._server = self._wait(asyncio.start_unix_server(self._serve, sock=sock))
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up, and leave no socket behind."""

        async def hang_up() -> None:
            self._server.close()
            for relay in list(self._relays):
                relay.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*self._relays, return_exceptions=True)

        self._wait(hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.path.unlink(missing_ok=True)

    @property
    def connected(self) -> frozenset[ClientId]:
        """The clients that some relay carries now."""
        return frozenset(self._links)

    def exchange(
        self,
        stage: Stage,
        messages: Mapping[ClientId, bytes],
        seconds: float,
        enough: int | None = None,
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message and wait for the outcomes.

        Args:
            stage: What is asked.
            messages: By client.
            seconds: How long to wait at most, in s.
            enough: The wait ends as soon as so many clients have answered (a refusal or a loss is
                no answer); None waits for all.

        Raises:
            CoordinatorBehind: If a client knows of a newer commit.
        """
        return self._wait(self._exchange(stage, messages, seconds, enough))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _exchange(
        self,
        stage: Stage,
        messages: Mapping[ClientId, bytes],
        seconds: float,
        enough: int | None,
    ) -> dict[ClientId, bytes | Dropout]:
        numbers = {c: self._ask(stage, c, body, seconds) for c, body in messages.items()}
        waiting = {client: self._open[number].outcome for client, number in numbers.items()}
        telling = asyncio.ensure_future(self._tell(stage, waiting))
        try:
            late = Dropout(await _until(waiting.values(), seconds, enough))
        finally:
            telling.cancel()
            for number in numbers.values():
                self._open.pop(number, None)
            self.told.waiting(stage, frozenset())
        outcomes = {c: future.result() if future.done() else None for c, future in waiting.items()}
        for client, outcome in outcomes.items():
            if outcome is not None and outcome.kind == "behind":
                raise CoordinatorBehind(f"{client}: {outcome.reason}")
        replies: dict[ClientId, bytes | Dropout] = {}
        for client, outcome in outcomes.items():
            if outcome is None:
                replies[client] = late
            else:
                answered = outcome.kind == "answer"
                replies[client] = outcome.body if answered else Dropout(outcome.reason)
        self._last.update(
            {c: r.reason if isinstance(r, Dropout) else "answer" for c, r in replies.items()}
        )
        return replies

    async def _tell(
        self, stage: Stage, waiting: Mapping[ClientId, asyncio.Future[Outcome]]
    ) -> None:
        """Report who is missing at intervals; a report after each answer would cost n^2."""
        told, missing = None, frozenset(waiting)
        while missing:
            if missing != told:
                self.told.waiting(stage, missing)
            await asyncio.sleep(TELLING)
            told, missing = missing, frozenset(c for c in missing if not waiting[c].done())

    def _ask(self, stage: Stage, client: ClientId, message: bytes, seconds: float) -> int:
        self._numbers += 1
        packet = encode_packet(Request(self._numbers, client, seconds, message))
        self._open[self._numbers] = _Open(client, stage, packet, self._loop.create_future())
        if client in self._links:
            _write(self._links[client], packet)
        return self._numbers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)
        try:
            await self._follow(reader, writer)
        except (ProtocolError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The relay's requests stay open for when it is back, or the hub itself hangs up.
            pass
        finally:
            for client in [client for client, link in self._links.items() if link is writer]:
                del self._links[client]
                self.told.connected(client, False)
            writer.close()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = decode_packet(await _read(reader))
        if isinstance(hello, Query):
            asked = {waiting.client: waiting.stage for waiting in self._open.values()}
            last = self._last
            status = Status(
                tuple(
                    ClientStatus(name, name in self._links, asked.get(name, ""), last.get(name, ""))
                    for name in self.clients
                )
            )
            _write(writer, encode_packet(status))
            await writer.drain()
            return
        if not isinstance(hello, Hello) or not set(hello.clients) <= set(self.clients):
            raise ProtocolError("packet: a relay says first which of the clients it carries")
        clients = frozenset(hello.clients)
        for client in sorted(clients):
            self._links[client] = writer
            self.told.connected(client, True)
        for waiting in self._open.values():
            if waiting.client in clients and not waiting.outcome.done():
                _write(writer, waiting.packet)
        while True:
            outcome = decode_outcome(await _read(reader))
            known = self._open.get(outcome.number)
            # A late or repeated outcome changes nothing; a relay answers for its own clients only.
            if known is None or self._links.get(known.client) is not writer:
                continue
            if not known.outcome.done():
                known.outcome.set_result(outcome)


@dataclass(frozen=True)
class HubTransport:
    """The transport of a federation whose clients are elsewhere.

    Attributes:
        hub: Where relays connect.
        seconds: How long a stage waits if its caller names no deadline, by stage.
        otherwise: How long all other stages wait.
        enough: A round goes on as soon as so many updates are there; None waits for all.
    """

    hub: Hub
    seconds: Mapping[Stage, float]
    otherwise: float
    enough: int | None = None

    def __post_init__(self) -> None:
        """Refuse waits that are not above zero."""
        for wait in (*self.seconds.values(), self.otherwise):
            if wait <= 0:
                raise ConfigError(f"federation.deadlines: {wait} is no time; valid: above 0 s")

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message and wait, as `Transport` says."""
        own = self.seconds.get(stage, self.otherwise)
        seconds = own if deadline is None else deadline
        enough = self.enough if stage == "train" else None
        return self.hub.exchange(stage, messages, seconds, enough)


async def _until(
    asked: Collection[asyncio.Future[Outcome]], seconds: float, enough: int | None
) -> str:
    """Wait for the outcomes; return the reason that clients without an outcome are given."""
    over, left, needed = asyncio.Event(), len(asked), len(asked) if enough is None else enough
    answers = 0

    def count(outcome: asyncio.Future[Outcome]) -> None:
        nonlocal left, answers
        left -= 1
        answers += outcome.result().kind == "answer"
        if not left or answers >= needed:
            over.set()

    for outcome in asked:
        outcome.add_done_callback(count)
    try:
        if asked:
            await asyncio.wait_for(over.wait(), seconds)
    except TimeoutError:
        return f"no answer in {seconds:g} s"
    return f"the round goes on with {answers} others, who were faster"


def _write(writer: asyncio.StreamWriter, packet: bytes) -> None:
    writer.write(LENGTH.pack(len(packet)))
    writer.write(packet)


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    require_length(length)
    return await reader.readexactly(length)

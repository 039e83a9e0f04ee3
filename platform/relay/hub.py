"""The coordinator's end: the hub, a socket that relays connect to, and the transport that uses it.

A request stays open until a client answers or the deadline passes. Whenever a relay connects, the
hub sends it all open requests of its clients. So an engine that dies and restarts continues where
it stopped.
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
from platform.relay import packets
from platform.wire.messages import Stage
from platform.wire.transport import ClientId, Dropout

FIELD: Final = "federation.socket"
NUMBER_BITS: Final = 52
"""Bits of a hub's first request number: all later numbers are still exact integers in any JSON."""
TELLING: Final = 0.1
"""Seconds between two reports to the observer about clients that have not answered."""
Result = TypeVar("Result")


@dataclass
class _Open:
    """A request that has no outcome yet."""

    client: ClientId
    stage: Stage
    packet: bytes
    outcome: asyncio.Future[packets.Outcome]


@dataclass(frozen=True)
class Told:
    """The hub's calls to an observer, made in the hub's own thread.

    Attributes:
        connected: Gets a client and whether the hub can reach that client now.
        waiting: Gets the clients that a stage waits for; an empty set when the stage ends.
    """

    connected: Callable[[ClientId, bool], None] = lambda client, there: None
    waiting: Callable[[Stage, frozenset[ClientId]], None] = lambda stage, clients: None


class Hub:
    """Listens for relays, and hands clients their messages."""

    def __init__(
        self, *, path: Path, clients: Sequence[ClientId], told: Told | None = None
    ) -> None:
        """Keep the settings; `__enter__` opens the socket.

        A relay may carry messages of these clients only.
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
        """Listen."""
        sock = packets.listening(self.path, FIELD)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)
        self._thread.start()
        self._server = self._wait(asyncio.start_unix_server(self._serve, sock=sock))
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections and remove the socket."""

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

        The wait ends as soon as `enough` clients have answered (a refusal or a loss does not
        count); None waits for all clients. A client that knows of a newer commit raises
        `CoordinatorBehind`.
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
        self, stage: Stage, messages: Mapping[ClientId, bytes], seconds: float, enough: int | None
    ) -> dict[ClientId, bytes | Dropout]:
        numbers: list[int] = []
        waiting: dict[ClientId, asyncio.Future[packets.Outcome]] = {}
        for client, message in messages.items():
            self._numbers += 1
            numbers.append(self._numbers)
            packet = packets.encode_packet(packets.Request(self._numbers, client, seconds, message))
            waiting[client] = self._loop.create_future()
            self._open[self._numbers] = _Open(client, stage, packet, waiting[client])
            if client in self._links:
                _write(self._links[client], packet)
        telling = asyncio.ensure_future(self._tell(stage, waiting))
        try:
            late = Dropout(await _until(waiting.values(), seconds, enough))
        finally:
            telling.cancel()
            for number in numbers:
                self._open.pop(number, None)
            self.told.waiting(stage, frozenset())
        replies: dict[ClientId, bytes | Dropout] = {}
        for client, future in waiting.items():
            outcome = future.result() if future.done() else None
            if outcome is None:
                replies[client] = late
            elif outcome.kind == "behind":
                raise CoordinatorBehind(f"{client}: {outcome.reason}")
            else:
                answered = outcome.kind == "answer"
                replies[client] = outcome.body if answered else Dropout(outcome.reason)
        self._last.update(
            {c: r.reason if isinstance(r, Dropout) else "answer" for c, r in replies.items()}
        )
        return replies

    async def _tell(
        self, stage: Stage, waiting: Mapping[ClientId, asyncio.Future[packets.Outcome]]
    ) -> None:
        """Report missing clients at intervals; a report after each answer would cost n^2."""
        told, missing = None, frozenset(waiting)
        while missing:
            if missing != told:
                self.told.waiting(stage, missing)
            await asyncio.sleep(TELLING)
            told, missing = missing, frozenset(c for c in missing if not waiting[c].done())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)
        try:
            await self._follow(reader, writer)
        except (ProtocolError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The relay's requests stay open until it connects again, or the hub itself is closing.
            pass
        finally:
            for client in [client for client, link in self._links.items() if link is writer]:
                del self._links[client]
                self.told.connected(client, False)
            writer.close()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = packets.decode_packet(await _read(reader))
        if isinstance(hello, packets.Query):
            asked = {waiting.client: waiting.stage for waiting in self._open.values()}
            last = self._last
            status = packets.Status(
                tuple(
                    packets.ClientStatus(
                        name, name in self._links, asked.get(name, ""), last.get(name, "")
                    )
                    for name in self.clients
                )
            )
            _write(writer, packets.encode_packet(status))
            await writer.drain()
            return
        if not isinstance(hello, packets.Hello) or not set(hello.clients) <= set(self.clients):
            raise ProtocolError("packet: a relay must first name the clients that it carries")
        clients = frozenset(hello.clients)
        for client in sorted(clients):
            self._links[client] = writer
            self.told.connected(client, True)
        for waiting in self._open.values():
            if waiting.client in clients and not waiting.outcome.done():
                _write(writer, waiting.packet)
        while True:
            outcome = packets.decode_outcome(await _read(reader))
            known = self._open.get(outcome.number)
            # Ignore late and repeated outcomes, and outcomes for clients of another relay.
            if known is None or self._links.get(known.client) is not writer:
                continue
            if not known.outcome.done():
                known.outcome.set_result(outcome)


@dataclass(frozen=True)
class HubTransport:
    """The transport of a federation whose clients run in other processes.

    Attributes:
        seconds: Each stage's wait, in s, if its caller gives no deadline.
        otherwise: The wait of all other stages, in s.
        enough: A round continues as soon as this many updates have arrived; None waits for all.
    """

    hub: Hub
    seconds: Mapping[Stage, float]
    otherwise: float
    enough: int | None = None

    def __post_init__(self) -> None:
        """Refuse waits that are not above zero."""
        for wait in (*self.seconds.values(), self.otherwise):
            if wait <= 0:
                raise ConfigError(f"federation.deadlines: {wait} s is not valid; valid: above 0 s")

    def exchange(
        self, stage: Stage, messages: Mapping[ClientId, bytes], deadline: float | None
    ) -> Mapping[ClientId, bytes | Dropout]:
        """Send each client its message and wait, as `Transport` says."""
        own = self.seconds.get(stage, self.otherwise)
        seconds = own if deadline is None else deadline
        enough = self.enough if stage == "train" else None
        return self.hub.exchange(stage, messages, seconds, enough)


async def _until(
    asked: Collection[asyncio.Future[packets.Outcome]], seconds: float, enough: int | None
) -> str:
    """Wait for the outcomes; return the reason for dropping clients without an outcome."""
    over, left, needed = asyncio.Event(), len(asked), len(asked) if enough is None else enough
    answers = 0

    def count(outcome: asyncio.Future[packets.Outcome]) -> None:
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
    writer.write(packets.LENGTH.pack(len(packet)))
    writer.write(packet)


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = packets.LENGTH.unpack(await reader.readexactly(packets.LENGTH.size))
    packets.require_length(length)
    return await reader.readexactly(length)

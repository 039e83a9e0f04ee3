"""What hub, relay and client say to each other: requests and their outcomes.

| packet    | from -> to          | what                                          |
|-----------|---------------------|-----------------------------------------------|
| `Hello`   | relay -> hub        | whose messages this relay carries             |
| `Request` | hub -> ... -> client | a message for one client, under a number     |
| `Outcome` | client -> ... -> hub | its answer, or that it gives none and why    |
| `Query`   | anybody -> hub       | asks who is there                             |
| `Status`  | hub -> anybody       | each client: reachable, asked for, last said  |

On a stream each packet is preceded by its length (uint32, big-endian).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from platform.errors import ProtocolError
from platform.wire.codec import Frame, decode_frame, encode_frame

LARGEST_PACKET: Final = 1 << 29
"""Bytes of one packet at most."""
LONGEST_REASON: Final = 512

Kind = Literal["answer", "lost", "behind"]
"""An answer; none, for a reason; none, as the client knows of a newer commit (an old database)."""


@dataclass(frozen=True)
class Hello:
    """Says whose messages a relay carries, by the clients' names."""

    clients: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """A message for a client.

    Attributes:
        number: Tells this request from all others of the hub.
        client: The client's name.
        seconds: How long the hub waits for the outcome.
        body: The message.
    """

    number: int
    client: str
    seconds: float
    body: bytes


@dataclass(frozen=True)
class Outcome:
    """What came of a request.

    Attributes:
        number: The request's.
        kind: Whether it was answered.
        reason: Why not, in words that hold no data.
        body: The answer.
    """

    number: int
    kind: Kind
    reason: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Query:
    """Asks who is there; in place of a hello, and answered once."""


@dataclass(frozen=True)
class Status:
    """What the hub knows of each client.

    Attributes:
        clients: One each, in the federation's order.
    """

    clients: tuple[ClientStatus, ...]


@dataclass(frozen=True)
class ClientStatus:
    """What the hub knows of one client.

    Attributes:
        name: The client's.
        reachable: Whether a relay is connected that carries its messages.
        asked: The stage whose answer is waited for, empty for none.
        last: What came of the last request: `answer`, or the reason why there was none; empty
            before the first.
    """

    name: str
    reachable: bool
    asked: str
    last: str


Packet = Hello | Request | Outcome | Query | Status


def encode_packet(packet: Packet) -> bytes:
    """Serialise a packet.

    Raises:
        ProtocolError: If it is beyond what a stream carries.
    """
    data = encode_frame(_frame(packet))
    if len(data) > LARGEST_PACKET:
        raise ProtocolError(f"packet: {len(data)} bytes; valid: up to {LARGEST_PACKET}")
    return data


def _frame(packet: Packet) -> Frame:
    if isinstance(packet, Hello):
        return Frame("hello", {"clients": list(packet.clients)}, {}, {})
    if isinstance(packet, Request):
        fields = {"number": packet.number, "client": packet.client, "seconds": packet.seconds}
        return Frame("request", fields, {}, {"body": packet.body})
    if isinstance(packet, Query):
        return Frame("query", {}, {}, {})
    if isinstance(packet, Status):
        return Frame("status", {"clients": [vars(client) for client in packet.clients]}, {}, {})
    fields = {"number": packet.number, "outcome": packet.kind, "reason": packet.reason}
    return Frame("outcome", fields, {}, {"body": packet.body})


def decode_packet(data: bytes) -> Packet:
    """Read a packet.

    Raises:
        ProtocolError: If it is none.
    """
    frame = decode_frame(data)
    if frame.arrays or frame.kind not in _READERS:
        raise ProtocolError("packet: it is none")
    try:
        return _READERS[frame.kind](frame.fields, frame.blobs)
    except (KeyError, TypeError) as error:
        raise ProtocolError("packet: a field is missing or not valid") from error


def decode_request(data: bytes) -> Request:
    """Read a request.

    Raises:
        ProtocolError: If it is none.
    """
    packet = decode_packet(data)
    if not isinstance(packet, Request):
        raise ProtocolError("packet: a request was expected")
    return packet


def decode_outcome(data: bytes) -> Outcome:
    """Read an outcome.

    Raises:
        ProtocolError: If it is none.
    """
    packet = decode_packet(data)
    if not isinstance(packet, Outcome):
        raise ProtocolError("packet: an outcome was expected")
    return packet


def _hello(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Hello:
    clients = fields["clients"]
    if not isinstance(clients, list):
        raise TypeError
    return Hello(tuple(_text(name) for name in clients))


def _request(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Request:
    seconds = fields["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise TypeError
    number, client = _number(fields["number"]), _text(fields["client"])
    return Request(number, client, float(seconds), blobs["body"])


def _outcome(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Outcome:
    kind = fields["outcome"]
    if kind not in get_args(Kind):
        raise TypeError
    reason = _text(fields["reason"], LONGEST_REASON)
    return Outcome(_number(fields["number"]), kind, reason, blobs["body"])


def _query(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Query:
    return Query()


def _status(fields: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Status:
    clients = fields["clients"]
    if not isinstance(clients, list):
        raise TypeError
    return Status(tuple(_client_status(client) for client in clients))


def _client_status(client: Any) -> ClientStatus:
    if not isinstance(client, dict) or not isinstance(client["reachable"], bool):
        raise TypeError
    last = _text(client["last"], LONGEST_REASON)
    return ClientStatus(_text(client["name"]), client["reachable"], _text(client["asked"]), last)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _text(value: object, longest: int = 256) -> str:
    # It is shown to people, whatever it holds.
    if not isinstance(value, str) or len(value) > longest or not (value.isprintable() or not value):
        raise TypeError
    return value


_READERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, bytes]], Packet]] = {
    "hello": _hello,
    "request": _request,
    "outcome": _outcome,
    "query": _query,
    "status": _status,
}

"""The packets that hub, relay and client exchange: requests and their outcomes.

| packet    | from -> to           | content                                         |
|-----------|----------------------|-------------------------------------------------|
| `Hello`   | relay -> hub         | the clients whose messages this relay carries   |
| `Request` | hub -> ... -> client | a message for one client, with a number         |
| `Outcome` | client -> ... -> hub | the answer, or the reason why there is none     |
| `Query`   | any process -> hub   | a question for the status of all clients        |
| `Status`  | hub -> any process   | each client: reachable, stage asked, last reply |

On a stream, each packet follows its length (uint32, big-endian). The last part of this file reads
and writes packets on a Unix socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from platform.errors import ConfigError, ProtocolError
from platform.wire.codec import Frame, decode_frame, encode_frame
from storage.files import make_folder

LARGEST_PACKET: Final = 1 << 29
"""The largest packet, in bytes."""
LONGEST_REASON: Final = 512
LENGTH: Final = struct.Struct(">I")
LONGEST_PATH: Final = 107
"""The longest path of a Unix socket, in bytes."""
KINDS: Final = ("hello", "request", "outcome", "query", "status")

Kind = Literal["answer", "lost", "behind"]
"""The client answered; no answer came; the client knows a newer commit than the coordinator."""


@dataclass(frozen=True)
class Hello:
    """Names the clients whose messages a relay carries."""

    clients: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """A message for a client.

    Attributes:
        number: Unique among the hub's requests.
        seconds: How long the hub waits for the outcome.
    """

    number: int
    client: str
    seconds: float
    body: bytes


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request.

    Attributes:
        kind: Whether the client answered.
        reason: Why there is no answer, in words that hold no data.
    """

    number: int
    kind: Kind
    reason: str = ""
    body: bytes = b""


@dataclass(frozen=True)
class Query:
    """Asks for the status. A process sends it in place of a hello, and the hub answers once."""


@dataclass(frozen=True)
class Status:
    """What the hub knows of each client."""

    clients: tuple[ClientStatus, ...]


@dataclass(frozen=True)
class ClientStatus:
    """What the hub knows of one client.

    Attributes:
        reachable: Whether a relay that carries its messages is connected.
        asked: The stage whose answer the hub waits for; empty if the hub does not wait.
        last: `answer` if the client answered the last request, else the reason; empty before the
            first request.
    """

    name: str
    reachable: bool
    asked: str
    last: str


Packet = Hello | Request | Outcome | Query | Status


def encode_packet(packet: Packet) -> bytes:
    """Serialise a packet; `ProtocolError` if it is longer than `LARGEST_PACKET`."""
    fields: dict[str, Any] = {}
    blobs: dict[str, bytes] = {}
    match packet:
        case Hello():
            kind, fields = "hello", {"clients": list(packet.clients)}
        case Request():
            kind, blobs = "request", {"body": packet.body}
            fields = {"number": packet.number, "client": packet.client, "seconds": packet.seconds}
        case Outcome():
            kind, blobs = "outcome", {"body": packet.body}
            fields = {"number": packet.number, "outcome": packet.kind, "reason": packet.reason}
        case Query():
            kind = "query"
        case Status():
            kind, fields = "status", {"clients": [vars(client) for client in packet.clients]}
    data = encode_frame(Frame(kind, fields, {}, blobs))
    if len(data) > LARGEST_PACKET:
        raise ProtocolError(f"packet: {len(data)} bytes; valid: up to {LARGEST_PACKET}")
    return data


def decode_packet(data: bytes) -> Packet:
    """Read a packet, or `ProtocolError`."""
    frame = decode_frame(data)
    if frame.arrays or frame.kind not in KINDS:
        raise ProtocolError("packet: the bytes are not a packet")
    try:
        if frame.kind == "query":
            return Query()
        if frame.kind in ("hello", "status"):
            clients = frame.fields["clients"]
            if not isinstance(clients, list):
                raise TypeError
            if frame.kind == "hello":
                return Hello(tuple(_text(name) for name in clients))
            return Status(tuple(_client_status(client) for client in clients))
        number = frame.fields["number"]
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise TypeError
        if frame.kind == "request":
            seconds = frame.fields["seconds"]
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
                raise TypeError
            return Request(
                number, _text(frame.fields["client"]), float(seconds), frame.blobs["body"]
            )
        if frame.fields["outcome"] not in get_args(Kind):
            raise TypeError
        reason = _text(frame.fields["reason"], LONGEST_REASON)
        return Outcome(number, frame.fields["outcome"], reason, frame.blobs["body"])
    except (KeyError, TypeError) as error:
        raise ProtocolError("packet: a field is missing or not valid") from error


def decode_request(data: bytes) -> Request:
    """Read a request, or `ProtocolError`."""
    packet = decode_packet(data)
    if not isinstance(packet, Request):
        raise ProtocolError("packet: a request was expected")
    return packet


def decode_outcome(data: bytes) -> Outcome:
    """Read an outcome, or `ProtocolError`."""
    packet = decode_packet(data)
    if not isinstance(packet, Outcome):
        raise ProtocolError("packet: an outcome was expected")
    return packet


def _client_status(client: Any) -> ClientStatus:
    if not isinstance(client, dict) or not isinstance(client["reachable"], bool):
        raise TypeError
    last = _text(client["last"], LONGEST_REASON)
    return ClientStatus(_text(client["name"]), client["reachable"], _text(client["asked"]), last)


def _text(value: object, longest: int = 256) -> str:
    # The operator sees these texts.
    if not isinstance(value, str) or len(value) > longest or not (value.isprintable() or not value):
        raise TypeError
    return value


def send(sock: socket.socket, data: bytes) -> None:
    """Send a packet; `OSError` if the other side is gone."""
    sock.sendall(LENGTH.pack(len(data)))
    sock.sendall(data)


def is_readable(sock: socket.socket, seconds: float) -> bool:
    """Wait up to this many seconds; return whether the socket has data or a connection to accept.

    It uses `poll` because `select` refuses descriptors from 1,024 on.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1e3 * seconds))


def receive(sock: socket.socket) -> bytes | None:
    """Wait for a whole packet; return None if the other side closed between two packets."""
    head = _exactly(sock, LENGTH.size, may_end=True)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    require_length(length)
    return _exactly(sock, length)


def require_length(length: int) -> None:
    """Refuse a packet that is longer than `LARGEST_PACKET`."""
    if length > LARGEST_PACKET:
        raise ProtocolError(f"packet: {length} bytes are announced; valid: up to {LARGEST_PACKET}")


def _exactly(sock: socket.socket, length: int, *, may_end: bool = False) -> bytes | None:
    parts, left = [], length
    while left:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            if may_end and left == length:
                return None
            raise ProtocolError("packet: it is cut off")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def connect(path: Path, seconds: float | None = None) -> socket.socket:
    """Return a connection whose reads time out after this many seconds, or `OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    return sock


def listening(path: Path, field: str) -> socket.socket:
    """Return a socket that listens at a path that only its owner can reach, or `ConfigError`.

    The function makes the path's folder, for its owner only, and replaces a socket that a dead
    process left there. `field` is the setting that an error names.
    """
    if len(os.fsencode(str(path))) > LONGEST_PATH:
        raise ConfigError(
            f"{field}: {str(path)!r} is too long for a socket; valid: up to {LONGEST_PATH} bytes"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        make_folder(path.parent)
        _clear(path, field)
        # Set permissions before `bind`, so that others can never connect; a umask would affect
        # all threads.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{field}: cannot listen at {str(path)!r} ({error.strerror}); valid: a path in a "
            "folder that you own"
        ) from error
    except ConfigError:
        sock.close()
        raise
    return sock


def _clear(path: Path, field: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{field}: {str(path)!r} is a file; valid: an unused path")
    with contextlib.suppress(OSError):
        connect(path, 1.0).close()
        raise ConfigError(f"{field}: a process listens at {str(path)!r} already")
    path.unlink()

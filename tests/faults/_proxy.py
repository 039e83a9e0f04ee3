"""A proxy between two sockets that behaves as bad networks do, on command.

Streams of ours are packets behind their lengths: these can be doubled, held back so that later ones
overtake them, and sent again on another connection. Any other stream is bytes: it can be cut,
slowed down and stalled.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

Address = Path | tuple[str, int]
Way = Literal["there", "back"]
"""To the target, and from it."""
WAYS: tuple[Way, Way] = ("there", "back")
Saw = Callable[[int, Way, bytes], None]
"""Told of a packet: number of its connection, way, and the packet without its length."""
LENGTH = struct.Struct(">I")
KEPT = 40


@dataclass
class _Pair:
    """One connection: both its sockets, each with who may write to it."""

    number: int
    ends: dict[Way, socket.socket]
    writing: dict[Way, threading.Lock]

    def tear(self) -> None:
        """Ends it as a cut cable would."""
        for end in self.ends.values():
            with contextlib.suppress(OSError):
                if end.family == socket.AF_INET:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@dataclass
class Proxy:
    """Carries connections to a target, badly when it is told to."""

    listens: Address
    target: Address
    framed: bool = True
    # There once a packet was sent whole, back once it came.
    saw: Saw = lambda number, way, packet: None
    _state: threading.Lock = field(default_factory=threading.Lock)
    _pairs: set[int] = field(default_factory=set)
    _living: dict[int, _Pair] = field(default_factory=dict)
    _cuts: dict[Way, int] = field(default_factory=dict)
    _next: dict[Way, deque[tuple[str, float]]] = field(
        default_factory=lambda: {way: deque() for way in WAYS}
    )
    _kept: dict[Way, deque[bytes]] = field(
        default_factory=lambda: {way: deque(maxlen=KEPT) for way in WAYS}
    )
    _until: dict[str, float] = field(default_factory=dict)
    _rate: float = 0.0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        """Listens."""
        family = socket.AF_UNIX if isinstance(self.listens, Path) else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        if isinstance(self.listens, Path):
            self.listens.unlink(missing_ok=True)
            self._sock.bind(str(self.listens))
        else:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(self.listens)
        self._sock.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Hangs up."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self.tear()

    @property
    def address(self) -> Address:
        """Where it listens, with the port that it was given."""
        return self.listens if isinstance(self.listens, Path) else self._sock.getsockname()

    def cut(self, way: Way, after: int) -> None:
        """Tears the connection on which so many more bytes have gone this way."""
        with self._state:
            self._cuts[way] = after

    def tear(self) -> None:
        """Tears all connections."""
        for pair in list(self._living.values()):
            pair.tear()

    def refuse(self, seconds: float) -> None:
        """Tears all connections, and each new one, for some seconds."""
        self._until["refuse"] = time.monotonic() + seconds
        self.tear()

    def stall(self, seconds: float) -> None:
        """Lets nothing through for some seconds; then all of it."""
        self._until["stall"] = time.monotonic() + seconds

    def slow(self, rate: float, seconds: float) -> None:
        """Lets so many bytes a second through, for some seconds."""
        self._rate, self._until["slow"] = rate, time.monotonic() + seconds

    def duplicate(self, way: Way) -> None:
        """Sends the next packet twice."""
        self._next[way].append(("duplicate", 0.0))

    def delay(self, way: Way, seconds: float) -> None:
        """Holds the next packet back for some seconds, while others overtake it."""
        self._next[way].append(("delay", seconds))

    def replay(self, way: Way) -> None:
        """Sends before the next packet all that went this way before, on whatever connection."""
        self._next[way].append(("replay", 0.0))

    def calm(self) -> None:
        """Lets everything through from now on."""
        with self._state:
            self._cuts.clear()
        self._until.clear()
        for following in self._next.values():
            following.clear()

    def _is(self, weather: str) -> bool:
        return time.monotonic() < self._until.get(weather, 0.0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._sock.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self.target, Path) else socket.AF_INET
        far = socket.socket(family, socket.SOCK_STREAM)
        try:
            if self._is("refuse"):
                raise ConnectionRefusedError
            far.connect(str(self.target) if isinstance(self.target, Path) else self.target)
        except OSError:
            near.close()
            far.close()
            return
        locks = {way: threading.Lock() for way in WAYS}
        pair = _Pair(next(self._numbers), {"there": far, "back": near}, locks)
        self._living[pair.number] = pair
        back = threading.Thread(target=self._pump, args=(pair, far, "back"), daemon=True)
        back.start()
        self._pump(pair, near, "there")
        back.join()
        pair.tear()
        del self._living[pair.number]

    def _pump(self, pair: _Pair, source: socket.socket, way: Way) -> None:
        try:
            for piece, is_packet in self._pieces(source):
                if is_packet and way == "back":
                    self.saw(pair.number, way, piece[LENGTH.size :])
                self._pass(pair, way, piece, is_packet=is_packet)
        except OSError:
            pair.tear()
            return
        # Whoever has said all may still be answered.
        with contextlib.suppress(OSError):
            pair.ends[way].shutdown(socket.SHUT_WR)

    def _pieces(self, source: socket.socket) -> Iterator[tuple[bytes, bool]]:
        if not self.framed:
            while data := source.recv(1 << 16):
                yield data, False
            return
        while head := _read(source, LENGTH.size):
            length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
            body = _read(source, length)
            yield head + body, len(head) == LENGTH.size and len(body) == length

    def _pass(self, pair: _Pair, way: Way, piece: bytes, *, is_packet: bool) -> None:
        what, seconds = "", 0.0
        if is_packet and self._next[way]:
            what, seconds = self._next[way].popleft()
        if what == "replay":
            for older in list(self._kept[way]):
                self._send(pair, way, older, is_packet=True)
        if is_packet:
            self._kept[way].append(piece)
        if what == "delay":
            later = threading.Timer(seconds, self._late, (pair, way, piece))
            later.daemon = True
            later.start()
            return
        for _ in range(2 if what == "duplicate" else 1):
            self._send(pair, way, piece, is_packet=is_packet)

    def _late(self, pair: _Pair, way: Way, piece: bytes) -> None:
        with contextlib.suppress(OSError):
            self._send(pair, way, piece, is_packet=True)

    def _send(self, pair: _Pair, way: Way, piece: bytes, *, is_packet: bool) -> None:
        with pair.writing[way]:
            while self._is("stall"):
                time.sleep(0.02)
            allowed = self._allowed(way, len(piece))
            self._trickle(pair.ends[way], piece[:allowed])
            if allowed < len(piece):
                pair.tear()
                raise ConnectionResetError
            if is_packet and way == "there":
                self.saw(pair.number, way, piece[LENGTH.size :])

    def _allowed(self, way: Way, length: int) -> int:
        with self._state:
            left = self._cuts.get(way)
            if left is None:
                return length
            if left >= length:
                self._cuts[way] = left - length
                return length
            del self._cuts[way]
            return left

    def _trickle(self, sink: socket.socket, data: bytes) -> None:
        while data and self._is("slow"):
            part = max(1, int(self._rate / 50))
            sink.sendall(data[:part])
            data = data[part:]
            time.sleep(0.02)
        sink.sendall(data)


def _read(source: socket.socket, length: int) -> bytes:
    """So many bytes, or what there was before the end."""
    parts = bytearray()
    while len(parts) < length:
        part = source.recv(min(length - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)

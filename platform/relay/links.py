"""The parts of every relay: the link to the hub, delivery to a client, and the enrolment.

    relay(hub, clients, carry, ended)       takes requests from the hub and brings back outcomes
    deliver(socket, packet, seconds)        hands a request to a client's process

A relay treats requests and outcomes as bytes. It carries each request in a separate thread, so a
slow client does not delay other clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self

from platform.errors import ConfigError, ProtocolError
from platform.relay import packets

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True)
class Parcel:
    """A request as a relay carries it.

    Attributes:
        number: The request's number, unique among the hub's requests.
        seconds: How long the hub waits.
        packet: The bytes that the client's process gets.
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
        """Connect, and tell the hub which clients' messages this relay carries."""
        link = cls(packets.connect(hub))
        packets.send(link.sock, packets.encode_packet(packets.Hello(tuple(clients))))
        return link

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.sock.close()

    def waiting(self, seconds: float) -> list[Parcel]:
        """Wait up to this many seconds for a request; return all that arrived, possibly none.

        `ConnectionError` if the coordinator has hung up, `ProtocolError` for anything but a
        request.
        """
        found: list[Parcel] = []
        while packets.is_readable(self.sock, 0.0 if found else seconds):
            packet = packets.receive(self.sock)
            if packet is None:
                raise ConnectionResetError("the coordinator has hung up")
            asked = packets.decode_request(packet)
            found.append(Parcel(asked.number, asked.client, asked.seconds, packet))
        return found

    def answer(self, outcome: bytes) -> None:
        """Hand over an outcome as it came; after an `OSError` the hub asks again."""
        with self._sending:
            packets.send(self.sock, outcome)


def status_of(hub: Path, seconds: float) -> packets.Status:
    """Ask a hub for the status of its clients; `OSError` if there is no answer in that time."""
    with packets.connect(hub, seconds) as sock:
        packets.send(sock, packets.encode_packet(packets.Query()))
        packet = packets.receive(sock)
    found = packets.decode_packet(packet or b"")
    if not isinstance(found, packets.Status):
        raise ProtocolError("packet: a status was expected")
    return found


def lost(number: int, reason: str) -> bytes:
    """Return the outcome of a request that could not be delivered."""
    return packets.encode_packet(packets.Outcome(number, "lost", reason))


def deliver(client: Path, packet: bytes, seconds: float) -> bytes:
    """Hand a request to a client's process, and return its outcome, or `TimeoutError`.

    If the process does not listen (it may be starting), the function tries again until the time is
    over. A client may get the same request any number of times.
    """
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client gave no outcome in time")
        try:
            with packets.connect(client, left) as sock:
                packets.send(sock, packet)
                outcome = packets.receive(sock)
        except TimeoutError:
            raise
        except (OSError, ProtocolError):
            outcome = None
        if outcome is not None:
            return outcome
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, LONGEST_PAUSE)


Carrying = Callable[[Parcel], bytes | None]
"""Brings a request to its client and returns the outcome; None if the hub should ask again."""
LATE = "the client's process gave no outcome in time"


def relay(hub: Path, clients: Sequence[str], carry: Carrying, ended: Callable[[], bool]) -> None:
    """Carry messages until told to end; connect again whenever the coordinator starts anew.

    `carry` brings a request to its client, and makes sure that only this client answers.
    """
    pause = FIRST_PAUSE
    while not ended():
        try:
            with HubLink.to(hub, tuple(clients)) as link:
                pause = FIRST_PAUSE
                while not ended():
                    for parcel in link.waiting(0.2):
                        name = f"relay-{parcel.client}-{parcel.number}"
                        work = partial(_bring_back, link, carry, parcel)
                        threading.Thread(target=work, name=name, daemon=True).start()
        except (OSError, ProtocolError):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _bring_back(link: HubLink, carry: Carrying, parcel: Parcel) -> None:
    outcome = carry(parcel)
    if outcome is None:
        return
    try:
        same = packets.decode_outcome(outcome).number == parcel.number
    except ProtocolError:
        same = False
    if not same:
        outcome = lost(parcel.number, "the reply is not an outcome of this request")
    # If the coordinator is gone, it asks again after it returns.
    with contextlib.suppress(OSError):
        link.answer(outcome)


def forward(hub: Path, clients: Mapping[str, Path], ended: threading.Event) -> None:
    """Carry messages between sockets of one machine until told to end."""
    relay(
        hub, tuple(clients), lambda parcel: hand_over(clients[parcel.client], parcel), ended.is_set
    )


def hand_over(client: Path, parcel: Parcel) -> bytes:
    """Return a client's outcome of a request, or `lost` if the client gave no outcome in time."""
    try:
        return deliver(client, parcel.packet, parcel.seconds)
    except TimeoutError:
        return lost(parcel.number, LATE)


WHOLE: Final = {"members", "serial", "version"}
MEMBER: Final = {"current", "node", "retired"}


def read_nodes(path: Path) -> Mapping[str, str]:
    """Return node keys as OpenSSH writes them, by client: relays admit only these machines.

    The enrolment binds a client's name to two keys: the client's signing key, which relays ignore,
    and the key of the machine that carries the client's messages. Names without one are left out.
    This reader does not import the packages that train.
    """
    try:
        whole = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read; valid: an enrolment") from error
    is_whole = isinstance(whole, dict) and whole.keys() == WHOLE
    if not is_whole or not isinstance(whole["members"], dict):
        raise ConfigError(f"{path}: is not an enrolment")
    found: dict[str, str] = {}
    for name, member in whole["members"].items():
        if not isinstance(member, dict) or member.keys() != MEMBER:
            raise ConfigError(f"{path}: {name!r} is not a valid member of an enrolment")
        if member["current"] is not None and member["node"] is not None:
            found[str(name)] = str(member["node"])
    if not found:
        raise ConfigError(f"{path}: binds no client to a node; valid after `enrolment bind`")
    if len(set(found.values())) != len(found):
        raise ConfigError(f"{path}: two clients have the same node; valid: one node per client")
    return found


def end_by_signal() -> threading.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that no process uses."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            found.append(int(sock.getsockname()[1]))
        return found


def start_process(
    command: Sequence[str], log: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in its log's folder, in a group of its own; its output is added to the log.

    `env` comes on top of this process's variables.
    """
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - fixed commands of our own
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )


def await_line(
    process: subprocess.Popen[bytes], log: Path, line: str, *, seconds: float, failed: str
) -> None:
    """Wait until a process has printed a line; `ConfigError` if it has ended, or is too late."""
    end = time.monotonic() + seconds
    while line not in log.read_text("utf-8", errors="replace").splitlines():
        if process.poll() is not None or time.monotonic() > end:
            raise ConfigError(failed)
        time.sleep(0.1)


def development_enrolment(nodes: Mapping[str, str]) -> bytes:
    """Return an enrolment for development: names bound to nodes, with placeholder signing keys."""
    members = {
        name: {"current": f"{number:064x}", "node": node, "retired": []}
        for number, (name, node) in enumerate(sorted(nodes.items()))
    }
    whole = {"version": 1, "serial": len(members), "members": members}
    return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"

"""Transports from outside: a plug-in that brings a packet to an address, and the answer back.

A plug-in of the kind `transport` is a module with

    listen(address, handle)           a context within which `handle(packet)` answers each packet
                                      that comes to the address, also several at the same time
    send(address, packet, seconds)    the answer to a packet; `TimeoutError` if none came in time
    local_addresses(count)            addresses on this machine, for tests

`send` runs in the coordinator's relay and `listen` in the relay on the client's machine, which
hands packets to the client's process. What an address is, the transport says, and it must make sure
that only a client's own machine answers for it, as engines do by node keys. It sees the same bytes
as an engine does. Relays are processes of their own: its code never runs beside data or keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from typing import Protocol, cast

from methods import BrokenPlugin
from methods.plugins import Guarded, Plugins
from platform.errors import ConfigError, ProtocolError
from platform.relay import packets
from platform.relay.links import LATE, Parcel, hand_over, lost, relay, say

UNREADABLE = "what came over the transport is no request"


class Transport(Protocol):
    """A plug-in of this kind."""

    def listen(
        self, address: str, handle: Callable[[bytes], bytes]
    ) -> AbstractContextManager[object]:
        """Answer what comes to an address, until the context ends."""
        ...

    def send(self, address: str, packet: bytes, seconds: float) -> bytes:
        """Return the answer to a packet, or raise `TimeoutError`."""
        ...

    def local_addresses(self, count: int) -> Sequence[str]:
        """Return addresses on this machine that nothing uses."""
        ...


def transport_named(name: str, plugins: Plugins) -> Transport:
    """Return the transport of this name, whose errors name it; `ConfigError` if there is none."""
    known = plugins.of("transport")
    if name not in known:
        valid = ", ".join(known) or "none is installed, and --plugins names no folder with one"
        raise ConfigError(f"--transport: {name!r} is unknown; valid: {valid}")
    return cast("Transport", Guarded(plugins.load("transport", name), known[name]))


def forward_over(transport: Transport, hub: Path, clients: Mapping[str, str], ended: Event) -> None:
    """Carry messages between the hub and clients' addresses until told to end."""
    relay(hub, tuple(clients), lambda p: carried(transport, clients[p.client], p), ended.is_set)


def carried(transport: Transport, address: str, parcel: Parcel) -> bytes:
    """Return a client's outcome of a request; `lost` if the transport brings none."""
    try:
        outcome = transport.send(address, parcel.packet, parcel.seconds)
        packets.decode_outcome(outcome)
    except BrokenPlugin as error:
        if isinstance(error.__cause__, TimeoutError):
            return lost(parcel.number, LATE)
        say(f"error: {error}")
        return lost(parcel.number, "the transport failed; the relay's output says how")
    except ProtocolError:
        return lost(parcel.number, "the transport brought no outcome of a request")
    return outcome


def serve(transport: Transport, address: str, client: Path, ended: Event) -> None:
    """Hand what comes to an address to a client's process, until told to end."""
    with transport.listen(address, lambda packet: answered(client, packet)):
        ended.wait()


def answered(client: Path, packet: bytes) -> bytes:
    """Return the outcome of a packet, in a client's process at this socket."""
    try:
        asked = packets.decode_request(packet)
    except ProtocolError:
        return lost(0, UNREADABLE)
    return hand_over(client, Parcel(asked.number, asked.client, asked.seconds, packet))

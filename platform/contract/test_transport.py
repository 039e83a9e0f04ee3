"""Transports from outside: every packet arrives whole, at its own address, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from platform.contract.cases import Plugin
from platform.contract.driving import quick_folder
from platform.relay.hub import Hub
from platform.relay.packets import Outcome, decode_request, encode_packet
from platform.relay.transports import Transport, forward_over, transport_named
from platform.wire.transport import Dropout

KIND = "transport"
PATIENCE = 20.0
"""Seconds that a test gives a packet."""
PACKETS = (b"", b"\x00", bytes(range(256)) * 3, b"\r\n\r\n\x00\xff" * 1000, bytes(3_000_000))


@pytest.fixture
def transport(plugin: Plugin) -> Transport:
    """Return the transport under test."""
    return transport_named(plugin.name, plugin.plugins)


@pytest.fixture
def addresses(transport: Transport) -> tuple[str, str]:
    """Return two addresses on this machine."""
    one, other = transport.local_addresses(2)
    return one, other


def test_packets_arrive_whole(transport: Transport, addresses: tuple[str, str]) -> None:
    """A packet arrives as it was sent, and its answer as it was given, also if large or empty."""
    arrived: list[bytes] = []

    def handle(packet: bytes) -> bytes:
        arrived.append(bytes(packet))
        return packet[::-1]

    with transport.listen(addresses[0], handle):
        for packet in PACKETS:
            assert bytes(transport.send(addresses[0], packet, PATIENCE)) == packet[::-1]
    assert arrived == list(PACKETS)


def test_answers_are_not_mixed(transport: Transport, addresses: tuple[str, str]) -> None:
    """Packets that are on their way together each get their own address's answer to them."""

    def slow(name: bytes, packet: bytes) -> bytes:
        time.sleep(0.02 * (packet[0] % 3))
        return name + packet

    one, other = addresses
    with (
        transport.listen(one, lambda packet: slow(b"one", packet)),
        transport.listen(other, lambda packet: slow(b"other", packet)),
        ThreadPoolExecutor(8) as threads,
    ):
        sent = [(to, bytes([n, n])) for n in range(12) for to in addresses]
        found = threads.map(lambda each: transport.send(each[0], each[1], PATIENCE), sent)
        expected = [(b"one" if to == one else b"other") + packet for to, packet in sent]
        assert [bytes(each) for each in found] == expected


def test_silence_ends_in_time(transport: Transport, addresses: tuple[str, str]) -> None:
    """Where no answer comes in time, `send` raises an error soon after, and invents none."""
    ended = threading.Event()
    with transport.listen(addresses[0], lambda packet: b"late" if ended.wait(5.0) else b"later"):
        began = time.monotonic()
        with pytest.raises(Exception, match=r"\w"):
            transport.send(addresses[0], b"x", 0.5)
        took = time.monotonic() - began
        ended.set()
    assert took < 3.0
    with pytest.raises(Exception, match=r"\w"):
        transport.send(addresses[1], b"nobody listens", 0.5)


def test_a_listener_comes_back(transport: Transport, addresses: tuple[str, str]) -> None:
    """An address can be listened at again after its context has ended, as after a restart."""
    for answer in (b"first", b"second"):
        with transport.listen(addresses[0], lambda packet, answer=answer: answer):  # type: ignore[misc]
            assert bytes(transport.send(addresses[0], b"x", PATIENCE)) == answer


@contextmanager
def relaying(transport: Transport, hub: Path, to: Mapping[str, str]) -> Iterator[None]:
    """Run the coordinator's relay over a transport."""
    ended = threading.Event()
    worker = threading.Thread(target=forward_over, args=(transport, hub, to, ended), daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join(PATIENCE)


def test_a_hub_reaches_clients_over_it(transport: Transport, addresses: tuple[str, str]) -> None:
    """A coordinator's messages reach each client, and an answer that fails is a lost client."""

    def client(name: str, packet: bytes) -> bytes:
        asked = decode_request(packet)
        if name == "south":
            raise OSError("the machine is gone")
        return encode_packet(Outcome(asked.number, "answer", "", asked.body.upper()))

    clients = dict(zip(("north", "south"), addresses, strict=True))
    with quick_folder() as folder, ExitStack() as stack:
        hub = stack.enter_context(Hub(path=folder / "hub.sock", clients=tuple(clients)))
        for name, address in clients.items():
            handle = lambda packet, name=name: client(name, packet)  # noqa: E731
            stack.enter_context(transport.listen(address, handle))
        stack.enter_context(relaying(transport, hub.path, clients))
        found = hub.exchange("join", {"north": b"hello", "south": b"hello"}, 2.0)
    assert found["north"] == b"HELLO"
    assert isinstance(found["south"], Dropout)

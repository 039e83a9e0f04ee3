"""Hub, relays and clients' sockets: any may die at any time, and nothing is lost or mixed up."""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product

import pytest

from platform.errors import ConfigError, CoordinatorBehind, ProtocolError
from platform.relay.hub import Hub
from platform.relay.links import HubLink, Parcel, deliver, lost, relay
from platform.relay.packets import (
    LARGEST_PACKET,
    Outcome,
    Request,
    connect,
    decode_outcome,
    decode_packet,
    encode_packet,
    listening,
    receive,
    send,
)
from platform.wire.transport import Dropout
from tests.trunk._hubs import relayed, running, served

NAMES = ("east", "north", "west")


def echo(name: str):
    return lambda message: name.encode() + b":" + message


@contextmanager
def federation(folder, handlers):
    with Hub(path=folder / "hub", clients=NAMES) as hub, served(handlers, folder) as sockets:
        with relayed(folder / "hub", sockets):
            yield hub, sockets


@contextmanager
def asking(hub: Hub, client: str) -> Iterator[dict[str, bytes | Dropout]]:
    found: dict[str, bytes | Dropout] = {}
    ask = partial(hub.exchange, "train", {client: b"m"}, 30.0)
    worker = threading.Thread(target=lambda: found.update(ask()))
    worker.start()
    yield found
    worker.join(20)


def outcome(number: int, body: bytes) -> bytes:
    return encode_packet(Outcome(number, "answer", "", body))


def test_each_client_gets_its_own_message(folder):
    with federation(folder, {name: echo(name) for name in NAMES}) as (hub, _):
        asked = {name: f"to {name}".encode() * 50_000 for name in NAMES}
        found = hub.exchange("train", asked, 30.0)
    assert found == {name: name.encode() + b":" + asked[name] for name in NAMES}


def test_whoever_does_not_answer_in_time_is_lost_and_the_others_are_not(folder):
    held = threading.Event()

    def slow(message: bytes) -> bytes:
        held.wait(30)
        return message

    with federation(folder, {"east": echo("east"), "north": slow}) as (hub, _):
        found = hub.exchange("train", {"east": b"a", "north": b"a"}, 1.0)
        held.set()
        assert isinstance(found["north"], Dropout)
        assert found["east"] == b"east:a"
        # What comes late is of no use, and harms nothing that is asked next.
        assert hub.exchange("train", {"north": b"b"}, 30.0) == {"north": b"b"}


def test_a_relay_that_comes_back_is_asked_again(folder):
    with Hub(path=folder / "hub", clients=NAMES) as hub, ExitStack() as stack:
        with HubLink.to(folder / "hub", NAMES) as first:
            found = stack.enter_context(asking(hub, "north"))
            (lost_parcel,) = first.waiting(10.0)
        # It died with the request in its hands.
        with HubLink.to(folder / "hub", ["north"]) as second:
            (parcel,) = second.waiting(10.0)
            assert parcel.packet == lost_parcel.packet
            second.answer(outcome(parcel.number, b"done"))
            stack.close()
    assert found == {"north": b"done"}


def test_nobody_answers_for_another_relays_client(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=NAMES) as hub:
        with HubLink.to(hub_path, ["east"]) as honest, HubLink.to(hub_path, ["west"]) as liar:
            while hub.connected != {"east", "west"}:
                time.sleep(0.01)
            with asking(hub, "east") as found:
                (parcel,) = honest.waiting(10.0)
                liar.answer(outcome(parcel.number, b"forged"))
                time.sleep(0.2)
                assert not found
                honest.answer(outcome(parcel.number, b"own"))
                honest.answer(outcome(parcel.number, b"twice"))
    assert found == {"east": b"own"}


def test_what_fails_in_a_client_is_no_answer_and_does_not_end_it(folder):
    errors = {
        b"fail": RuntimeError("a secret of the data"),
        b"refuse": ProtocolError("message: no"),
        b"ahead": CoordinatorBehind("message: behind"),
    }

    def failing(message: bytes) -> bytes:
        if message in errors:
            raise errors[message]
        return message

    with federation(folder, {"north": failing}) as (hub, _):
        failed = hub.exchange("train", {"north": b"fail"}, 20.0)["north"]
        refused = hub.exchange("train", {"north": b"refuse"}, 20.0)["north"]
        with pytest.raises(CoordinatorBehind, match="north"):
            hub.exchange("advertise", {"north": b"ahead"}, 20.0)
        assert hub.exchange("train", {"north": b"go"}, 20.0) == {"north": b"go"}
    assert isinstance(failed, Dropout) and "secret" not in failed.reason
    assert isinstance(refused, Dropout)


def test_a_client_answers_one_message_at_a_time(folder):
    inside = threading.Semaphore(1)

    def alone(message: bytes) -> bytes:
        if not inside.acquire(blocking=False):
            raise AssertionError("two at once")
        time.sleep(0.05)
        inside.release()
        return b"alone"

    packets = [encode_packet(Request(n, "north", 20.0, b"m")) for n in range(8)]
    with served({"north": alone}, folder) as sockets, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda packet: deliver(sockets["north"], packet, 20.0), packets))
    found = [(one.number, one.body) for one in map(decode_outcome, answers)]
    assert found == [(n, b"alone") for n in range(8)]


def test_a_message_for_another_is_not_answered(folder):
    packet = encode_packet(Request(1, "west", 5.0, b"m"))
    with served({"north": echo("north")}, folder) as sockets:
        found = decode_outcome(deliver(sockets["north"], packet, 5.0))
    assert found.kind == "lost" and not found.body
    with pytest.raises(TimeoutError):
        deliver(folder / "nobody", packet, 0.3)


def test_a_relay_of_unknown_clients_is_hung_up_on(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=["north"]) as hub:
        with HubLink.to(hub_path, ["north", "mallory"]) as link, pytest.raises(ConnectionError):
            link.waiting(10.0)
        assert hub.connected == frozenset()


HOSTILE = (
    *(b"", struct.pack(">I", 5) + b"abcde", struct.pack(">I", LARGEST_PACKET + 1)),
    *(struct.pack(">I", 1000) + b"abc", struct.pack(">I", len(lost(1, "x"))) + lost(1, "x")),
)


def test_nonsense_ends_its_own_connection_only(folder):
    with federation(folder, {"north": echo("north")}) as (hub, sockets):
        for path, data in product((folder / "hub", sockets["north"]), HOSTILE):
            with connect(path, 10.0) as sock:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                assert not sock.recv(1)
        assert hub.exchange("join", {"north": b"m"}, 20.0) == {"north": b"north:m"}


def test_a_socket_is_its_owners_and_one_living_processes(folder):
    path = folder / "own" / "s"
    with listening(path, "socket"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(ConfigError, match="already"):
            listening(path, "socket")
    child = os.fork()
    if child == 0:
        try:
            listening(path, "socket")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    # What a process that was killed left behind is taken over.
    assert path.exists()
    with listening(path, "socket") as sock, connect(path, 5.0) as client:
        server, _ = sock.accept()
        send(client, b"abc")
        with server:
            assert receive(server) == b"abc"


def test_a_file_is_not_taken_for_a_socket_and_no_path_is_cut_off(folder):
    path = folder / "s"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        listening(path, "socket")
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match=r"federation\.socket: .* too long"):
        with Hub(path=folder / ("x" * 120), clients=["north"]):
            pass


def test_a_reason_cannot_write_on_a_terminal():
    with pytest.raises(ProtocolError):
        decode_packet(encode_packet(Outcome(1, "lost", "\x1b[2J", b"")))


FORGED: dict[str, Callable[[Parcel], bytes]] = {
    "other-number": lambda parcel: outcome(parcel.number - 1, b"forged"),
    "no-outcome": lambda parcel: b"forged",
    "request": lambda parcel: parcel.packet,
}


def test_a_client_answers_nothing_but_what_it_was_asked(folder):
    """Else one client could answer for another, or have the relay hung up on."""
    hub_path, numbers, names = folder / "hub", [], ("east", *FORGED, "west")

    def carry(parcel: Parcel) -> bytes:
        numbers.append(parcel.number)
        if parcel.client in FORGED:
            return FORGED[parcel.client](parcel)
        time.sleep(0.5)
        return outcome(parcel.number, b"own")

    with Hub(path=hub_path, clients=names) as hub:
        with running(lambda ended: relay(hub_path, names, carry, ended.is_set)):
            found = hub.exchange("train", dict.fromkeys(names, b"m"), 30.0)
    assert (found["east"], found["west"]) == (b"own", b"own")
    assert all(isinstance(found[name], Dropout) for name in FORGED)
    # Nobody was asked twice: the relay was not hung up on.
    assert len(numbers) == len(names)


def test_a_client_that_is_stuck_holds_up_nobody_however_often_it_is_asked(folder):
    held, hub_path = threading.Event(), folder / "hub"

    def carry(parcel: Parcel) -> bytes:
        if parcel.client == "north":
            held.wait(30)
        return outcome(parcel.number, b"own")

    with Hub(path=hub_path, clients=NAMES) as hub:
        with running(lambda ended: relay(hub_path, NAMES, carry, ended.is_set)):
            for _ in range(2 * len(NAMES)):
                hub.exchange("train", {"north": b"m"}, 0.1)
            found = hub.exchange("train", {"east": b"m"}, 20.0)
            held.set()
    assert found == {"east": b"own"}

"""Hub, relays and clients' sockets: any may die at any time, and nothing is lost or mixed up."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat
import struct
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from platform.errors import ConfigError, CoordinatorBehind, ProtocolError
from platform.relay.hub import TELLING, Hub, HubTransport, Told
from platform.relay.links import HubLink, deliver, lost, relay, status_of
from platform.relay.packets import (
    LARGEST_PACKET,
    Hello,
    Outcome,
    Request,
    connect,
    decode_outcome,
    decode_packet,
    encode_packet,
    is_readable,
    listening,
    receive,
    send,
)
from platform.wire.transport import Dropout
from privacy import BudgetExhausted
from tests.trunk._hubs import relayed, running, served

NAMES = ("east", "north", "west")


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """A path that is short enough for sockets."""
    return tmp_path_factory.mktemp("hub")


def echo(name: str):
    return lambda message: name.encode() + b":" + message


def test_each_client_gets_its_own_message(folder):
    handlers = {name: echo(name) for name in NAMES}
    with Hub(path=folder / "hub", clients=NAMES) as hub, served(handlers, folder) as sockets:
        with relayed(folder / "hub", sockets):
            asked = {name: f"to {name}".encode() * 50_000 for name in NAMES}
            found = hub.exchange("train", asked, 30.0)
    assert found == {name: name.encode() + b":" + asked[name] for name in NAMES}


def test_whoever_does_not_answer_in_time_is_lost_and_the_others_are_not(folder):
    held = threading.Event()

    def slow(message: bytes) -> bytes:
        held.wait(30)
        return message

    handlers = {"east": echo("east"), "north": slow, "west": echo("west")}
    try:
        with Hub(path=folder / "hub", clients=NAMES) as hub, served(handlers, folder) as sockets:
            with relayed(folder / "hub", sockets):
                found = hub.exchange("train", dict.fromkeys(NAMES, b"a"), 1.0)
                assert isinstance(found["north"], Dropout)
                assert found["east"] == b"east:a"
                held.set()
                # What comes late is of no use, and harms nothing that is asked next.
                again = hub.exchange("train", dict.fromkeys(NAMES, b"b"), 30.0)
                assert again["north"] == b"b"
    finally:
        held.set()


def test_a_relay_that_comes_back_is_asked_again(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=NAMES) as hub:
        result = {}
        asking = threading.Thread(
            target=lambda: result.update(hub.exchange("train", {"north": b"m"}, 30.0))
        )
        with HubLink.to(hub_path, NAMES) as first:
            asking.start()
            (lost_parcel,) = first.waiting(10.0)
        # It died with the request in its hands.
        with HubLink.to(hub_path, ["north"]) as second:
            (parcel,) = second.waiting(10.0)
            assert parcel.packet == lost_parcel.packet
            second.answer(encode_packet(Outcome(parcel.number, "answer", "", b"done")))
            asking.join(10)
    assert result == {"north": b"done"}


def test_a_request_waits_for_the_first_relay_and_for_the_clients_process(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=["north"]) as hub:
        result = {}
        asking = threading.Thread(
            target=lambda: result.update(hub.exchange("join", {"north": b"m"}, 30.0))
        )
        asking.start()
        with relayed(hub_path, {"north": folder / "north.sock"}):
            time.sleep(0.3)
            with served({"north": echo("north")}, folder):
                asking.join(20)
    assert result == {"north": b"north:m"}


def test_the_coordinator_may_be_started_anew(folder):
    with served({"north": echo("north")}, folder) as sockets, relayed(folder / "hub", sockets):
        for number in range(3):
            with Hub(path=folder / "hub", clients=["north"]) as hub:
                body = str(number).encode()
                assert hub.exchange("join", {"north": body}, 30.0) == {"north": b"north:" + body}


def test_nobody_answers_for_another_relays_client(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=NAMES) as hub:
        with HubLink.to(hub_path, ["east"]) as honest, HubLink.to(hub_path, ["west"]) as liar:
            while hub.connected != {"east", "west"}:
                time.sleep(0.01)
            result = {}
            asking = threading.Thread(
                target=lambda: result.update(hub.exchange("train", {"east": b"m"}, 20.0))
            )
            asking.start()
            (parcel,) = honest.waiting(10.0)
            liar.answer(encode_packet(Outcome(parcel.number, "answer", "", b"forged")))
            time.sleep(0.2)
            assert not result
            honest.answer(encode_packet(Outcome(parcel.number, "answer", "", b"own")))
            honest.answer(encode_packet(Outcome(parcel.number, "answer", "", b"twice")))
            asking.join(10)
    assert result == {"east": b"own"}


def test_a_client_that_knows_more_stops_the_coordinator(folder):
    def ahead(message: bytes) -> bytes:
        raise CoordinatorBehind("message: behind")

    with Hub(path=folder / "hub", clients=["north"]) as hub:
        with served({"north": ahead}, folder) as sockets, relayed(folder / "hub", sockets):
            with pytest.raises(CoordinatorBehind, match="north"):
                hub.exchange("advertise", {"north": b"m"}, 20.0)


def test_what_fails_in_a_client_is_no_answer_and_does_not_end_it(folder):
    def failing(message: bytes) -> bytes:
        if message == b"fail":
            raise RuntimeError("a secret of the data")
        if message == b"refuse":
            raise ProtocolError("message: no")
        return message

    with Hub(path=folder / "hub", clients=["north"]) as hub:
        with served({"north": failing}, folder) as sockets, relayed(folder / "hub", sockets):
            failed = hub.exchange("train", {"north": b"fail"}, 20.0)["north"]
            refused = hub.exchange("train", {"north": b"refuse"}, 20.0)["north"]
            assert hub.exchange("train", {"north": b"go"}, 20.0) == {"north": b"go"}
    assert isinstance(failed, Dropout)
    assert "secret" not in failed.reason
    assert isinstance(refused, Dropout)


def test_a_client_answers_one_message_at_a_time(folder):
    inside = threading.Semaphore(1)

    def alone(message: bytes) -> bytes:
        if not inside.acquire(blocking=False):
            raise AssertionError("two at once")
        time.sleep(0.05)
        inside.release()
        return b"alone"

    with served({"north": alone}, folder) as sockets:
        packets = [encode_packet(Request(n, "north", 20.0, b"m")) for n in range(8)]
        found: list[bytes] = []
        workers = [
            threading.Thread(target=lambda p=p: found.append(deliver(sockets["north"], p, 20.0)))
            for p in packets
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert {decode_outcome(data).body for data in found} == {b"alone"}
    assert {decode_outcome(data).number for data in found} == set(range(8))


def test_a_message_for_another_is_not_answered(folder):
    with served({"north": echo("north")}, folder) as sockets:
        packet = encode_packet(Request(1, "west", 5.0, b"m"))
        outcome = decode_outcome(deliver(sockets["north"], packet, 5.0))
    assert outcome.kind == "lost"
    assert not outcome.body


def test_a_delivery_that_nobody_answers_ends(folder):
    with pytest.raises(TimeoutError):
        deliver(folder / "nobody", encode_packet(Request(1, "north", 0.3, b"m")), 0.3)


def test_a_relay_of_unknown_clients_is_hung_up_on(folder):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=["north"]) as hub:
        with HubLink.to(hub_path, ["north", "mallory"]) as link, pytest.raises(ConnectionError):
            link.waiting(10.0)
        assert hub.connected == frozenset()


HOSTILE = {
    "nothing": b"",
    "garbage": struct.pack(">I", 5) + b"abcde",
    "too long": struct.pack(">I", LARGEST_PACKET + 1),
    "cut off": struct.pack(">I", 1000) + b"abc",
    "no hello": struct.pack(">I", len(lost(1, "x"))) + lost(1, "x"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_nonsense_ends_its_own_connection_only(folder, data):
    hub_path = folder / "hub"
    with Hub(path=hub_path, clients=["north"]) as hub:
        with connect(hub_path, 10.0) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert not sock.recv(1)
        with served({"north": echo("north")}, folder) as sockets, relayed(hub_path, sockets):
            assert hub.exchange("join", {"north": b"m"}, 20.0) == {"north": b"north:m"}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_nonsense_at_a_clients_socket_leaves_it_there(folder, data):
    with served({"north": echo("north")}, folder) as sockets:
        packet = encode_packet(Request(1, "north", 10.0, b"m"))
        assert decode_outcome(deliver(sockets["north"], packet, 10.0)).body == b"north:m"
        with connect(sockets["north"], 10.0) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert not sock.recv(1)
        assert decode_outcome(deliver(sockets["north"], packet, 10.0)).body == b"north:m"


def test_only_the_owner_can_reach_a_socket(folder):
    with listening(folder / "own" / "s", "socket"):
        assert stat.S_IMODE((folder / "own" / "s").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "own").stat().st_mode) == 0o700


def test_a_dead_process_socket_is_taken_over_and_a_living_one_is_not(folder):
    path = folder / "s"
    with listening(path, "socket"), pytest.raises(ConfigError, match="already"):
        listening(path, "socket")
    assert path.exists()
    with listening(path, "socket"):
        pass


def test_a_file_is_not_taken_for_a_socket(folder):
    path = folder / "s"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        listening(path, "socket")
    assert path.read_text() == "mine"


def test_a_path_that_is_too_long_is_refused_by_its_setting(folder):
    with pytest.raises(ConfigError, match=r"federation\.socket: .* too long"):
        with Hub(path=folder / ("x" * 120), clients=["north"]):
            pass


def test_packets_come_back_as_they_were():
    for packet in (
        Hello(NAMES),
        Request(7, "north", 1.5, b"\0" * 100),
        Outcome(7, "lost", "why not", b""),
    ):
        assert decode_packet(encode_packet(packet)) == packet


def test_a_reason_cannot_write_on_a_terminal():
    with pytest.raises(ProtocolError):
        decode_packet(encode_packet(Outcome(1, "lost", "\x1b[2J", b"")))


def test_the_watcher_hears_who_is_there_and_who_answered(folder):
    heard: list[tuple] = []
    told = Told(
        connected=lambda client, there: heard.append((client, there)),
        waiting=lambda stage, clients: heard.append((stage, *sorted(clients))),
    )
    with Hub(path=folder / "hub", clients=["north"], told=told) as hub:
        with served({"north": echo("north")}, folder) as sockets:
            with relayed(folder / "hub", sockets):
                HubTransport(hub, {"train": 20.0}, 20.0).exchange("train", {"north": b"m"}, None)
            while ("north", False) not in heard:
                time.sleep(0.01)
    assert heard.index(("train", "north")) < heard.index(("train",))
    assert heard[-1] == ("north", False)
    assert sorted(map(str, heard)) == sorted(
        map(str, [("train", "north"), ("north", True), ("train",), ("north", False)])
    )


def test_whoever_watches_a_stage_of_many_is_told_now_and_then(folder):
    """Told after each of 600 answers who is missing, it would be told 180,000 names."""
    names, told = [f"n{number}" for number in range(600)], []
    watched = Told(waiting=lambda stage, clients: told.append(clients))

    def answer_all() -> None:
        with HubLink.to(folder / "hub", names) as link:
            left = len(names)
            while left:
                for parcel in link.waiting(1.0):
                    link.answer(encode_packet(Outcome(parcel.number, "answer", "", b"")))
                    left -= 1
                    time.sleep(0.001)

    with Hub(path=folder / "hub", clients=names, told=watched) as hub:
        worker = threading.Thread(target=answer_all)
        worker.start()
        started = time.monotonic()
        found = hub.exchange("train", dict.fromkeys(names, b"m"), 60.0)
        took = time.monotonic() - started
        worker.join()
    assert len(found) == 600
    assert (told[0], told[-1]) == (frozenset(names), frozenset())
    assert all(after < before for before, after in pairwise(told))
    assert len(told) <= 3 + took / TELLING


def test_sockets_of_any_number_are_waited_for():
    """A process of hundreds of clients has more files open than `select` knows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        near, far = socket.socketpair()
        with near, far:
            number = fcntl.fcntl(near.fileno(), fcntl.F_DUPFD, 1500)
            with socket.socket(fileno=number) as high:
                assert not is_readable(high, 0.01)
                far.sendall(b"x")
                assert is_readable(high, 10.0)
                far.close()
                assert high.recv(9) == b"x"
                # That the other side has hung up is something to receive, too.
                assert is_readable(high, 10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_stopped_process_costs_its_time_and_nothing_else(folder):
    """What listens and never reads is as lost as what is not there."""
    with listening(folder / "deaf", "socket"), Hub(path=folder / "hub", clients=["north"]) as hub:
        with relayed(folder / "hub", {"north": folder / "deaf"}):
            started = time.monotonic()
            found = hub.exchange("train", {"north": b"m"}, 0.5)
            assert isinstance(found["north"], Dropout)
            assert time.monotonic() - started < 60


def test_a_socket_that_is_left_when_a_process_is_killed(folder):
    child = os.fork()
    if child == 0:
        try:
            listening(folder / "s", "socket")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (folder / "s").exists()
    with running(lambda ended: None), listening(folder / "s", "socket") as sock:
        path = folder / "s"
        with connect(path, 5.0) as client:
            server, _ = sock.accept()
            send(client, b"abc")
            with server:
                assert receive(server) == b"abc"


def test_anybody_at_the_socket_is_told_who_is_there(folder):
    hub_path, held = folder / "hub", threading.Event()

    def refusing(message: bytes) -> bytes:
        raise BudgetExhausted("too much", epsilon=9.0, target_epsilon=8.0)

    def slow(message: bytes) -> bytes:
        held.wait(30)
        return message

    with Hub(path=hub_path, clients=NAMES) as hub:
        assert {c.reachable for c in status_of(hub_path, 10.0).clients} == {False}
        handlers = {"east": refusing, "north": slow}
        with served(handlers, folder) as sockets, relayed(hub_path, sockets):
            asked = {"east": b"m", "north": b"m"}
            waiting = threading.Thread(target=lambda: hub.exchange("train", asked, 30.0))
            waiting.start()
            while not status_of(hub_path, 10.0).clients[1].asked:
                time.sleep(0.01)
            held.set()
            waiting.join(20)
            east, north, west = status_of(hub_path, 10.0).clients
    assert (east.name, east.reachable, east.last) == (
        "east",
        True,
        "the client takes no part (its own budget)",
    )
    assert (north.name, north.asked, north.last) == ("north", "", "answer")
    assert (west.reachable, west.last) == (False, "")


@pytest.mark.parametrize("kind", ["another's number", "no outcome", "a request"])
def test_a_client_answers_nothing_but_what_it_was_asked(folder, kind):
    """Else one client could answer for another, or have the relay hung up on."""
    hub_path, numbers = folder / "hub", []

    def carry(parcel) -> bytes:
        numbers.append(parcel.number)
        if parcel.client != "north":
            time.sleep(0.5)
            return encode_packet(Outcome(parcel.number, "answer", "", b"own"))
        forged = {
            "another's number": lambda: encode_packet(
                Outcome(parcel.number - 1, "answer", "", b"forged")
            ),
            "no outcome": lambda: b"forged",
            "a request": lambda: parcel.packet,
        }
        return forged[kind]()

    with Hub(path=hub_path, clients=NAMES) as hub:
        with running(lambda ended: relay(hub_path, NAMES, carry, ended.is_set)):
            found = hub.exchange("train", dict.fromkeys(NAMES, b"m"), 30.0)
    assert found == {
        "east": b"own",
        "west": b"own",
        "north": Dropout("what came back is no outcome of this request"),
    }
    # Nobody was asked twice: the relay was not hung up on.
    assert len(numbers) == len(NAMES)


def test_a_client_that_is_stuck_holds_up_nobody_however_often_it_is_asked(folder):
    """More requests for it may be under way than there are clients."""
    held, hub_path = threading.Event(), folder / "hub"

    def carry(parcel) -> bytes:
        if parcel.client == "north":
            held.wait(60)
        return encode_packet(Outcome(parcel.number, "answer", "", b"own"))

    try:
        with Hub(path=hub_path, clients=NAMES) as hub:
            with running(lambda ended: relay(hub_path, NAMES, carry, ended.is_set)):
                for _ in range(2 * len(NAMES)):
                    hub.exchange("train", {"north": b"m"}, 0.3)
                found = hub.exchange("train", {"east": b"m"}, 20.0)
    finally:
        held.set()
    assert found == {"east": b"own"}

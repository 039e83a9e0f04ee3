"""The server's side of the relay through Flower, against a SuperLink that says what it likes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from platform.relay.flower import superlink as link
from platform.relay.links import Parcel
from platform.relay.packets import Outcome, decode_outcome, encode_packet

PARCEL = Parcel(number=7, client="north", seconds=20.0, packet=b"packet")
DONE = encode_packet(Outcome(7, "answer", "", b"done"))
FORGED = encode_packet(Outcome(7, "answer", "", b"forged"))


class Message:
    """A message as Flower has it."""

    def __init__(self, packet: bytes, secret: bytes, to: str) -> None:
        self.content = {"sotto": {"packet": packet, "secret": secret, "seconds": 0.0}}
        self.metadata = SimpleNamespace(reply_to_message_id=to)

    def has_content(self) -> bool:
        return True


class Pretended:
    """A SuperLink whose answers are made up by a test."""

    def __init__(self, replies, since=(), refused=0) -> None:
        self.nodes = {"north": 1}
        self.refused = refused
        self.pushed: list[tuple[int, bytes, bytes]] = []
        self._replies = replies
        self._since = list(since)

    def push(self, messages):
        if messages and self.refused:
            self.refused -= 1
            return [""] * len(messages)
        first = len(self.pushed)
        self.pushed.extend(messages)
        return [str(number) for number in range(first, len(self.pushed))]

    def pull(self, numbers):
        return self._replies(self, numbers)

    def looked(self):
        return {"north": self._since.pop(0) if len(self._since) > 1 else "once"}


def secrets():
    # Of a secret of zeros no change by reversing would be seen.
    drawn = iter(range(1, 1000))
    return lambda node, packet, seconds: (
        (secret := next(drawn).to_bytes(32, "big")) and (node, packet, secret),
        secret,
    )


def carried(superlink: Pretended, monkeypatch) -> bytes | None:
    monkeypatch.setattr(link, "asked", secrets())
    pump, ended = link.Pump(superlink, lambda line: None), threading.Event()
    with ThreadPoolExecutor() as pool:
        pool.submit(pump.until, ended)
        try:
            return pool.submit(pump.carry, PARCEL).result(timeout=10)
        finally:
            ended.set()


def right(superlink: Pretended, numbers):
    return [Message(DONE, superlink.pushed[int(number)][2], number) for number in numbers]


@pytest.mark.parametrize("secret", [b"", bytes(31), b"x" * 32, b"x" * 33])
def test_an_answer_without_the_secret_is_nobodys_and_the_client_is_asked_again(monkeypatch, secret):
    def forged_first(superlink, numbers):
        if numbers == ["0"]:
            return [Message(FORGED, secret, "0")]
        return right(superlink, numbers)

    superlink = Pretended(forged_first)
    assert carried(superlink, monkeypatch) == DONE
    assert len({drawn for _, _, drawn in superlink.pushed}) == len(superlink.pushed) == 2


def test_a_secret_of_another_message_is_of_no_use(monkeypatch):
    def swapped(superlink, numbers):
        if len(superlink.pushed) < 3:
            return [Message(FORGED, superlink.pushed[int(n)][2][::-1], n) for n in numbers]
        return [Message(DONE, superlink.pushed[int(n)][2], n) for n in numbers]

    monkeypatch.setattr(link, "LOOK", 0.001)
    assert carried(Pretended(swapped), monkeypatch) == DONE


def test_a_second_answer_changes_nothing(monkeypatch):
    monkeypatch.setattr(link, "AGAIN", 0.05)
    monkeypatch.setattr(link._Asked, "wait", 0.05, raising=False)

    def both(superlink, numbers):
        return right(superlink, numbers) if len(numbers) > 1 else []

    superlink = Pretended(both)
    pump = link.Pump(superlink, lambda line: None)
    monkeypatch.setattr(link, "asked", secrets())
    request = link._Asked(parcel=PARCEL, wait=0.0)
    pump._open.append(request)
    pump._step()
    pump._step()
    assert len(superlink.pushed) == 2
    assert request.outcome.result(timeout=0) == DONE
    assert pump._open == []


def test_a_node_that_came_anew_is_asked_again(monkeypatch):
    monkeypatch.setattr(link, "NODES", 0.0)
    superlink = Pretended(
        lambda superlink, numbers: right(superlink, numbers) if len(numbers) > 1 else [],
        since=["once", "once", "anew", "anew"],
    )
    assert carried(superlink, monkeypatch) == DONE
    assert len(superlink.pushed) == 2


def test_where_superlink_is_lost_the_hub_is_to_ask_again(monkeypatch):
    def gone(superlink, numbers):
        raise ConnectionError

    assert carried(Pretended(gone), monkeypatch) is None


def test_a_request_whose_time_is_over_is_lost_by_name(monkeypatch):
    monkeypatch.setattr(link, "asked", secrets())
    pump = link.Pump(Pretended(lambda *_: []), lambda line: None)
    request = link._Asked(parcel=PARCEL)
    request.end = 0.0
    pump._open.append(request)
    pump._step()
    outcome = decode_outcome(request.outcome.result(timeout=0))
    assert (outcome.number, outcome.kind, outcome.reason) == (7, "lost", link.LATE)


def test_what_superlink_does_not_take_is_offered_again_soon(monkeypatch):
    superlink = Pretended(right, refused=3)
    assert carried(superlink, monkeypatch) == DONE
    assert superlink.refused == 0
    assert [packet for _, packet, _ in superlink.pushed] == [b"packet"]

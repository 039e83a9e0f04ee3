"""A cohort may be larger than what a round needs: it goes on with those who train fastest."""

from __future__ import annotations

import threading

import pytest

from platform.errors import ConfigError
from platform.protection.sums import secure_terms
from platform.relay.hub import Hub
from platform.wire.codec import peek
from platform.wire.transport import Dropout
from tests.trunk._federations import Holders, federation, hold, over_sockets
from tests.trunk._hubs import relayed, served
from tests.trunk._leaving import MASKED, agrees, ledger, survivors

FIRST_THREE = (*MASKED, "federation.go_on_with=3")


def test_a_wait_is_over_with_enough_answers_and_what_fails_or_comes_later_harms_nothing(folder):
    held = threading.Event()

    def slow(message: bytes) -> bytes:
        held.wait(60)
        return message

    def broken(message: bytes) -> bytes:
        raise ValueError("no")

    handlers = {"east": bytes, "north": slow, "south": bytes, "west": broken}
    try:
        with Hub(path=folder / "hub", clients=list(handlers)) as hub:
            with served(handlers, folder) as sockets, relayed(folder / "hub", sockets):
                found = hub.exchange("train", dict.fromkeys(handlers, b"a"), 60.0, 2)
                assert not held.is_set()
                assert isinstance(found.pop("north"), Dropout)
                assert isinstance(found.pop("west"), Dropout)
                assert found == {"east": b"a", "south": b"a"}
                held.set()
                again = hub.exchange("train", dict.fromkeys(handlers, b"b"), 60.0, 3)
                assert isinstance(again.pop("west"), Dropout)
                assert set(again.values()) == {b"b"}
    finally:
        held.set()


@pytest.mark.slow
def test_a_run_waits_for_the_fastest_only_and_the_slowest_is_lost_in_that_round(folder):
    """The slow one trains in round 1 until the others have committed it and are in round 2."""
    holders = Holders.written(folder)
    handlers, committed = holders.handlers(), threading.Event()

    def slow(message: bytes) -> bytes:
        answer = handlers["west"](message)
        if asked(message) == ("assignment", 1):
            assert committed.wait(60)
        return answer

    def fast(message: bytes) -> bytes:
        if asked(message)[1] == 2:
            committed.set()
        return handlers["east"](message)

    around = {**handlers, "west": slow, "east": fast}
    summary = hold(federation(folder, *FIRST_THREE), over_sockets(around, folder))
    assert survivors(folder)[1] == ["east", "north", "south"]
    # Later it may be as fast as the others: then all four count.
    assert all(len(who) >= 3 for who in survivors(folder).values())
    assert summary["rounds"][0]["dropped"] == 1
    assert (1, 1, "sum") in ledger(folder, "west")
    agrees(folder, summary["run_id"])


def asked(message: bytes) -> tuple[str, int]:
    kind, envelope = peek(message)
    return kind, envelope.round_number


@pytest.mark.parametrize("key", ["go_on_with", "start_with"])
def test_a_number_that_no_round_can_be_held_with_and_a_secret_draw_are_refused(folder, key):
    """Who comes first is no secret."""
    for number in (2, 5):
        with pytest.raises(ConfigError, match=rf"federation\.{key}: {number} .* 3 to 4"):
            federation(folder, *MASKED, f"federation.{key}={number}")
    secret = (
        "privacy={mechanism: central_noise, clipping_norm: 0.1, noise_multiplier: 1.0}",
        "secure_aggregation.largest_weight=null",
        "cohort={size: 2, sampling: poisson, minimum: 1, retries: 0}",
    )
    federation(folder, *secret)
    with pytest.raises(ConfigError, match=rf"federation\.{key}: 2 does"):
        federation(folder, *secret, f"federation.{key}=2")


def test_a_graph_that_tolerates_fewer_losses_needs_more(folder):
    """Of 100 clients on the complete graph 67 would do; the sparse one withstands ten losses."""
    names = [f"n{number}" for number in range(100)]
    config = federation(
        folder,
        *(f"federation.clients=[{', '.join(names)}]", "task.clients=100"),
        *("federation.go_on_with=80", "privacy.mechanism=none", "privacy.clipping_norm=null"),
        "secure_aggregation={enabled: true, graph: k_regular, tolerated_dropout_rate: 0.1}",
    )
    with pytest.raises(ConfigError, match=r"federation\.go_on_with: 80 .* or 90 at least"):
        secure_terms(config)

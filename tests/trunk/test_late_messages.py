"""What arrives after its time: it is answered or refused, changes nothing, and ends nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.errors import CoordinatorBehind
from platform.wire.codec import peek
from platform.wire.transport import Dropout, answer
from tests.trunk._federations import NAMES, Holders, federation, hold
from tests.trunk._leaving import MASKED, Doing, agrees, doing, ledger


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("late")


@pytest.mark.slow
def test_all_messages_of_a_round_that_is_over_come_once_more(folder):
    """As a relay may deliver them that was cut off: in the middle of a later round."""
    holders = Holders.written(folder)
    handlers, kept, said = holders.handlers(), [], []

    def remembering(name):
        def handle(message: bytes) -> bytes:
            kind, envelope = peek(message)
            if envelope.round_number == 1:
                kept.append((name, kind, message))
            return handlers[name](message)

        return handle

    def late() -> None:
        before = {name: ledger(folder, name) for name in NAMES}
        for name, kind, message in kept:
            try:
                reply = answer(handlers[name], message)
                said.append((kind, "refused" if isinstance(reply, Dropout) else "answered"))
            except CoordinatorBehind:
                # At a hub the request is closed by then, so nobody hears it.
                said.append((kind, "behind"))
        assert {name: ledger(folder, name) for name in NAMES} == before

    transport = Doing({name: remembering(name) for name in NAMES}, ("train", 3), late, after=False)
    summary = hold(federation(folder, *MASKED), doing(transport))
    assert set(said) == {("invitation", "behind"), ("relay", "refused"), ("assignment", "refused")}
    assert len(said) == len(kept) == 4 * len(NAMES)
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 0]
    assert {name: len(ledger(folder, name)) for name in NAMES} == dict.fromkeys(NAMES, 3)
    agrees(folder, summary["run_id"])

"""What goes with a client that leaves: whole generations of the pool, and no trace stays."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from platform.rounds.audit_trail import AuditTrail
from platform.rounds.leaving import GONE, LeavingTransport
from platform.wire.codec import peek
from platform.wire.layout import handle
from platform.wire.messages import decode_assignment
from storage import open_client_store
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold, within
from tests.trunk._leaving import NOISED, Doing, agrees, audit, doing, leave, runs_of, survivors
from tests.trunk._runs import Crash

POOLED = (
    *NOISED,
    "method={name: pfedmoap, context_tokens: 2, experts: 1}",
    "pool={minimum: 2, generations: 3}",
)


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("leaving")


def generations(folder: Path) -> set[int]:
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        return {n for (n,) in db.execute("SELECT DISTINCT generation FROM pool")}


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("sotto.db*")))


def holding_entries(folder: Path, *overrides: str) -> tuple[Holders, Any]:
    return Holders.written(folder), federation(folder, *POOLED, *overrides)


def handles(folder: Path, name: str, run_id: str, rounds: range) -> list[bytes]:
    secret = open_client_store(folder / name / "store" / "client.db").identity.handle_secret
    return [handle(secret, run_id, number) for number in rounds]


def test_whole_generations_go_and_no_handle_of_them_is_on_the_disk(folder):
    """Of sampled cohorts a generation that the client was not in stays as it is."""
    holders, config = holding_entries(
        folder, "cohort.size=2", "rounds=4", "seed=7", "pool.generations=4"
    )
    seen: dict[str, Any] = {}

    def away() -> None:
        (run_id,) = runs_of(folder)
        seen["before"], seen["bytes"] = generations(folder), on_disk(folder)
        seen["in"] = {n for n, who in survivors(folder).items() if "west" in who}
        seen["own"] = {name: handles(folder, name, run_id, range(1, 5)) for name in NAMES}
        leave(folder, "west")

    transport = Doing(holders.handlers(), ("advertise", 4), away, after=False)
    summary = hold(config, doing(transport))
    run_id = summary["run_id"]
    assert seen["before"] == {1, 2, 3}
    assert seen["in"], "another seed is needed: west was never drawn"
    assert seen["in"] < seen["before"], "another seed is needed: west was always drawn"
    fourth = {4} if "west" not in survivors(folder)[4] and 4 in generations(folder) else set()
    assert generations(folder) == (seen["before"] - seen["in"]) | fourth
    (gone,) = audit(folder, run_id, "client.left")
    assert gone["generations"] == sorted(seen["in"])
    now = on_disk(folder)
    for name, own in seen["own"].items():
        for number, named in enumerate(own[:3], start=1):
            was_there = name in survivors(folder)[number]
            assert (named in seen["bytes"]) == was_there
            assert (named in now) == (was_there and number not in seen["in"])
    details = json.dumps(audit(folder, run_id, "client.left", "client.joined"))
    assert not [h for own in seen["own"].values() for h in own if h.hex() in details]
    agrees(folder, run_id)


def test_entries_of_somebody_who_has_left_are_served_to_nobody(folder):
    """Also not in the round in which the coordinator hears of it."""
    holders, config = holding_entries(folder)
    handed: list[tuple[int, int]] = []
    handlers = holders.handlers()

    def listening(name):
        def answer(message: bytes) -> bytes:
            if peek(message)[0] == "assignment":
                told = decode_assignment(message)
                handed.append((told.envelope.round_number, len(told.experts)))
            return handlers[name](message)

        return answer

    transport = Doing(
        {name: listening(name) for name in NAMES},
        ("advertise", 3),
        lambda: leave(folder, "east"),
        after=False,
    )
    summary = hold(config, doing(transport))
    served = {number: {n for r, n in handed if r == number} for number in (1, 2, 3)}
    assert served == {1: {0}, 2: {1}, 3: {0}}
    assert generations(folder) == {3}
    agrees(folder, summary["run_id"])


def test_a_kill_between_note_and_erasure_leaves_neither(folder, monkeypatch):
    holders, config = holding_entries(folder)
    transport = Doing(
        holders.handlers(), ("advertise", 3), lambda: leave(folder, "east"), after=False
    )

    def killed(*args: Any, **more: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        # The generations are deleted by then, and nothing is committed.
        patch.setattr(AuditTrail, "client_gone", killed)
        with pytest.raises(Crash):
            hold(config, doing(transport))
    (run_id,) = runs_of(folder)
    assert generations(folder) == {1, 2}
    assert audit(folder, run_id, "client.left") == []
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", within(holders.handlers()))
    assert len(audit(folder, run_id, "client.left")) == 1
    assert generations(folder) == {3}
    assert [r["round"] for r in summary["rounds"]] == [1, 2, 3]
    agrees(folder, run_id)


def test_a_kill_after_the_note_is_committed(folder, monkeypatch):
    holders, config = holding_entries(folder)
    transport = Doing(
        holders.handlers(), ("advertise", 3), lambda: leave(folder, "east"), after=False
    )
    with monkeypatch.context() as patch:
        seen = LeavingTransport._heard

        def killed(self, client, reply):
            found = seen(self, client, reply)
            if found is GONE:
                raise Crash
            return found

        patch.setattr(LeavingTransport, "_heard", killed)
        with pytest.raises(Crash):
            hold(config, doing(transport))
    (run_id,) = runs_of(folder)
    assert generations(folder) == set()
    again = Doing(holders.handlers(), ("advertise", 99), lambda: None, after=False)
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", doing(again))
    assert all("east" not in asked for _, asked in again.asked)
    assert len(audit(folder, run_id, "client.left")) == 1
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 1]
    agrees(folder, run_id)


def test_a_pool_that_is_made_once_goes_with_whoever_leaves(folder):
    holders = Holders.written(folder)
    overrides = (
        "rounds=1",
        "method={name: pm_moe, base: fedper}",
    )
    transport = Doing(holders.handlers(), ("claim", 1), lambda: leave(folder, "south"), after=False)
    config = federation(folder, *overrides, "pool.minimum=2")
    summary = hold(config, doing(transport))
    assert [r["phase"] for r in summary["rounds"]] == ["rounds", "collection"]
    assert generations(folder) == set()
    assert [w for w in summary["warnings"] if "clients personalised without experts" in w]
    agrees(folder, summary["run_id"])

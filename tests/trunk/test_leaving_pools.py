"""What goes with a client that leaves: whole generations of the pool, and no trace stays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
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
from tests.trunk._federations import NAMES, Holders, federation, go_on, hold, noted
from tests.trunk._leaving import (
    NOISED,
    Doing,
    agrees,
    audit,
    crash,
    doing,
    leave,
    runs_of,
    survivors,
)
from tests.trunk._runs import Crash, warnings_of

POOLED = (
    *NOISED,
    "method={name: pfedmoap, context_tokens: 2, experts: 1}",
    "pool={minimum: 2, generations: 3}",
)


def generations(folder: Path) -> set[int]:
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        return {n for (n,) in db.execute("SELECT DISTINCT generation FROM pool")}


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("sotto.db*")))


def holding_entries(folder: Path, *overrides: str) -> tuple[Holders, Any]:
    return Holders.written(folder), federation(folder, *POOLED, *overrides)


def handed(told: Sequence[bytes]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for message in told:
        if peek(message)[0] == "assignment":
            assignment = decode_assignment(message)
            found.setdefault(assignment.envelope.round_number, set()).add(len(assignment.experts))
    return found


@pytest.mark.slow
def test_whole_generations_go_and_no_handle_of_them_is_on_the_disk(folder):
    sampled = ("cohort.size=2", "rounds=4", "seed=7", "pool.generations=4")
    holders, config = holding_entries(folder, *sampled)
    seen: dict[str, Any] = {}

    def away() -> None:
        (run_id,) = runs_of(folder)
        seen["before"], seen["bytes"] = generations(folder), on_disk(folder)
        seen["in"] = {n for n, who in survivors(folder).items() if "west" in who}
        for name in NAMES:
            secret = open_client_store(folder / name / "store" / "client.db").identity.handle_secret
            seen[name] = [handle(secret, run_id, number) for number in (1, 2, 3)]
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
    details = json.dumps(audit(folder, run_id, "client.left", "client.joined"))
    for name in NAMES:
        for number, named in enumerate(seen[name], start=1):
            was_there = name in survivors(folder)[number]
            assert (named in seen["bytes"]) == was_there
            assert (named in now) == (was_there and number not in seen["in"])
            assert named.hex() not in details
    agrees(folder, run_id)


@pytest.mark.parametrize("last", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_entries_of_somebody_who_has_left_are_served_to_nobody_and_no_handle_stays(folder, last):
    holders, config = holding_entries(folder, f"rounds={last}")
    told: list[bytes] = []
    named: list[bytes] = []

    def away() -> None:
        (run_id,) = runs_of(folder)
        secret = open_client_store(folder / "east" / "store" / "client.db").identity.handle_secret
        named.extend(handle(secret, run_id, number) for number in range(1, last))
        assert all(one in on_disk(folder) for one in named)
        leave(folder, "east")

    handlers = noted(holders.handlers(), told.append)
    transport = Doing(handlers, ("advertise", last), away, after=False)
    summary = hold(config, doing(transport))
    assert handed(told) == ({1: {0}, 2: {0}} if last == 2 else {1: {0}, 2: {1}, 3: {0}})
    assert generations(folder) == {last}
    assert named and not [one for one in named if one in on_disk(folder)]
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 1][3 - last :]
    (gone,) = audit(folder, summary["run_id"], "client.left")
    assert (gone["client"], gone["generations"]) == (1, [1, 2][: last - 1])
    assert "client 1 of 4" in " ".join(warnings_of(summary))
    agrees(folder, summary["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize("committed", [False, True])
def test_a_kill_around_note_and_erasure_leaves_neither_or_both(folder, monkeypatch, committed):
    holders, config = holding_entries(folder)
    handlers = holders.handlers()
    transport = Doing(handlers, ("advertise", 3), lambda: leave(folder, "east"), after=False)
    heard = LeavingTransport._heard

    def killed(self, client, reply):
        found = heard(self, client, reply)
        return crash() if found is GONE else found

    with monkeypatch.context() as patch, pytest.raises(Crash):
        if committed:
            patch.setattr(LeavingTransport, "_heard", killed)
        else:
            # The generations are deleted by then, and nothing is committed.
            patch.setattr(AuditTrail, "client_gone", lambda *_, **__: crash())
        hold(config, doing(transport))
    (run_id,) = runs_of(folder)
    assert generations(folder) == (set() if committed else {1, 2})
    assert len(audit(folder, run_id, "client.left")) == committed
    again = Doing(holders.handlers(), ("advertise", 99), lambda: None, after=False)
    summary = go_on(run_id, f"sqlite:///{folder}/sotto.db", doing(again))
    if committed:
        assert all("east" not in asked for _, asked in again.asked)
    assert generations(folder) == {3}
    assert len(audit(folder, run_id, "client.left")) == 1
    assert [r["dropped"] for r in summary["rounds"]] == [0, 0, 1]
    agrees(folder, run_id)


@pytest.mark.slow
def test_a_pool_that_is_made_once_goes_with_whoever_leaves(folder):
    holders = Holders.written(folder)
    transport = Doing(holders.handlers(), ("claim", 1), lambda: leave(folder, "south"), after=False)
    method = "method={name: pm_moe, base: fedper}"
    summary = hold(federation(folder, "rounds=1", method, "pool.minimum=2"), doing(transport))
    assert [r["phase"] for r in summary["rounds"]] == ["rounds", "collection"]
    assert generations(folder) == set()
    assert [w for w in warnings_of(summary) if "clients personalised without experts" in w]
    agrees(folder, summary["run_id"])


STYLES = "method={name: ccst, network: cnn, image_size: 16, channels: [2, 3], space: pixels}"


@pytest.mark.slow
def test_a_pool_made_before_the_rounds_goes_with_whoever_leaves_and_they_go_on(folder):
    holders, told = Holders.written(folder), []
    handlers = noted(holders.handlers(), told.append)
    transport = Doing(handlers, ("advertise", 4), lambda: leave(folder, "east"), after=False)
    summary = hold(federation(folder, *NOISED, STYLES), doing(transport))
    assert handed(told) == {1: {0}, 2: {3}, 3: {3}, 4: {0}}
    assert [d["phase"] for d in summary["rounds"]] == ["collection", *["rounds"] * 3]
    assert set(survivors(folder)[4]) == set(NAMES) - {"east"}
    assert generations(folder) == set()
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        charged = db.execute("SELECT round_number, channel, count(*) FROM ledger GROUP BY 1, 2")
        assert charged.fetchall() == [(1, "pool", 4), *((n, "sum", 4) for n in (2, 3, 4))]
    (gone,) = audit(folder, summary["run_id"], "client.left")
    assert gone["generations"] == [1]
    agrees(folder, summary["run_id"])

"""A pool made before the first round among data holders of their own: styles, and who leaves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from platform.wire.codec import peek
from platform.wire.messages import decode_assignment
from tests.trunk._federations import NAMES, Holders, federation, hold
from tests.trunk._leaving import NOISED, Doing, agrees, audit, doing, leave, survivors

METHOD = "method={name: ccst, network: cnn, image_size: 16, channels: [2, 3], space: pixels}"


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("opening")


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        return db.execute(query).fetchall()


def test_styles_go_with_whoever_leaves_and_the_rounds_go_on(folder: Path) -> None:
    """All are handed the others' styles, until one of the owners has left for good."""
    holders, config = Holders.written(folder), federation(folder, *NOISED, METHOD, "rounds=3")
    handed: list[tuple[int, int]] = []
    handlers = holders.handlers()

    def listening(name: str):
        def answer(message: bytes) -> bytes:
            if peek(message)[0] == "assignment":
                told = decode_assignment(message)
                handed.append((told.envelope.round_number, len(told.experts)))
            return handlers[name](message)

        return answer

    transport = Doing(
        {name: listening(name) for name in NAMES},
        ("advertise", 4),
        lambda: leave(folder, "east"),
        after=False,
    )
    summary = hold(config, doing(transport))
    served = {number: {n for r, n in handed if r == number} for number in (1, 2, 3, 4)}
    others = len(NAMES) - 1
    assert served == {1: {0}, 2: {others}, 3: {others}, 4: {0}}
    assert [d["phase"] for d in summary["rounds"]] == ["collection", *["rounds"] * 3]
    assert set(survivors(folder)[4]) == set(NAMES) - {"east"}
    assert rows(folder, "SELECT count(*) FROM pool") == [(0,)]
    charged = rows(folder, "SELECT round_number, channel, count(*) FROM ledger GROUP BY 1, 2")
    assert charged == [
        (1, "pool", len(NAMES)),
        *[(number, "sum", len(NAMES)) for number in (2, 3, 4)],
    ]
    (gone,) = audit(folder, summary["run_id"], "client.left")
    assert gone["generations"] == [1]
    agrees(folder, summary["run_id"])

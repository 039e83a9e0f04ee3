"""Whose an entry of the pool is cannot be learned from the database and its write-ahead log."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import storage
import storage.pool
from tests._linking import SIGNIFICANCE, Files, Watcher, chance, fixed_points

NAMES = [f"{n:02}-{text}" for n, text in enumerate(("kv", "ab", "zz", "mm", "ca", "qe"))]
"""Pseudonyms, in the order of the clients' names."""
QUICK = 24
SURE = 60
"""Generations after which a leak is seen, however the entropy of the system falls."""


class Unshuffled(random.Random):
    """Leaves every list as it is."""

    def shuffle(self, x: object) -> None:
        """Do nothing."""


def played(
    path: Path, database: storage.Database, make_row: Callable[..., storage.LedgerRow], number: int
) -> list[Files]:
    """Rounds as the coordinator commits them, with entries in the order of the clients."""
    owners: dict[bytes, str] = {}
    watcher = Watcher(path, [])
    with pytest.MonkeyPatch.context() as patch:
        watcher.on(patch)
        for round_number in range(1, number + 1):
            _play(database, make_row, round_number, owners)
    assert [files.generation for files in watcher.seen] == list(range(1, number + 1))
    assert all(files.log for files in watcher.seen)
    return [files.shown(NAMES, owners) for files in watcher.seen]


def _play(
    database: storage.Database,
    make_row: Callable[..., storage.LedgerRow],
    number: int,
    owners: dict[bytes, str],
) -> None:
    rows = [make_row(round_number=number, attempt=1, pseudonym=name) for name in NAMES]
    with database.unit_of_work() as unit:
        unit.ledger.reserve([r for row in rows for r in (row, replace(row, channel="pool"))])
        unit.audit.append("r", actor="coordinator", action="round.opened", round=number)
        unit.commit()
    entries = [(secrets.token_bytes(32), secrets.token_bytes(700)) for _ in NAMES]
    owners.update(zip((handle for handle, _ in entries), NAMES, strict=True))
    with database.unit_of_work() as unit:
        unit.states.save("r", number, secrets.token_bytes(900))
        unit.rounds.add("r", number, 1, {"survivors": NAMES})
        unit.ledger.set_status("r", number, 1, "released", pseudonyms=NAMES)
        unit.pool.add_generation("r", number, entries)
        unit.pool.keep_generations("r", 2)
        unit.audit.append("r", actor="coordinator", action="round.committed", round=number)
        unit.commit()


@pytest.mark.parametrize("number", [QUICK, pytest.param(300, marks=pytest.mark.slow)])
def test_a_trained_linker_does_no_better_than_chance(path, database, make_row, number):
    assert chance(played(path, database, make_row, number)) > SIGNIFICANCE


@pytest.mark.slow
def test_the_linker_sees_rows_that_were_not_shuffled(monkeypatch, path, database, make_row):
    monkeypatch.setattr(storage.pool.secrets, "SystemRandom", Unshuffled)
    assert chance(played(path, database, make_row, SURE)) < SIGNIFICANCE


@pytest.mark.slow
def test_the_linker_sees_keys_that_count(monkeypatch, path, database, make_row):
    """Shuffled rows, but with keys that were drawn in the order of the clients."""
    arrange = storage.pool.arrange

    def counted(entries, *, shuffle, key):
        keys = sorted(key() for _ in entries)
        named = dict(zip((handle for handle, _ in entries), keys, strict=True))
        rows = arrange(entries, shuffle=shuffle, key=key)
        return [(named[handle], handle, entry) for _, handle, entry in rows]

    monkeypatch.setattr(storage.pool, "arrange", counted)
    assert chance(played(path, database, make_row, SURE)) < SIGNIFICANCE


def test_chance_of_matches_by_hand():
    """Of the six orders of three: two without a fixed point, three with one, one with all."""
    assert fixed_points(3).tolist() == pytest.approx([2 / 6, 3 / 6, 0, 1 / 6])
    for number in (1, 2, 4, 5):
        orders = list(itertools.permutations(range(number)))
        counts = [sum(map(int.__eq__, order, range(number))) for order in orders]
        shares = [counts.count(n) / len(orders) for n in range(number + 1)]
        assert fixed_points(number).tolist() == pytest.approx(shares)

"""Ledger, audit log and their tree spoilt at random, by somebody careless and by a careful forger.

The careful one computes everything anew that can be computed: digests of rows, every run's chain,
leaves and tiles. What is left is a log that holds in itself; one head that somebody kept of the old
one tells.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import storage
from storage.leaves import charge_data, event_data, sealed_data, settled_data
from storage.merkle import completed, leaf_hash
from storage.records import LedgerRow
from storage.sealing import row_digest
from tests.storage.test_log import fill, past_opening, spoilt

TABLES = ("audit", "ledger", "leaves", "tiles")
ORDERS = {"tiles": "level, position"}
BOOLEANS = ("cohort_drawn",)
FACTS = "sequence, run_id, actor, action, round_number, channel, time, detail"
Connection = sqlite3.Connection


class Spoilt:
    """A database that is the same at the start of each attack."""

    def __init__(self, path: Path) -> None:
        self.path, self.whole = path, path.read_bytes()

    def attacked(self, attack: Callable[[Connection], Any]) -> bool:
        """Whether an attack changed anything."""
        self.path.write_bytes(self.whole)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints=ON")
            triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (name,) in connection.execute(triggers).fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            try:
                attack(connection)
            except sqlite3.IntegrityError:
                return False
        return True

    def names(self, heads: list[storage.TreeHead]) -> bool:
        """Whether the log, with these heads kept, is found to be another."""
        try:
            with past_opening(f"sqlite:///{self.path}") as database:
                database.verify_log(heads)
        except storage.StorageError:
            return True
        return False


def picked(connection: Connection, table: str, dice: random.Random) -> dict[str, Any]:
    """One row of a table, by column."""
    count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
    order = ORDERS.get(table, "rowid")
    found = connection.execute(
        f"SELECT * FROM {table} ORDER BY {order} LIMIT 1 OFFSET {dice.randrange(count)}"  # noqa: S608
    )
    return dict(zip((item[0] for item in found.description), found.fetchone(), strict=True))


def change(
    connection: Connection, table: str, row: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Other values in a row; a ledger row's digest is put right."""
    if table == "ledger" and "digest" not in changes:
        facts = {**row, **changes}
        for name in BOOLEANS:
            facts[name] = None if facts[name] is None else bool(facts[name])
        changes["digest"] = row_digest("ledger", {k: v for k, v in facts.items() if k != "digest"})
    settings = ", ".join(f"{name} = ?" for name in changes)
    where = " AND ".join(f"{name} IS ?" for name in row)
    connection.execute(
        f"UPDATE {table} SET {settings} WHERE {where}",  # noqa: S608
        (*changes.values(), *row.values()),
    )


def careless(connection: Connection, dice: random.Random) -> None:
    """One cell, one row gone, two rows with their contents swapped, or a cut tail."""
    table = dice.choice(TABLES)
    row = picked(connection, table, dice)
    kind = dice.randrange(4)
    where = " AND ".join(f"{name} IS ?" for name in row)
    if kind == 0:
        name = dice.choice([n for n in row if n != "digest"])
        change(connection, table, row, {name: spoilt(row[name])})
    elif kind == 1:
        connection.execute(f"DELETE FROM {table} WHERE {where}", tuple(row.values()))  # noqa: S608
    elif kind == 2:
        first = picked(connection, "audit", dice)
        second = picked(connection, "audit", dice)
        if first["action"] == second["action"] and first["detail"] == second["detail"]:
            raise sqlite3.IntegrityError
        for one, other in ((first, second), (second, first)):
            changes = {name: other[name] for name in ("action", "detail", "round_number")}
            change(connection, "audit", one, changes)
    else:
        last = dice.randrange(1, 5)
        connection.execute(
            "DELETE FROM leaves WHERE position > (SELECT max(position) FROM leaves) - ?", (last,)
        )


def careful(connection: Connection, dice: random.Random) -> None:
    """A change of what is told or charged, and everything that can be computed anew."""
    table = dice.choice(("audit", "ledger"))
    row = picked(connection, table, dice)
    if table == "audit":
        name = dice.choice(("actor", "action", "time", "detail", "round_number"))
        change(connection, table, row, {name: spoilt(row[name])})
    else:
        name = dice.choice(("standard_deviation", "clipping_norm", "relation", "mechanism"))
        change(connection, table, row, {name: spoilt(row[name])})
    rebuild(connection)


def rebuild(connection: Connection) -> None:
    """Chains, leaves and tiles of what the rows say now."""
    ends: dict[str, str] = {}
    data: dict[tuple[Any, ...], bytes] = {}
    query = f"SELECT {FACTS} FROM audit ORDER BY run_id, sequence"  # noqa: S608
    for facts in connection.execute(query).fetchall():
        sequence, run = facts[:2]
        said = event_data(ends.get(run, "0" * 64), facts)
        ends[run] = hashlib.sha256(said).hexdigest()
        data["event", run, sequence] = said
        connection.execute(
            "UPDATE audit SET hash = ? WHERE run_id = ? AND sequence = ?",
            (ends[run], run, sequence),
        )
    rows = {tuple(getattr(row, n) for n in KEY): row for row in ledger(connection)}
    hashes = []
    for position, kind, run, sequence, *key, status, salt in connection.execute(
        "SELECT position, kind, run_id, sequence, round_number, attempt, pseudonym, channel,"
        " status, salt FROM leaves ORDER BY position"
    ).fetchall():
        if kind == "event":
            said = data[kind, run, sequence]
        else:
            row = rows[(run, *key)]
            is_charge = kind == "charge"
            said = charge_data(row) if is_charge else settled_data(with_status(row, status))
            said = said if salt is None else sealed_data(run, said, salt)
        hashes.append(leaf_hash(said))
        connection.execute("UPDATE leaves SET hash = ? WHERE position = ?", (hashes[-1], position))
    connection.execute("DELETE FROM tiles")
    levels: dict[tuple[int, int], bytes] = {}
    for level, position, found in completed(partial(_none, levels), 0, hashes):
        connection.execute("INSERT INTO tiles VALUES (?, ?, ?)", (level, position, found))


KEY = ("run_id", "round_number", "attempt", "pseudonym", "channel")


def ledger(connection: Connection) -> Iterator[LedgerRow]:
    names = [field.name for field in fields(LedgerRow)]
    for values in connection.execute(f"SELECT {', '.join(names)} FROM ledger"):  # noqa: S608
        yield LedgerRow(*values)


def with_status(row: LedgerRow, status: Any) -> LedgerRow:
    return LedgerRow(**{**{f.name: getattr(row, f.name) for f in fields(row)}, "status": status})


def _none(levels: Any, level: int, start: int, count: int) -> list[bytes]:
    assert not count
    return []


COUNTS = [60, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]


@pytest.fixture
def kept(database: storage.Database, path: Path) -> tuple[Spoilt, storage.TreeHead]:
    """A log of two runs with some full tiles, and its head."""
    fill(database, rounds=28, clients=4)
    head = database.verify_log()
    assert head.size > 512
    database.checkpoint()
    database.close()
    return Spoilt(path), head


@pytest.mark.parametrize("count", COUNTS)
def test_a_careless_change_is_named_without_any_head(
    kept: tuple[Spoilt, storage.TreeHead], count: int
) -> None:
    place, head = kept
    dice = random.Random(count)
    tried = 0
    while tried < count:
        if place.attacked(lambda connection: careless(connection, dice)):
            tried += 1
            assert place.names([]) or place.names([head]), tried


@pytest.mark.parametrize("count", COUNTS)
def test_a_careful_forgery_is_named_by_one_kept_head(
    kept: tuple[Spoilt, storage.TreeHead], count: int
) -> None:
    place, head = kept
    dice = random.Random(count)
    held = 0
    for number in range(count):
        assert place.attacked(lambda connection: careful(connection, dice))
        assert place.names([head]), number
        if number < 20:
            held += not place.names([])
    # It was a forgery indeed: nothing else tells.
    assert held == min(count, 20)

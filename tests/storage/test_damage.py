"""What a flipped bit, a careless edit, a cut or an emptied file does: it is named, or harmless."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storage
from storage.client_tables import CLIENT_TABLES, ClientBase
from storage.sealing import row_digest
from storage.tables import SEALED_TABLES, Base
from tests.storage._filling import read_database, read_store
from tests.storage._raw import raw_file, spoil

NAMED = (storage.DatabaseDamaged, storage.SchemaMismatch, storage.AuditChainBroken)
Read = Callable[[Path], Any]


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(statement)


def flips_are_named_or_harmless(path: Path, read: Read, bits: Iterator[int]) -> int:
    """How many of some flips, each alone, were named; none of the others changed what is read."""
    before, named = read(path), 0
    for bit in bits:
        flip(path, bit)
        try:
            after = read(path)
        except NAMED as error:
            assert str(path) in str(error) or "audit log" in str(error)
            assert "\n" not in str(error)
            named += 1
        else:
            assert after == before, f"bit {bit % 8} of byte {bit // 8} changed what is read"
        flip(path, bit)
    assert read(path) == before
    return named


def some(path: Path, count: int, seed: int) -> Iterator[int]:
    return iter(random.Random(seed).sample(range(8 * path.stat().st_size), count))


def used(path: Path, count: int, seed: int) -> Iterator[int]:
    """Bits of bytes that are not zero: most of a small database's pages are empty."""
    places = [place for place, byte in enumerate(path.read_bytes()) if byte]
    chosen = random.Random(seed).choices(places, k=count)
    return iter([8 * place + n % 8 for n, place in enumerate(chosen)])


def test_a_few_flips(filled: Path, filled_store: Path) -> None:
    for seed, path, read in ((1, filled, read_database), (3, filled_store, read_store)):
        assert flips_are_named_or_harmless(path, read, used(path, 24, seed)) > 10
        flips_are_named_or_harmless(path, read, some(path, 4, seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_flips(filled: Path, filled_store: Path, seed: int) -> None:
    """10,000 in all, half of them in bytes that are in use."""
    for path, read in ((filled, read_database), (filled_store, read_store)):
        flips_are_named_or_harmless(path, read, used(path, 250, 10 + seed))
        flips_are_named_or_harmless(path, read, some(path, 250, 20 + seed))


ALICE = "of run 'r', round 1, attempt 1, client 'alice', channel 'sum'"
EDITS = {
    "UPDATE states SET blob = zeroblob(1024) WHERE round_number = 2 AND run_id = 'r'": (
        "table states of run 'r', round 2 "
    ),
    "UPDATE rounds SET document = '{}' WHERE round_number = 1 AND run_id = 's'": (
        "table rounds of run 's', round 1, attempt 1 "
    ),
    "UPDATE runs SET config_json = '{\"a\":2}' WHERE run_id = 'r'": "table runs of run 'r' ",
    "UPDATE ledger SET standard_deviation = 1.6 WHERE round_number = 1 AND run_id = 'r'"
    " AND pseudonym = 'alice'": f"table ledger {ALICE} ",
    "UPDATE ledger SET status = 'aborted' WHERE round_number = 1 AND run_id = 'r'"
    " AND pseudonym = 'alice'": f"table ledger {ALICE} ",
    "UPDATE pool SET entry = zeroblob(600)": "table pool of run 'r', generation 2 ",
    "UPDATE attempts SET is_open = 0": "table attempts of run 'r', round 3, attempt 1 ",
    "UPDATE stages SET blob = x'00'": "of run 'r', round 3, attempt 1, stage 'masked' ",
}


@pytest.mark.parametrize("statement", EDITS)
def test_an_edited_row_is_named(filled: Path, statement: str) -> None:
    spoil(partial(raw_file, filled), statement)
    with pytest.raises(storage.DatabaseDamaged) as caught:
        read_database(filled)
    assert f"database {filled} is damaged: the row of " in str(caught.value)
    assert EDITS[statement] in str(caught.value)
    with (
        storage.open_database(f"sqlite:///{filled}") as database,
        pytest.raises(storage.DatabaseDamaged, match="fit its digest"),
    ):
        database.verify_integrity()


STORE_EDITS = {
    "UPDATE personal SET personal = zeroblob(900) WHERE slot = 'committed'": "slot 'committed'",
    "UPDATE personal SET experts = zeroblob(600) WHERE slot = 'pending'": "slot 'pending'",
    "UPDATE identity SET handle_secret = zeroblob(32)": "table identity of client 'alice'",
    "UPDATE identity SET enrolment_serial = 1": "table identity of client 'alice'",
    "UPDATE ledger SET clipping_norm = 30.0 WHERE channel = 'pool'": "channel 'pool'",
    "UPDATE sessions SET noiseless_round = 0": "table sessions of run 'r'",
    "UPDATE replies SET reply = x'00'": "table replies",
    "UPDATE failures SET reason = 'something'": "table failures of run 'r'",
    "UPDATE tombstones SET payload_digest = zeroblob(32) WHERE channel = 'sum'": "channel 'sum'",
}


@pytest.mark.parametrize("statement", STORE_EDITS)
def test_an_edited_row_of_a_client_is_named(filled_store: Path, statement: str) -> None:
    edit(filled_store, statement)
    with pytest.raises(storage.DatabaseDamaged, match="fit its digest") as caught:
        read_store(filled_store)
    assert STORE_EDITS[statement] in str(caught.value)


def test_a_damaged_tombstone_is_no_leave_to_send_again(filled_store: Path) -> None:
    edit(filled_store, "UPDATE tombstones SET payload_digest = zeroblob(32)")
    client = storage.open_client_store(filled_store)
    with pytest.raises(storage.DatabaseDamaged, match="table tombstones"):
        client.reserve_release(replace(client.rows()[0], status="reserved"), payload=b"another")


def test_a_damaged_row_is_not_sealed_anew(filled: Path) -> None:
    """Who changes a row's status does not make the rest of it good."""
    change = "UPDATE ledger SET count = 0 WHERE status = 'reserved'"
    spoil(partial(raw_file, filled), change)
    with storage.open_database(f"sqlite:///{filled}") as database:
        with (
            pytest.raises(storage.DatabaseDamaged, match="channel 'pool'"),
            database.unit_of_work() as unit,
        ):
            unit.ledger.set_status("r", 1, 1, "released", channel="pool")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TRIGGER ledger_no_delete", "its trigger ledger_no_delete is missing"),
        ("DROP INDEX ix_pool_run_id", "its index ix_pool_run_id is missing"),
        ("CREATE INDEX more ON ledger (pseudonym)", "a index 'more', which does not belong there"),
        ("CREATE TABLE theirs (x)", "a table 'theirs', which does not belong there"),
        (
            "CREATE TRIGGER quiet AFTER INSERT ON ledger BEGIN DELETE FROM stages; END",
            "a trigger 'quiet', which does not belong there",
        ),
        (
            # One that guards nothing.
            "DROP TRIGGER ledger_no_delete;"
            "CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger BEGIN SELECT 1; END",
            "ledger_no_delete was changed",
        ),
        ("ALTER TABLE runs ADD COLUMN more TEXT", "its table runs was changed"),
        ("DROP TABLE stages", "is missing"),
    ],
)
def test_another_schema_than_the_migrations_make_is_named(filled, statement, reason):
    edit(filled, statement)
    for read_only in (False, True):
        with pytest.raises(storage.DatabaseDamaged) as caught:
            storage.open_database(f"sqlite:///{filled}", read_only=read_only)
        assert str(caught.value).startswith(f"database {filled} is damaged: ")
        assert reason in str(caught.value)


def test_another_schema_of_a_client_is_named(filled_store: Path) -> None:
    edit(filled_store, "DROP TABLE tombstones")
    with pytest.raises(storage.DatabaseDamaged, match=r"tombstones.* is missing"):
        storage.open_client_store(filled_store)


def test_a_trigger_that_is_dropped_while_it_is_open_is_found_when_asked(filled: Path) -> None:
    with storage.open_database(f"sqlite:///{filled}") as database:
        database.verify_integrity()
        edit(filled, "DROP TRIGGER ledger_no_delete")
        with pytest.raises(storage.DatabaseDamaged, match="ledger_no_delete is missing"):
            database.verify_integrity()


def test_a_row_without_its_run_is_named(filled: Path) -> None:
    edit(filled, "DELETE FROM runs WHERE run_id = 's'")
    with pytest.raises(storage.DatabaseDamaged, match="table runs"):
        storage.open_database(f"sqlite:///{filled}")


def test_an_index_that_says_something_else_than_its_table_is_named(filled: Path) -> None:
    """Bits all over the ledger's index page: none may hide a row or make another of it."""
    with closing(sqlite3.connect(filled)) as connection:
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_ledger_1'"
        ).fetchone()
    contents = filled.read_bytes()
    places = [n for n in range((page - 1) * page_size, page * page_size) if contents[n]][::16]
    bits = [8 * place + place % 8 for place in places]
    named = flips_are_named_or_harmless(filled, read_database, iter(bits))
    assert named > len(bits) // 2


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("is_store", [False, True])
@pytest.mark.parametrize(
    "damage", ["empty", "zeros", "text", "a page", "half", "a page less", "a few bytes less"]
)
def test_a_file_that_was_cut_emptied_or_overwritten_is_named(
    filled, filled_store, damage, is_store, read_only
):
    path = filled_store if is_store else filled
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "zeros": bytes(len(whole)),
            "text": b"no database " * 1000,
            "a page": whole[:4096],
            "half": whole[: len(whole) // 2],
            "a page less": whole[:-4096],
            "a few bytes less": whole.rstrip(b"\0")[:-7],
        }[damage]
    )
    kept = path.read_bytes()
    with pytest.raises((storage.DatabaseDamaged, storage.SchemaMismatch)) as caught:
        if is_store:
            storage.open_client_store(path, read_only=read_only).verify_integrity()
        else:
            with storage.open_database(f"sqlite:///{path}", read_only=read_only) as database:
                database.verify_integrity()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == kept


def test_the_digest_has_no_two_readings() -> None:
    rows: list[dict[str, Any]] = [
        {"a": "1", "b": None},
        {"a": 1, "b": None},
        {"a": 1.0, "b": None},
        {"a": True, "b": None},
        {"a": b"1", "b": None},
        {"a": None, "b": "1"},
        {"a": "1", "b": ""},
        {"a": "1", "b": b""},
        {"ab": "1", "b": None},
        {"a": "1"},
        {"a": b"", "b": None},
        {"a": 0, "b": None},
        {"a": "[0]", "b": None},
    ]
    digests = {row_digest(table, row) for table in ("t", "u") for row in rows}
    assert len(digests) == 2 * len(rows)
    assert row_digest("t", {"a": 0.0, "b": 1}) == row_digest("t", {"b": 1, "a": -0.0})
    # Also as constants, written by hand from the encoding that is described.
    text = b"('sotto-row-v2', 't', ('a', 'b', 'c', 'd'))\n(-7, 1.5, None, True)\n"
    expected = hashlib.sha256(text).digest()
    assert row_digest("t", {"a": -7, "b": 1.5, "c": None, "d": True}) == expected
    text = b"('sotto-row-v2', 't', ('a', 'b', 'c'))\n([2], '\\xe9\\u0301', [1])\n\x00\xff\n"
    expected = hashlib.sha256(text).digest()
    assert row_digest("t", {"a": b"\x00\xff", "b": "\xe9\u0301", "c": b"\n"}) == expected


def test_a_number_of_another_kind_is_hashed_as_it_is_stored() -> None:
    class Round(int):
        def __repr__(self) -> str:
            return "a round"

    assert row_digest("t", {"a": np.float64(1.5)}) == row_digest("t", {"a": 1.5})
    assert row_digest("t", {"a": Round(3)}) == row_digest("t", {"a": 3})
    with pytest.raises(TypeError, match="list is not"):
        row_digest("t", {"a": [1]})


def test_every_table_but_the_hashed_ones_is_sealed() -> None:
    sealed = {table.__tablename__ for table in SEALED_TABLES}
    assert set(Base.metadata.tables) - sealed == {"audit", "leaves", "tiles"}
    assert set(ClientBase.metadata.tables) == {table.__tablename__ for table in CLIENT_TABLES}

"""The audit log: filters, and every kind of tampering found at the right row."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage
from storage.leaves import event_data
from tests.storage._raw import spoil

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def filled(database: storage.Database) -> storage.Database:
    """Six entries in run ``r``, one second apart, and one in run ``s``."""
    with database.unit_of_work() as unit:
        for number in range(6):
            unit.audit.append(
                "r",
                actor="coordinator" if number % 2 else "client",
                action="open" if number < 3 else "commit",
                round=number // 2,
                channel="sum" if number == 4 else None,
                detail={"number": number, "word": "50%_\u00fc" if number == 5 else "x"},
            )
        unit.audit.append("s", actor="coordinator", action="open")
        unit.commit()
    return database


def first_bad(database: storage.Database, head: storage.AuditHead | None = None) -> int:
    with (
        pytest.raises(storage.AuditChainBroken) as caught,
        database.unit_of_work(read_only=True) as unit,
    ):
        unit.audit.verify("r", head)
    assert caught.value.run == "r"
    assert f"broken at entry {caught.value.sequence}" in str(caught.value)
    return caught.value.sequence


def head_of(database: storage.Database, run: str = "r") -> storage.AuditHead:
    with database.unit_of_work(read_only=True) as unit:
        return unit.audit.head(run)


def test_beginnings_are_the_first_entries_of_all_runs(filled: storage.Database) -> None:
    with filled.unit_of_work(read_only=True) as unit:
        found = unit.audit.beginnings()
    assert [(entry.run, entry.sequence) for entry in found] == [("r", 1), ("s", 1)]


def test_golden_chain(database: storage.Database) -> None:
    first = (
        b'sotto-audit-v1\n["' + b"0" * 64 + b'",1,"r","coordinator","run.created",null,null,'
        b'"2026-01-02T03:04:05.000000+00:00","{}"]'
    )
    one = hashlib.sha256(first).hexdigest()
    second = (
        b'sotto-audit-v1\n["' + one.encode() + b'",2,"r","client","upload",3,"sum",'
        b'"2026-01-02T03:04:06.000000+00:00","{\\"a\\":\\"\\u00e9\\",\\"b\\":[1,2.5]}"]'
    )
    two = hashlib.sha256(second).hexdigest()
    with database.unit_of_work() as unit:
        unit.audit.append("r", actor="coordinator", action="run.created")
        entry = unit.audit.append(
            "r",
            actor="client",
            action="upload",
            round=3,
            channel="sum",
            detail={"b": [1, 2.5], "a": "\u00e9"},
        )
        assert entry.detail == '{"a":"\u00e9","b":[1,2.5]}'
        assert [row.hash for row in unit.audit.query(run="r")] == [one, two]
        assert unit.audit.head("r") == storage.AuditHead(2, two)
        assert unit.audit.verify("r") == storage.AuditHead(2, two)
    # Also as a constant, so that encoding and test cannot drift together.
    assert one == "996e5bdcaca7f8187deeda315613e322e408861bb631a747fc2313f6fce83370"


@given(
    previous=st.text(max_size=5),
    texts=st.lists(st.text(max_size=8), min_size=5, max_size=5),
    numbers=st.tuples(st.integers(), st.none() | st.integers() | st.booleans() | st.floats()),
    channel=st.none() | st.text(max_size=4),
)
def test_the_encoding_is_that_of_json(previous, texts, numbers, channel):
    run, actor, action, moment, detail = texts
    values = [numbers[0], run, actor, action, numbers[1], channel, moment, detail]
    text = json.dumps([previous, *values], separators=(",", ":"))
    assert event_data(previous, values) == b"sotto-audit-v1\n" + text.encode("ascii")


def test_query(filled: storage.Database) -> None:
    expected: tuple[tuple[dict[str, Any], list[int]], ...] = (
        ({"run": "r"}, [1, 2, 3, 4, 5, 6]),
        ({}, [1, 2, 3, 4, 5, 6, 1]),
        ({"actor": "client"}, [1, 3, 5]),
        ({"action": "open"}, [1, 2, 3, 1]),
        ({"round": 0}, [1, 2]),
        ({"channel": "sum"}, [5]),
        ({"since": START + timedelta(seconds=4), "run": "r"}, [5, 6]),
        ({"until": START + timedelta(seconds=1)}, [1, 2]),
        ({"detail_contains": "50%_\u00fc"}, [6]),
        ({"detail_contains": "5%"}, []),
        ({"run": "r", "actor": "client", "action": "open", "round": 1}, [3]),
    )
    with filled.unit_of_work(read_only=True) as unit:
        for conditions, sequences in expected:
            found = [row.sequence for row in unit.audit.query(**conditions)]
            assert found == sequences, conditions
        with pytest.raises(storage.InvalidRecordError, match="since must carry"):
            unit.audit.query(since=datetime(2026, 1, 1))


def test_an_untouched_chain_verifies_with_and_without_a_head(filled: storage.Database) -> None:
    head = head_of(filled)
    with filled.unit_of_work() as unit:
        assert unit.audit.verify("r") == head
        assert unit.audit.verify("r", head) == head
        assert unit.audit.verify("r", storage.AuditHead(0, "0" * 64)) == head
        unit.audit.append("r", actor="a", action="later")
        assert unit.audit.verify("r", head).count == 7
        assert unit.audit.verify("s").count == 1


SET = "UPDATE audit SET {} WHERE run_id = 'r' AND sequence = {}"
MOVE = "UPDATE audit SET sequence = {} WHERE run_id = 'r' AND sequence = {}"
GONE = "DELETE FROM audit WHERE run_id = 'r' AND sequence = {}"
CHANGES = (
    *("actor = 'mallory'", "action = 'x'", "round_number = 99", "round_number = NULL"),
    *("channel = 'other'", "time = '2020-01-01T00:00:00.000000+00:00'", "detail = '{}'"),
    "hash = replace(hash, substr(hash, 1, 1), 'x')",
    # One bit in a row's header is enough to make bytes of a text.
    *("actor = CAST(actor AS BLOB)", "hash = CAST(hash AS BLOB)", "channel = x'78'"),
)
ATTACKS = {
    **{change: (3, [SET.format(change, 3)]) for change in CHANGES},
    "the first row": (1, [SET.format("actor = 'x'", 1)]),
    "the last row": (6, [SET.format("actor = 'x'", 6)]),
    "a row is gone": (3, [GONE.format(3)]),
    "and the rest renumbered": (3, [GONE.format(3), *(MOVE.format(n - 1, n) for n in (4, 5, 6))]),
    "two are swapped": (2, [MOVE.format(99, 2), MOVE.format(2, 4), MOVE.format(4, 99)]),
    "one of another run": (1, [GONE.format(1), "UPDATE audit SET run_id = 'r' WHERE run_id = 's'"]),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_chain_is_broken_where_it_was_changed(filled, raw, attack):
    sequence, statements = ATTACKS[attack]
    spoil(raw, *statements)
    assert first_bad(filled) == sequence


@pytest.mark.parametrize("kept", [0, 5])
def test_a_cut_tail_is_found_with_the_head_only(filled, raw, kept):
    head = head_of(filled)
    spoil(raw, f"DELETE FROM audit WHERE run_id = 'r' AND sequence > {kept}")  # noqa: S608
    with filled.unit_of_work(read_only=True) as unit:
        assert unit.audit.verify("r").count == kept
    assert first_bad(filled, head) == kept + 1


def test_a_rewritten_chain_is_found_with_the_head(filled, raw):
    head = head_of(filled)
    spoil(raw, "DELETE FROM audit WHERE run_id = 'r' AND sequence > 4")
    with filled.unit_of_work() as unit:
        for _ in range(5):
            unit.audit.append("r", actor="mallory", action="forged")
        unit.commit()
        unit.audit.verify("r")
    assert first_bad(filled, head) == 6


def test_bad_entries_are_refused(database):
    for name, value in (
        *(("actor", ""), ("action", None), ("round", -1), ("channel", "")),
        *(("detail", {"x": float("nan")}), ("detail", {"handle": b"bytes"})),
    ):
        arguments: dict[str, Any] = {"actor": "a", "action": "b", name: value}
        with pytest.raises(storage.InvalidRecordError, match=name), database.unit_of_work() as unit:
            unit.audit.append("r", **arguments)


def test_a_query_shows_nothing_of_a_broken_chain(filled, raw):
    """An entry whose actor was changed would be missing from what that actor did."""
    spoil(raw, "UPDATE audit SET actor = 'nobody' WHERE run_id = 'r' AND sequence = 2")
    with filled.unit_of_work(read_only=True) as unit:
        for conditions in ({"run": "r"}, {}, {"actor": "client"}):
            with pytest.raises(storage.AuditChainBroken, match="broken at entry 2"):
                unit.audit.query(**conditions)
        assert [entry.sequence for entry in unit.audit.query(run="s")] == [1]

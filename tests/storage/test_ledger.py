"""The ledger: reserved first, settled once, never deleted, exact to the last bit."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage

MakeRow = Callable[..., storage.LedgerRow]


def reserve(database: storage.Database, *rows: storage.LedgerRow) -> None:
    with database.unit_of_work() as unit:
        unit.ledger.reserve(rows)
        unit.commit()


def statuses(database: storage.Database) -> dict[tuple[str, str], str]:
    with database.unit_of_work(read_only=True) as unit:
        return {(row.pseudonym, row.channel): row.status for row in unit.ledger.rows("r")}


def test_rows_are_read_back_by_run_and_pseudonym(
    database: storage.Database, make_row: MakeRow
) -> None:
    rows = [make_row(pseudonym=name) for name in ("bob", "alice")]
    other = make_row(run_id="s", round_number=9)
    reserve(database, *rows, other)
    with database.unit_of_work() as unit:
        assert unit.ledger.rows("r") == (rows[1], rows[0])
        assert unit.ledger.rows("r", pseudonym="bob") == (rows[0],)
        assert unit.ledger.rows("r", pseudonym="carol") == ()
        assert unit.ledger.rows("s") == (other,)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    deviation=st.floats(min_value=0.0, allow_infinity=False).filter(lambda x: str(x) != "-0.0"),
    norm=st.floats(min_value=5e-324),
)
def test_floats_round_trip_exactly(
    database: storage.Database, make_row: MakeRow, deviation: float, norm: float
) -> None:
    with database.unit_of_work() as unit:
        unit.ledger.reserve([make_row(standard_deviation=deviation, clipping_norm=norm)])
        (row,) = unit.ledger.rows("r")
    assert row.standard_deviation.hex() == deviation.hex()
    assert row.clipping_norm.hex() == norm.hex()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("standard_deviation", -1.0),
        ("standard_deviation", math.nan),
        ("standard_deviation", math.inf),
        ("standard_deviation", 1),
        ("clipping_norm", 0.0),
        ("clipping_norm", -0.5),
        ("clipping_norm", math.nan),
        ("clipping_norm", None),
        ("status", "released"),
        ("mechanism", ""),
        ("relation", None),
        ("pseudonym", ""),
        ("round_number", -1),
        ("attempt", 1.5),
    ],
)
def test_bad_rows_are_refused(
    database: storage.Database, make_row: MakeRow, field: str, value: Any
) -> None:
    with pytest.raises(storage.InvalidRecordError, match=field):
        reserve(database, make_row(**{field: value}))


def test_a_release_is_reserved_once(database: storage.Database, make_row: MakeRow) -> None:
    reserve(database, make_row())
    with pytest.raises(storage.AlreadyExistsError, match="in the ledger already"):
        reserve(database, make_row(channel="pool"), make_row(standard_deviation=9.0))
    with pytest.raises(storage.AlreadyExistsError, match="twice"):
        reserve(database, make_row(attempt=1), make_row(attempt=1))
    assert statuses(database) == {("alice", "sum"): "reserved"}


def test_rows_are_settled_by_pseudonym_and_channel(
    database: storage.Database, make_row: MakeRow
) -> None:
    names = ("alice", "bob", "carol")
    rows = [make_row(pseudonym=n, channel=c) for n in names for c in ("sum", "pool")]
    reserve(database, *rows)
    with database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, "released", pseudonyms=["alice", "bob"], channel="sum")
        unit.ledger.set_status("r", 1, 0, "aborted", pseudonyms={"carol"})
        unit.commit()
    assert statuses(database) == {
        ("alice", "sum"): "released",
        ("alice", "pool"): "reserved",
        ("bob", "sum"): "released",
        ("bob", "pool"): "reserved",
        ("carol", "sum"): "aborted",
        ("carol", "pool"): "aborted",
    }


def test_settling_touches_one_attempt_only(database: storage.Database, make_row: MakeRow) -> None:
    keys = [("r", 1, 0), ("r", 1, 1), ("r", 2, 0), ("s", 1, 0)]
    reserve(database, *(make_row(run_id=r, round_number=n, attempt=a) for r, n, a in keys))
    with database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, "released")
        rows = unit.ledger.rows("r") + unit.ledger.rows("s")
    assert [row.status for row in rows] == ["released", "reserved", "reserved", "reserved"]


@pytest.mark.parametrize("first", ["released", "aborted"])
@pytest.mark.parametrize("second", ["reserved", "released", "aborted"])
def test_a_settled_row_stays_as_it_is(
    database: storage.Database, make_row: MakeRow, first: Any, second: Any
) -> None:
    reserve(database, make_row(), make_row(pseudonym="bob"))
    with database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, first, pseudonyms=["alice"])
        unit.commit()
    with pytest.raises(storage.InvalidTransitionError), database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, second)
    assert statuses(database) == {("alice", "sum"): first, ("bob", "sum"): "reserved"}


def test_settling_what_is_not_there(database: storage.Database, make_row: MakeRow) -> None:
    reserve(database, make_row())
    with database.unit_of_work() as unit:
        with pytest.raises(storage.NotFound, match="nothing was reserved"):
            unit.ledger.set_status("r", 1, 1, "released")
        with pytest.raises(storage.NotFound, match="for mallory"):
            unit.ledger.set_status("r", 1, 0, "released", pseudonyms=["alice", "mallory"])
        with pytest.raises(storage.InvalidTransitionError):
            unit.ledger.set_status("r", 1, 0, "reserved")
        with pytest.raises(storage.InvalidRecordError, match="status is 'spent'"):
            unit.ledger.set_status("r", 1, 0, "spent")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM ledger", "never deleted"),
        ("UPDATE ledger SET standard_deviation = 99", "only the status"),
        ("UPDATE ledger SET pseudonym = 'bob'", "only the status"),
        ("UPDATE ledger SET status = 'reserved'", "settled"),
        ("UPDATE ledger SET status = 'spent'", "settled|ck_ledger_status"),
    ],
)
def test_the_file_itself_guards_the_ledger(
    database: storage.Database,
    make_row: MakeRow,
    raw: Callable[[], Any],
    statement: str,
    message: str,
) -> None:
    reserve(database, make_row())
    with database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, "released")
        unit.commit()
    with raw() as connection, pytest.raises(sqlite3.IntegrityError, match=message):
        connection.execute(statement)


def test_there_is_no_way_to_delete(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        public = {name for name in dir(unit.ledger) if not name.startswith("_")}
    assert public == {"reserve", "set_status", "rows"}

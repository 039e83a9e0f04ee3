"""The ledger: reserved first, settled once, never deleted, exact to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage
from tests.storage._filling import COHORT, INTEGER_NOISE
from tests.storage._raw import REFUSED

SHARES = [name for name in INTEGER_NOISE if name != "noise_kind"]
MakeRow = Callable[..., storage.LedgerRow]


def reserve(database: storage.Database, *rows: storage.LedgerRow) -> None:
    with database.unit_of_work() as unit:
        unit.ledger.reserve(rows)
        unit.commit()


def statuses(database: storage.Database) -> dict[tuple[str, str], str]:
    with database.unit_of_work(read_only=True) as unit:
        return {(row.pseudonym, row.channel): row.status for row in unit.ledger.rows("r")}


def test_rows_are_read_back_by_run_and_pseudonym(database, make_row):
    rows = [make_row(pseudonym=name) for name in ("bob", "alice")]
    other = make_row(run_id="s", round_number=9)
    reserve(database, *rows, other)
    with database.unit_of_work() as unit:
        assert unit.ledger.rows("r") == (rows[1], rows[0])
        assert unit.ledger.rows("r", pseudonym="bob") == (rows[0],)
        assert unit.ledger.rows("r", pseudonym="carol") == ()
        assert unit.ledger.rows("s") == (other,)


def test_rows_of_clients_are_read_over_all_runs(database, make_row):
    rows = [
        make_row(run_id=run_id, round_number=number, pseudonym=name)
        for run_id in ("r", "s")
        for number in (1, 2)
        for name in ("alice", "bob", "carol")
    ]
    reserve(database, *reversed(rows))
    with database.unit_of_work(read_only=True) as unit:
        assert unit.ledger.rows_of(["carol", "alice", "carol", "nobody"]) == tuple(
            row for row in rows if row.pseudonym != "bob"
        )
        assert unit.ledger.rows_of({"bob"}) == tuple(row for row in rows if row.pseudonym == "bob")
        assert unit.ledger.rows_of(()) == unit.ledger.rows_of(["nobody"]) == ()


def test_every_fact_is_read_back(database, make_row, full):
    rows = (make_row(**full), make_row(pseudonym="bob"))
    reserve(database, *rows)
    with database.unit_of_work() as unit:
        (first, second) = unit.ledger.rows("r")
    assert (first, second) == rows
    # True and 1 are equal, so equality alone would not see that a type was lost.
    assert [type(value) for value in asdict(first).values()] == [
        type(value) for value in asdict(rows[0]).values()
    ]
    assert (second.sampling_probability, second.count) == (1.0, 1)
    assert {getattr(second, name) for name in set(full)} == {"none", "gaussian", 1, None}


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    deviation=st.floats(min_value=0.0, allow_infinity=False).filter(lambda x: str(x) != "-0.0"),
    norm=st.floats(min_value=5e-324),
    probability=st.floats(min_value=0.0, max_value=1.0, exclude_min=True),
    share=st.floats(min_value=0.0, exclude_min=True, allow_infinity=False),
)
def test_floats_round_trip_exactly(database, make_row, full, deviation, norm, probability, share):
    floats = {
        "standard_deviation": deviation,
        "clipping_norm": norm,
        "sampling_probability": probability,
        "share_deviation": share,
    }
    with database.unit_of_work() as unit:
        unit.ledger.reserve([make_row(**(full | floats))])
        (row,) = unit.ledger.rows("r")
    assert {name: getattr(row, name).hex() for name in floats} == {
        name: value.hex() for name, value in floats.items()
    }


BAD = {
    "standard_deviation": (-1.0, math.nan, math.inf, 1),
    "clipping_norm": (0.0, math.nan),
    "status": ("released",),
    "mechanism": ("",),
    "pseudonym": ("",),
    "round_number": (-1,),
    "attempt": (1.5,),
    "sampling_probability": (0.0, 1.5, 1),
    "count": (0, True, 2.0),
    "noise_kind": (None,),
    "share_deviation": (0.0, math.inf),
    "shares": (0,),
    "dimension": (0, 2**63),
    "corrupt": (-1,),
    "cohort_kind": (7,),
    "cohort_size": (0, 41),
    "cohort_population": (4,),
    "cohort_drawn": (1,),
}


def test_bad_rows_are_refused(database, make_row, full):
    for field, values in BAD.items():
        for value in values:
            with pytest.raises(storage.InvalidRecordError, match=field):
                reserve(database, make_row(**(full | {field: value})))


def test_the_ends_of_the_ranges_are_taken(database, make_row, full):
    ends = (
        {"cohort_size": 40},
        {"cohort_size": 1, "cohort_population": 1},
        {"corrupt": 0},
        {"shares": 1, "dimension": 1, "count": 1},
        {"noise_kind": "laplace", "share_deviation": None, "shares": None}
        | {"dimension": None, "corrupt": None},
        {"cohort_kind": None, "cohort_size": None, "cohort_population": None}
        | {"cohort_drawn": None},
    )
    rows = tuple(make_row(**(full | facts), attempt=i) for i, facts in enumerate(ends))
    reserve(database, *rows)
    with database.unit_of_work() as unit:
        assert unit.ledger.rows("r") == rows


def test_half_a_group_is_refused(database, make_row, full):
    """A row with some of its shares, or some of its cohort, has no price."""
    for name in (*SHARES, *COHORT):
        with pytest.raises(storage.InvalidRecordError, match=f"{name}.* must be given"):
            reserve(database, make_row(**(full | {name: None})))
        with pytest.raises(storage.InvalidRecordError, match="must be given"):
            reserve(database, make_row(**{name: full[name]}))


def test_a_release_is_reserved_once(database: storage.Database, make_row: MakeRow) -> None:
    reserve(database, make_row())
    with pytest.raises(storage.AlreadyExistsError, match="ledger already"):
        reserve(database, make_row(channel="pool"), make_row(standard_deviation=9.0))
    with pytest.raises(storage.AlreadyExistsError, match="twice"):
        reserve(database, make_row(attempt=1), make_row(attempt=1))
    assert statuses(database) == {("alice", "sum"): "reserved"}


def test_rows_are_settled_by_pseudonym_and_channel(database, make_row):
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
def test_a_settled_row_stays_as_it_is(database, make_row, first, second):
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
        ("UPDATE ledger SET status = 'reserved'", "settled"),
        ("UPDATE ledger SET status = 'spent'", "settled|ck_ledger_status"),
    ],
)
def test_the_file_itself_guards_the_ledger(database, make_row, raw, statement, message):
    reserve(database, make_row())
    with database.unit_of_work() as unit:
        unit.ledger.set_status("r", 1, 0, "released")
        unit.commit()
    with raw() as connection, pytest.raises(REFUSED, match=message):
        connection.execute(statement)


def test_no_fact_of_a_row_can_be_changed(database, make_row, full, raw):
    """Every field of the type is under the trigger, a new one as well."""
    reserve(database, make_row(**full))
    facts = {field.name for field in fields(storage.LedgerRow)} - {"status"}
    with raw() as connection:
        for fact, value in product(sorted(facts), ("NULL", "1")):
            value = f"CAST({value} AS BOOLEAN)" if fact == "cohort_drawn" else value
            with pytest.raises(REFUSED, match="only the status"):
                connection.execute(f"UPDATE ledger SET {fact} = {value}")  # noqa: S608

"""Runs, server states and committed rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import storage
from storage.tables import States

ARGUMENTS = {"name": "n", "config_json": "{}", "config_digest": "d", "versions_json": "{}"}
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8"))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)
reuse = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)


def test_a_run_is_read_back(database: storage.Database) -> None:
    created = datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with database.unit_of_work() as unit:
        made = unit.runs.create("new", **ARGUMENTS, created=created)
        unit.commit()
    with database.unit_of_work() as unit:
        assert unit.runs.get("new") == made
    assert made == storage.RunRecord(
        "new", "n", "{}", "d", "{}", "running", "2026-05-01T10:00:00.000000+00:00"
    )


def test_runs_are_listed_oldest_first(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        unit.runs.create("z", **ARGUMENTS, created=datetime(2025, 1, 1, tzinfo=UTC))
        unit.runs.create("a", **ARGUMENTS, created=datetime(2027, 1, 1, tzinfo=UTC))
        assert [run.run_id for run in unit.runs.list()] == ["z", "r", "s", "a"]


@pytest.mark.parametrize("status", ["running", "finished", "interrupted", "stopped", "failed"])
def test_status(database: storage.Database, status: Any) -> None:
    with database.unit_of_work() as unit:
        unit.runs.set_status("r", status)
        unit.commit()
    with database.unit_of_work() as unit:
        assert unit.runs.get("r").status == status
        assert unit.runs.get("s").status == "running"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name"),
        ({"config_digest": None}, "config_digest"),
        ({"config_json": "\ud800"}, "config_json"),
        ({"created": datetime(2026, 1, 1)}, "created must carry a time zone"),
    ],
)
def test_bad_runs_are_refused(
    database: storage.Database, changes: dict[str, Any], message: str
) -> None:
    with (
        pytest.raises(storage.InvalidRecordError, match=message),
        database.unit_of_work() as unit,
    ):
        unit.runs.create("new", **{**ARGUMENTS, **changes})


def test_a_run_is_created_once_and_has_a_known_status(database: storage.Database) -> None:
    with pytest.raises(storage.AlreadyExistsError, match="'r'"), database.unit_of_work() as unit:
        unit.runs.create("r", **ARGUMENTS)
    with (
        pytest.raises(storage.InvalidRecordError, match="status is 'done'"),
        database.unit_of_work() as unit,
    ):
        unit.runs.set_status("r", "done")  # type: ignore[arg-type]


def test_the_newest_two_states_are_kept(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        for round_number in (0, 1, 2, 7):
            unit.states.save("r", round_number, bytes([round_number]))
        unit.states.save("s", 3, b"other")
        unit.commit()
        kept = unit.states._rows.column(States, "round_number", {"run_id": "r"})
        assert kept == (2, 7)
        assert unit.states.latest("r") == (7, b"\x07")
        assert unit.states.latest("s") == (3, b"other")


@pytest.mark.parametrize("round_number", [0, 4, 5])
def test_states_only_go_forward(database: storage.Database, round_number: int) -> None:
    with database.unit_of_work() as unit:
        unit.states.save("r", 5, b"x")
        with pytest.raises(storage.InvalidRecordError, match=f"round_number is {round_number}"):
            unit.states.save("r", round_number, b"y")


@reuse
@given(blob=st.binary(max_size=10_000))
def test_blobs_round_trip(database: storage.Database, blob: bytes) -> None:
    with database.unit_of_work() as unit:
        unit.states.save("r", 1, blob)
        assert unit.states.latest("r") == (1, blob)


@reuse
@given(document=st.dictionaries(st.text(st.characters(codec="utf-8")), json_values))
def test_documents_round_trip(database: storage.Database, document: dict[str, Any]) -> None:
    with database.unit_of_work() as unit:
        unit.rounds.add("r", 3, 1, document)
        assert unit.rounds.all("r") == (storage.RoundRecord(3, 1, document),)


def test_rounds_are_ordered_and_added_once(database: storage.Database) -> None:
    with database.unit_of_work() as unit:
        for round_number in (2, 0, 1):
            unit.rounds.add("r", round_number, 0, {"n": round_number})
        assert [row.round_number for row in unit.rounds.all("r")] == [0, 1, 2]
        with pytest.raises(storage.AlreadyExistsError, match="round 1"):
            unit.rounds.add("r", 1, 5, {})


@pytest.mark.parametrize(
    "document", [{"x": float("nan")}, {"x": float("inf")}, {"x": b"bytes"}, {"x": "\ud800"}, [1]]
)
def test_documents_are_json(database: storage.Database, document: Any) -> None:
    with (
        pytest.raises(storage.InvalidRecordError, match="document"),
        database.unit_of_work() as unit,
    ):
        unit.rounds.add("r", 0, 0, document)


@pytest.mark.parametrize("value", [-1, 2**63, True, 1.0, "1", None])
def test_round_numbers_are_counts(database: storage.Database, value: Any) -> None:
    with (
        pytest.raises(storage.InvalidRecordError, match="round_number"),
        database.unit_of_work() as unit,
    ):
        unit.rounds.add("r", value, 0, {})

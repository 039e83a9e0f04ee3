"""Runs, their attempts, server states and committed rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import storage
from storage.tables import States

RUN = "a-run"
PLAN = {"cohort": ["client-1", "client-2"], "graph_seed": ""}
ARGUMENTS = {"name": "n", "config_json": "{}", "config_digest": "d", "versions_json": "{}"}


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


def test_status(database: storage.Database) -> None:
    statuses: tuple[Any, ...] = ("finished", "interrupted", "stopped", "failed")
    for status in statuses:
        with database.unit_of_work() as unit:
            unit.runs.set_status("r", status)
            unit.commit()
        with database.unit_of_work() as unit:
            assert unit.runs.get("r").status == status
            assert unit.runs.get("s").status == "running"


def test_bad_runs_are_refused(database):
    changes = {"name": "", "config_digest": None, "config_json": "\ud800"}
    for name, value in (*changes.items(), ("created", datetime(2026, 1, 1))):
        with pytest.raises(storage.InvalidRecordError, match=name), database.unit_of_work() as unit:
            unit.runs.create("new", **{**ARGUMENTS, name: value})


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


def test_rounds_are_ordered_and_added_once(database: storage.Database) -> None:
    document = {"\u00fc": [1, 2.5, None, True, {"": "\n"}]}
    with database.unit_of_work() as unit:
        for round_number in (2, 0, 1):
            unit.rounds.add("r", round_number, 3, document)
        assert unit.rounds.all("r") == tuple(storage.RoundRecord(n, 3, document) for n in range(3))
        with pytest.raises(storage.AlreadyExistsError, match="round 1"):
            unit.rounds.add("r", 1, 5, {})


def test_documents_are_json_and_round_numbers_are_counts(database: storage.Database) -> None:
    documents: tuple[Any, ...] = (
        *({"x": float("nan")}, {"x": float("inf")}, {"x": b"bytes"}, {"x": "\ud800"}, [1]),
    )
    numbers: tuple[Any, ...] = (-1, 2**63, True, 1.0, "1", None)
    with database.unit_of_work() as unit:
        for document in documents:
            with pytest.raises(storage.InvalidRecordError, match="document"):
                unit.rounds.add("r", 0, 0, document)
        for number in numbers:
            with pytest.raises(storage.InvalidRecordError, match="round_number"):
                unit.rounds.add("r", number, 0, {})


@pytest.fixture
def uow(database: storage.Database) -> storage.UnitOfWork:
    with database.unit_of_work() as work:
        work.runs.create(RUN, **ARGUMENTS)
        yield work


def test_an_open_attempt_is_found_with_its_plan_and_stages(uow: storage.UnitOfWork) -> None:
    uow.attempts.open(RUN, 1, 1, PLAN)
    uow.attempts.add_stage(RUN, 1, 1, stage="advertise", blob=b"\x00keys")
    uow.attempts.add_stage(RUN, 1, 1, stage="share", blob=b"")
    assert uow.attempts.newest(RUN) == storage.AttemptRecord(1, 1, PLAN, True)
    assert uow.attempts.stages(RUN, 1, 1) == {"advertise": b"\x00keys", "share": b""}


def test_an_ended_attempt_keeps_its_number_and_nothing_else(uow: storage.UnitOfWork) -> None:
    uow.attempts.open(RUN, 1, 1, PLAN)
    uow.attempts.add_stage(RUN, 1, 1, stage="train", blob=b"a masked sum")
    uow.attempts.close(RUN, 1, 1)
    newest = uow.attempts.newest(RUN)
    assert newest is not None and not newest.is_open
    assert uow.attempts.stages(RUN, 1, 1) == {}
    with pytest.raises(storage.NotFound):
        uow.attempts.add_stage(RUN, 1, 1, stage="unmask", blob=b"")
    with pytest.raises(storage.NotFound):
        uow.attempts.close(RUN, 1, 1)


@pytest.mark.parametrize("later", [(1, 1), (1, 2), (2, 1)])
def test_only_one_attempt_is_open(uow: storage.UnitOfWork, later: tuple[int, int]) -> None:
    uow.attempts.open(RUN, 1, 1, PLAN)
    with pytest.raises(storage.AlreadyExistsError, match="open"):
        uow.attempts.open(RUN, *later, PLAN)


@pytest.mark.parametrize("older", [(2, 3), (2, 1), (1, 9)])
def test_a_number_is_never_given_out_again(uow: storage.UnitOfWork, older: tuple[int, int]) -> None:
    uow.attempts.open(RUN, 2, 3, PLAN)
    uow.attempts.close(RUN, 2, 3)
    with pytest.raises(storage.InvalidRecordError, match="newer"):
        uow.attempts.open(RUN, *older, PLAN)
    uow.attempts.open(RUN, 2, 4, PLAN)


def test_a_stage_is_kept_once(uow: storage.UnitOfWork) -> None:
    uow.attempts.open(RUN, 1, 1, PLAN)
    uow.attempts.add_stage(RUN, 1, 1, stage="train", blob=b"one")
    with pytest.raises(storage.AlreadyExistsError):
        uow.attempts.add_stage(RUN, 1, 1, stage="train", blob=b"two")
    with pytest.raises(storage.InvalidRecordError, match="stage"):
        uow.attempts.add_stage(RUN, 1, 1, stage="", blob=b"two")


@pytest.mark.parametrize("key", [(0, 1), (1, 0), (-1, 1)])
def test_rounds_and_attempts_count_from_one(uow: storage.UnitOfWork, key: tuple[int, int]) -> None:
    with pytest.raises(storage.InvalidRecordError):
        uow.attempts.open(RUN, *key, PLAN)


def test_stages_of_an_ended_attempt_are_not_in_the_file(database, path):
    secret = bytes(range(256)) * 64
    with database.unit_of_work() as work:
        work.runs.create(RUN, **ARGUMENTS)
        work.attempts.open(RUN, 1, 1, PLAN)
        work.attempts.add_stage(RUN, 1, 1, stage="train", blob=secret)
        work.commit()
    assert secret[:200] in path.read_bytes()
    with database.unit_of_work() as work:
        work.attempts.close(RUN, 1, 1)
        work.commit()
    assert secret[:200] not in path.read_bytes()

"""The attempts of a run: one open at a time, never twice the same, stages erased at the end."""

from __future__ import annotations

import pytest

import storage

RUN = "a-run"
PLAN = {"cohort": ["client-1", "client-2"], "graph_seed": ""}


@pytest.fixture
def uow(database: storage.Database) -> storage.UnitOfWork:
    with database.unit_of_work() as work:
        work.runs.create(RUN, name="n", config_json="{}", config_digest="d", versions_json="{}")
        yield work


def test_nothing_before_the_first(uow: storage.UnitOfWork) -> None:
    assert uow.attempts.newest(RUN) is None
    assert uow.attempts.stages(RUN, 1, 1) == {}


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


@pytest.mark.parametrize("key", [(0, 1), (1, 0), (-1, 1)])
def test_rounds_and_attempts_count_from_one(uow: storage.UnitOfWork, key: tuple[int, int]) -> None:
    with pytest.raises(storage.InvalidRecordError):
        uow.attempts.open(RUN, *key, PLAN)


def test_an_unknown_run_has_no_attempts(uow: storage.UnitOfWork) -> None:
    with pytest.raises(storage.NotFound):
        uow.attempts.open("another", 1, 1, PLAN)


def test_stages_of_an_ended_attempt_are_not_in_the_file(
    database: storage.Database, path: object
) -> None:
    secret = bytes(range(256)) * 64
    with database.unit_of_work() as work:
        work.runs.create(RUN, name="n", config_json="{}", config_digest="d", versions_json="{}")
        work.attempts.open(RUN, 1, 1, PLAN)
        work.attempts.add_stage(RUN, 1, 1, stage="train", blob=secret)
        work.commit()
    assert secret[:200] in path.read_bytes()  # type: ignore[attr-defined]
    with database.unit_of_work() as work:
        work.attempts.close(RUN, 1, 1)
        work.commit()
    assert secret[:200] not in path.read_bytes()  # type: ignore[attr-defined]

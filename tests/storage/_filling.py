"""Databases in which every table has rows, made and read through the public interface alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import storage

INTEGER_NOISE: dict[str, Any] = {
    "noise_kind": "skellam",
    "share_deviation": 12.5,
    "shares": 7,
    "dimension": 512,
    "corrupt": 2,
}
COHORT: dict[str, Any] = {
    "cohort_kind": "fixed_size",
    "cohort_size": 5,
    "cohort_population": 40,
    "cohort_drawn": False,
}
SAMPLED: dict[str, Any] = {"sampling": "poisson", "sampling_probability": 0.125, "count": 300}


ROW = storage.LedgerRow(
    run_id="r",
    round_number=1,
    attempt=1,
    pseudonym="alice",
    channel="sum",
    mechanism="upload_noise",
    standard_deviation=1.5,
    clipping_norm=0.3,
    relation="replace_one",
    sampling="none",
    noise_kind="gaussian",
)


def fill_database(path: Path) -> None:
    """Two runs of two rounds, the first with entries in its pool and an attempt in progress."""
    with storage.open_database(f"sqlite:///{path}") as database, database.unit_of_work() as unit:
        for run_id in ("r", "s"):
            facts = {"config_digest": "d", "versions_json": "{}"}
            unit.runs.create(run_id, name="quickstart", config_json='{"a":1}', **facts)
            for number in (1, 2):
                _fill_round(unit, run_id, number)
        entries = [(bytes([n]) * 32, bytes([n]) * 600) for n in range(4)]
        unit.pool.add_generation("r", 2, entries)
        unit.attempts.open("r", 3, 1, {"cohort": ["alice", "bob"]})
        unit.attempts.add_stage("r", 3, 1, stage="masked", blob=b"sum" * 40)
        unit.runs.set_status("s", "finished")
        unit.commit()


def _fill_round(unit: storage.UnitOfWork, run_id: str, number: int) -> None:
    shared = replace(ROW, run_id=run_id, round_number=number)
    rows = [
        shared,
        replace(shared, pseudonym="bob", **INTEGER_NOISE),
        replace(shared, pseudonym="bob", channel="pool", **COHORT),
    ]
    unit.ledger.reserve(rows)
    unit.ledger.set_status(run_id, number, 1, "released", channel="sum")
    unit.rounds.add(run_id, number, 1, {"accuracy": 0.5, "round": number})
    unit.states.save(run_id, number, bytes(range(256)) * 4)
    unit.audit.append(run_id, actor="coordinator", action="round.committed", round=number)


def read_database(path: Path) -> dict[str, Any]:
    """Everything that can be read of it, each row with what it says about itself checked."""
    found: dict[str, Any] = {}
    opened = storage.open_database(f"sqlite:///{path}", read_only=True)
    with opened as database, database.unit_of_work() as unit:
        found["runs"] = unit.runs.list()
        for run_id in ("r", "s"):
            found[run_id] = (
                unit.runs.get(run_id),
                unit.states.latest(run_id),
                unit.rounds.all(run_id),
                unit.ledger.rows(run_id),
                unit.pool.entries(run_id),
                unit.attempts.newest(run_id),
                unit.attempts.stages(run_id, 3, 1),
                unit.audit.verify(run_id),
                unit.audit.query(run=run_id),
            )
        found["lives"] = unit.ledger.rows_of(["alice", "bob"])
    return found


def fill_store(path: Path) -> None:
    """A client's store with a row in every table."""
    store = storage.open_client_store(path, pseudonym="alice")
    store.remember_serial(3)
    for number in (1, 2):
        row = replace(ROW, round_number=number)
        store.reserve_release(row, payload=b"noised")
        store.reserve_release(replace(row, channel="pool", **INTEGER_NOISE), payload=b"expert")
        store.put_noise("r", b"drawn" * number)
        store.put_pending("r", number, 1, personal=b"own" * 300, experts=b"others" * 100)
        if number == 1:
            store.roll("r", (1, 1))
        store.set_status("r", number, 1, "released")
        store.add_failure("r", number, 1, reason="nothing")
    session = storage.SessionRecord("r", 2, 1, 1, b"state")
    store.restoring.mark(datetime(2026, 11, 22, tzinfo=UTC))
    store.restoring.settle(datetime(2026, 11, 23, tzinfo=UTC))
    store.put_noise("r", b"drawn")
    store.sessions.keep(session, after=None, request_digest=b"d" * 32, reply=b"reply")


def read_store(path: Path) -> tuple[Any, ...]:
    """Everything that can be read of it."""
    store = storage.open_client_store(path, read_only=True)
    with store.kept_open():
        store.verify_integrity()
        return (
            store.identity,
            store.rows(),
            store.slots("r")[0],
            store.slots("r")[1],
            store.noise("r"),
            store.failures("r"),
            store.sessions.newest("r"),
            store.sessions.reply("r", b"d" * 32),
        )

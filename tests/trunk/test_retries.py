"""Aborted rounds that are tried again: another cohort, fresh keys, and a charge of its own."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from platform.errors import RunStopped
from platform.parties.identities import client_names
from platform.rounds.attempts import Spending, draw_cohort
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.runner import RoundRunner
from platform.wire.codec import peek
from platform.wire.messages import Stage, decode_answer
from platform.wire.transport import ClientId, Dropout, InProcessTransport
from tests.trunk._runs import (
    FIXED,
    NO_POOL,
    OS,
    Finished,
    Storage,
    crashed,
    gaussian_epsilon,
    over,
    warnings_of,
)

CHEAP = (*NO_POOL, "cohort.dropout_rate=0")
FOUR = (*CHEAP, *FIXED, "cohort.size=4", "rounds=2")
"""Four of five clients a round, of whom three are enough."""


@dataclasses.dataclass
class Failing:
    """A transport on which only one client answers, in some attempts from a stage on; it keeps what
    clients answered invitations with, by attempt."""

    inner: InProcessTransport
    stage: Stage
    attempts: set[tuple[int, int]]
    keys: dict[tuple[int, int], dict[ClientId, bytes]] = dataclasses.field(default_factory=dict)

    def exchange(self, stage, messages, deadline):
        if not messages:
            return {}
        _, envelope = peek(next(iter(messages.values())))
        place = envelope.round_number, envelope.attempt
        fails = stage == self.stage and place in self.attempts
        sent = dict(sorted(messages.items())[:1]) if fails else messages
        answers = dict(self.inner.exchange(stage, sent, deadline))
        if stage == "advertise":
            self.keys[place] = {
                c: decode_answer(a).payload for c, a in answers.items() if isinstance(a, bytes)
            }
        return {c: answers.get(c, Dropout("gone")) for c in messages}


def failing(simulation, stage, attempts):
    transport = Failing(simulation.run.transport, stage, attempts)
    return over(simulation, transport), transport


def run_failing(storage, stage, attempts, *overrides):
    spoiled, transport = failing(storage.create(*overrides), stage, attempts)
    return storage.finish(spoiled), transport


def rows(storage: Storage) -> list[tuple[Any, ...]]:
    return storage.rows(
        "SELECT round_number, attempt, status, count(*) FROM ledger GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )


def aborts(storage: Storage) -> list[dict[str, Any]]:
    query = "SELECT round_number, detail FROM audit WHERE action = 'round.aborted' ORDER BY rowid"
    return [{"round": n, **json.loads(detail)} for n, detail in storage.rows(query)]


def require_charges(finished: Finished) -> None:
    """The run states what its client with most charges has spent."""
    counts = "SELECT count(*) FROM ledger WHERE status != 'aborted' GROUP BY pseudonym"
    most = max(count for (count,) in finished.storage.rows(counts))
    spent = finished.summary["final"]["epsilon"]["server"]
    assert spent == pytest.approx(gaussian_epsilon(4.0, most), rel=1e-6)


def test_after_uploads_were_asked_for_both_attempts_are_charged(storage: Storage) -> None:
    finished, transport = run_failing(storage, "train", {(2, 1)}, OS, *FOUR)
    assert rows(storage) == [(1, 1, "released", 4), (2, 1, "reserved", 4), (2, 2, "released", 4)]
    assert aborts(storage) == [{"round": 2, "attempt": 1, "charged": True, "phase": "masked_input"}]
    assert storage.rows("SELECT round_number, attempt FROM rounds") == [(1, 1), (2, 2)]
    require_charges(finished)
    assert any("stay charged" in w for w in warnings_of(finished.summary))
    # Another cohort, drawn for this attempt, and other keys for who is in both.
    drawing = storage.config(OS, *FOUR), client_names(5), 2
    cohorts = [set(draw_cohort(*drawing, attempt)) for attempt in (1, 2)]
    assert [set(transport.keys[2, attempt]) for attempt in (1, 2)] == cohorts
    query = "SELECT pseudonym FROM ledger WHERE round_number = 2 AND attempt = ? ORDER BY 1"
    assert storage.rows(query, 1) != storage.rows(query, 2)
    for client in cohorts[0] & cohorts[1]:
        assert transport.keys[2, 1][client] != transport.keys[2, 2][client]


def test_before_anything_was_asked_for_an_attempt_is_free(storage):
    finished, _ = run_failing(storage, "share", {(1, 1), (2, 1), (2, 2)}, OS, *FOUR)
    assert rows(storage) == [
        (1, 1, "aborted", 4),
        (1, 2, "released", 4),
        (2, 1, "aborted", 4),
        (2, 2, "aborted", 4),
        (2, 3, "released", 4),
    ]
    assert [a["charged"] for a in aborts(storage)] == [False] * 3
    require_charges(finished)
    assert not any("stay charged" in w for w in warnings_of(finished.summary))


def test_a_budget_without_room_for_a_retry_ends_the_run(storage: Storage) -> None:
    """Calibrated for three rounds: when the third is lost there is nothing left to repeat it."""
    finished, _ = run_failing(storage, "train", {(3, 1)}, OS, *CHEAP)
    assert [r["round"] for r in finished.summary["rounds"]] == [1, 2]
    assert rows(storage) == [(1, 1, "released", 5), (2, 1, "released", 5), (3, 1, "reserved", 5)]
    told = finished.summary["warnings"][0]
    assert told["code"] == "ended-early" and "round 3: " in told["text"]
    assert 7.9 < finished.summary["final"]["epsilon"]["server"] <= 8.0
    assert len(aborts(storage)) == 1


def test_when_the_last_try_fails_the_run_stops_and_can_go_on(storage: Storage) -> None:
    with pytest.raises(RunStopped) as stopped:
        run_failing(storage, "unmask", {(2, 1), (2, 2)}, OS, *FOUR, "cohort.retries=1")
    run_id = storage.only_run()
    assert "phase unmasking" in str(stopped.value)
    assert str(stopped.value).endswith(f"--resume {run_id}")
    assert storage.rows("SELECT status FROM runs") == [("interrupted",)]
    assert [(a["attempt"], a["charged"]) for a in aborts(storage)] == [(1, True), (2, True)]
    resumed = storage.resume(run_id)
    assert [r["round"] for r in resumed.summary["rounds"]] == [1, 2]
    assert [row[:2] for row in rows(storage)] == [(1, 1), (2, 1), (2, 2), (2, 3)]
    assert [row[2] for row in rows(storage)] == ["released", "reserved", "reserved", "released"]
    require_charges(resumed)


@pytest.mark.parametrize("overrides", [(OS,), pytest.param((), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (RoundRunner, "run", False),
        # Charge and attempt are one transaction, so both are there or neither.
        pytest.param(Spending, "reserve", True, marks=pytest.mark.slow),
        pytest.param(Spending, "reserve", False, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_between_two_tries_goes_on_with_its_ledger(
    storage, monkeypatch, overrides, owner, name, after
):
    expected = [(1, 1), (2, 1), (2, 2)]
    spoiled, _ = failing(storage.create(*FOUR, *overrides), "train", {(2, 1)})
    run_id = crashed(monkeypatch, spoiled, owner, name, 3, after=after)
    before = rows(storage)
    resumed = storage.resume(run_id)
    assert [row[:2] for row in rows(storage)] == expected
    assert {row[:2] for row in before} <= set(expected)
    assert all(count == 4 for *_, count in rows(storage))
    assert storage.rows("SELECT attempt FROM rounds WHERE round_number = 2") == [(2,)]
    require_charges(resumed)
    assert len(aborts(storage)) == 1


@pytest.mark.slow
def test_an_abort_that_cannot_be_written_down_is_not_retried(storage, monkeypatch):
    """A process that dies while it notes the abort has asked nobody for anything more."""
    spoiled, transport = failing(storage.create(OS, *FOUR), "train", {(1, 1)})
    run_id = crashed(monkeypatch, spoiled, AuditTrail, "round_aborted", 1)
    assert set(transport.keys) == {(1, 1)}
    assert aborts(storage) == []
    storage.resume(run_id)
    # The attempt is open still, so it goes on, and this time everybody answers.
    assert [row[:2] for row in rows(storage)][:2] == [(1, 1), (2, 1)]

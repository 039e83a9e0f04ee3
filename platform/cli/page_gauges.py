"""Numbers of the newest runs for a monitoring system: by run, never by client.

Counts by client would tell who was drawn into a cohort. Every number is as a run's last round
states it; whether the records agree is for `audit verify` to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform.agreement import stored_tree
from platform.page import Gauge
from platform.rounds.documents import ADVERSARIES, shown_round
from platform.rounds.phases import in_rounds
from storage import RunRecord, UnitOfWork
from storage.records import RUN_STATUSES

NEWEST: Final = 20
"""Beside them, all that are running."""
SINGLE: Final = {
    "sotto_dropped_clients": ("Clients lost in the last round.", "dropped"),
    "sotto_cohort_clients": ("Clients in the last round's cohort.", "cohort"),
    "sotto_bytes_up": ("Mean bytes from an invited client in the last round.", "bytes_up"),
    "sotto_bytes_down": ("Mean bytes to an invited client in the last round.", "bytes_down"),
    "sotto_round_seconds": ("Seconds that the last round took.", "seconds"),
}

Last = tuple[str, Mapping[str, Any]]


def run_gauges(uow: UnitOfWork) -> list[Gauge]:
    """Return what the newest runs and those that go on have come to."""
    known = uow.runs.list()
    chosen = [run for run in known[:-NEWEST] if run.status == "running"] + list(known[-NEWEST:])
    states = Counter(run.status for run in known)
    rounds = {run.run_id: _rounds(uow, run) for run in chosen}
    last = [(run_id, found[-1]) for run_id, found in rounds.items() if found]
    return [
        Gauge(
            name="sotto_runs",
            help="Runs in the database.",
            labels=("status",),
            values=[((status,), float(states[status])) for status in RUN_STATUSES],
        ),
        _by_run("sotto_rounds", "Rounds that are over.", [(n, len(r)) for n, r in rounds.items()]),
        _by_run(
            "sotto_accuracy_ratio",
            "Mean accuracy over clients after the last round.",
            [(name, one["accuracy"]["mean"]) for name, one in last],
        ),
        _epsilon(last),
        *[
            _by_run(name, text, [(run_id, one[key]) for run_id, one in last])
            for name, (text, key) in SINGLE.items()
        ],
    ]


def _rounds(uow: UnitOfWork, run: RunRecord) -> list[Mapping[str, Any]]:
    first = stored_tree(run).get("phase_two_of")
    return in_rounds([shown_round(row.document) for row in uow.rounds.all(first or run.run_id)])


def _epsilon(last: Sequence[Last]) -> Gauge:
    return Gauge(
        name="sotto_epsilon",
        help="Epsilon of the worst client, cumulative, for a round fixed beforehand.",
        labels=("run", "adversary"),
        values=[
            ((run_id, name), _number(one["epsilon"][name]))
            for run_id, one in last
            for name in ADVERSARIES
        ],
    )


def _by_run(name: str, text: str, values: Sequence[tuple[str, float | None]]) -> Gauge:
    # What is withheld, the size of a secret cohort say, has no number.
    found = [((run_id,), float(value)) for run_id, value in values if value is not None]
    return Gauge(name=name, help=text, labels=("run",), values=found)


def _number(value: float | str) -> float:
    return math.inf if isinstance(value, str) else value

"""Whole runs over a transport, held against the same runs in one process.

A test class of an own transport derives from `TransportContract`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform.wire.transport import InProcessTransport, Transport
from tests.trunk._runs import FIXED, GATHERING, NONE, Finished, Storage, comparable

THREE = (
    "task.clients=3",
    "rounds=2",
    "cohort.dropout_rate=0",
    "pool.minimum=2",
    "secure_aggregation.threshold=2",
)
RUNS: dict[str, tuple[str, ...]] = {
    # Experts are fetched in the second round, gates stay with their clients, one client is lost.
    "a pool under masks and noise": (*THREE, *FIXED, "rounds=3", "task.clients=4"),
    "a pool that is made once, then personalised": (GATHERING, *THREE, NONE),
}
Carry = Callable[[InProcessTransport], Transport]


def left_behind(run: Finished) -> dict[str, Any]:
    """All that a run leaves, but for its name, times, and what is drawn once for each client."""
    summary = comparable(run.summary)
    summary["phases"] = (run.summary["phases"] or {}).get("before")
    documents = [
        {k: v for k, v in json.loads(text).items() if "seconds" not in k}
        for (text,) in run.storage.rows("SELECT document FROM rounds ORDER BY round_number")
    ]
    ledger = "SELECT round_number, attempt, channel, status, standard_deviation FROM ledger"
    audit = "SELECT action, channel FROM audit ORDER BY sequence"
    return {
        "summary": summary,
        "documents": documents,
        "states": run.storage.rows("SELECT round_number, blob FROM states ORDER BY round_number"),
        "pool": sorted(run.storage.rows("SELECT generation, entry FROM pool")),
        "ledger": sorted(run.storage.rows(ledger)),
        "audit": run.storage.rows(audit),
        "personal": run.personal_parts(),
    }


def carried(storage: Storage, carry: Carry) -> Storage:
    surroundings = dataclasses.replace(storage.surroundings, carry=carry)
    return dataclasses.replace(storage, surroundings=surroundings)


def require_same(storage: Storage, reference: tuple[str, Finished], carry: Carry) -> None:
    name, expected = reference
    place = dataclasses.replace(storage, surroundings=expected.storage.surroundings)
    simulation = carried(place, carry).create(*RUNS[name])
    # Without its clients: whoever reaches for one past the transport fails.
    found = left_behind(place.finish(dataclasses.replace(simulation, population=None)))
    for part, value in left_behind(expected).items():
        assert found[part] == value, part


def run_in_process(name: str, make_storage: Any) -> tuple[str, Finished]:
    """A run in one process, for reading only."""
    place = make_storage("reference")
    place = place.gathering() if "gathering" in " ".join(RUNS[name]) else place
    return name, place.run(*RUNS[name])


class TransportContract:
    """A run is the same over this transport: round by round, and bit by bit what it leaves."""

    def carry(self, within: InProcessTransport, folder: Path) -> Transport:
        """The transport to try: in place of `within`, to the same clients; files go to `folder`."""
        raise NotImplementedError

    @pytest.mark.parametrize("name", RUNS)
    def test_a_run_is_the_same(
        self, name: str, make_storage: Any, storage: Storage, tmp_path: Path
    ) -> None:
        expected = run_in_process(name, make_storage)
        require_same(storage, expected, lambda within: self.carry(within, tmp_path))

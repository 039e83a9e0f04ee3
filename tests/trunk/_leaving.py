"""Federations for tests whose clients leave: what is done at which moment, and what is left."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from platform.agreement import require_agreement
from platform.disk.opening import open_existing
from platform.holder.settings import load_holder
from platform.holder.store import leave_runs
from platform.wire.messages import Stage
from platform.wire.transport import InProcessTransport
from storage import open_client_store
from tests.trunk import _federations
from tests.trunk._runs import Crash, Finished, Storage

MASKED = ("rounds=3", *_federations.MASKED)
NOISED = (
    "rounds=3",
    "privacy.mechanism=upload_noise",
    "privacy.clipping_norm=0.1",
    "privacy.noise_multiplier=1.0",
    "secure_aggregation.largest_weight=null",
)


def leave(folder: Path, name: str, run_id: str | None = None) -> str:
    settings = load_holder(folder / name / "client.yaml")
    (found,) = leave_runs(settings, None if run_id is None else [run_id])
    return found.run_id


class Doing(InProcessTransport):
    """Does something before or after the n-th exchange of a stage."""

    def __init__(self, handlers, at, deed, *, after):
        super().__init__(handlers=handlers, losses=lambda *_: frozenset())
        self.__dict__.update(at=at, deed=deed, after=after, seen=0, asked=[])

    def exchange(self, stage: Stage, messages, deadline):
        self.asked.append((stage, sorted(messages)))
        self.__dict__["seen"] += stage == self.at[0]
        now = stage == self.at[0] and self.seen == self.at[1]
        if now and not self.after:
            self.deed()
        found = super().exchange(stage, messages, deadline)
        if now and self.after:
            self.deed()
        return found


def doing(transport: InProcessTransport):
    return lambda section: nullcontext(transport)


def crash() -> None:
    raise Crash


def audit(folder: Path, run_id: str, *actions: str) -> list[dict[str, Any]]:
    query = "SELECT action, detail FROM audit WHERE run_id = ? ORDER BY sequence"
    entries = Storage(folder).rows(query, run_id)
    return [json.loads(detail) for action, detail in entries if action in actions]


def agrees(folder: Path, run_id: str) -> None:
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        database.verify_integrity()
        require_agreement(database, run_id)


def runs_of(folder: Path) -> list[str]:
    return [name for (name,) in Storage(folder).rows("SELECT run_id FROM runs")]


def survivors(folder: Path) -> dict[int, list[str]]:
    (run_id,) = runs_of(folder)
    return Finished(Storage(folder), run_id, {}).survivors()


def pseudonym_of(folder: Path, name: str) -> str:
    return open_client_store(folder / name / "store" / "client.db").identity.pseudonym


def ledger(folder: Path, name: str) -> list[tuple[int, int, str]]:
    store = open_client_store(folder / name / "store" / "client.db", read_only=True)
    return sorted((row.round_number, row.attempt, row.channel) for row in store.rows())

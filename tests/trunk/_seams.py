"""Runs that are killed anywhere, lose other clients each time, and say what sums they opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platform.errors import RunStopped
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.identities import client_names, create_enrolment
from platform.rounds.attempts import Attempts
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from platform.rounds.runner import DatabaseJournal, MaskedSum
from platform.wire.transport import InProcessTransport
from tests.trunk import _runs
from tests.trunk._runs import FIXED, RECORDS, Crash, Storage, opened

CLIENTS, SMALLEST = 7, 5
TALLYING = (
    "task={dataset: digits, model: null, clients: 7, shots: 20, test_per_class: 20,"
    " partition: {kind: dirichlet, alpha: 100.0}}",
    "method={name: tallying}",
    "cohort={minimum: 5, dropout_rate: 0.0, retries: 1}",
    "secure_aggregation={enabled: true, threshold: 5, corrupt: 1}",
    "privacy.noise_source=os",
    "training={local_steps: 2, batch_size: 4, learning_rate: 0.3}",
    "rounds=2",
)
MECHANISMS = {
    "none": ("privacy.mechanism=none",),
    "upload_noise": ("privacy.mechanism=upload_noise", *FIXED),
    "distributed_noise": ("privacy.mechanism=distributed_noise", *FIXED),
    "central_noise": ("privacy.mechanism=central_noise", *FIXED),
    "dp_sgd": RECORDS,
}
ADVERSARIES = ("semi_honest", "active")
STAGES = ("advertise", "share", "train", "confirm", "unmask")


def seam_storage(folder: Path) -> Storage:
    return Storage(folder / "runs").gathering()


def overrides(mechanism: str, adversary: str, folder: Path) -> tuple[str, ...]:
    """The configuration under one mechanism and adversary; makes the enrolment it needs."""
    chosen = (*TALLYING, *MECHANISMS[mechanism])
    if adversary == "semi_honest":
        return chosen
    place = folder / "keys"
    if not place.exists():
        create_enrolment(place, client_names(CLIENTS))
    return (
        *chosen,
        "secure_aggregation.adversary=active",
        f"secure_aggregation.enrolment={place / 'enrolment.json'}",
    )


@dataclass(frozen=True)
class Opened:
    """The sum that a coordinator opened of these share indices, at a round and attempt."""

    place: tuple[int, int]
    survivors: frozenset[int]
    total: bytes


@dataclass
class Seams:
    """What a coordinator's lives opened. This one passes `left` places or opens `most` sums."""

    sums: list[Opened] = field(default_factory=list)
    left: int | None = None
    most: int | None = None

    def pass_one(self) -> None:
        """Dies here if this is the place."""
        if self.most is not None and len(self.sums) >= self.most:
            raise Crash
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    def by_round(self) -> dict[int, list[Opened]]:
        found: dict[int, list[Opened]] = {}
        for each in self.sums:
            found.setdefault(each.place[0], []).append(each)
        return found


@contextmanager
def seams_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seams]:
    """Every place between two messages, two commits, or a message and a commit may be the last."""
    seams = Seams()

    def around(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            seams.pass_one()
            result = original(*args, **kwargs)
            seams.pass_one()
            return result

        patch.setattr(owner, name, wrapped)

    original = MaskedSum.finished

    def finished(self: MaskedSum) -> Any:
        result = original(self)
        place = (result.parameters.round_number, result.parameters.attempt)
        seams.sums.append(Opened(place, frozenset(result.survivors), result.total.tobytes()))
        seams.pass_one()
        return result

    with monkeypatch.context() as patch:
        around(InProcessTransport, "_deliver")
        around(DatabaseJournal, "keep")
        around(Attempts, "_open")
        around(Attempts, "_abort")
        around(Federation, "_commit")
        patch.setattr(MaskedSum, "finished", finished)
        yield seams


def losing(simulation: Simulation, rng: np.random.Generator, most: int) -> Simulation:
    """The simulation with other clients lost, at another stage than the life before."""
    lost = frozenset(rng.choice(client_names(CLIENTS), rng.integers(0, most + 1), replace=False))
    stage = str(rng.choice(STAGES))
    return _runs.losing(simulation, lambda number, attempt, cohort: lost & frozenset(cohort), stage)


def live_through(
    storage: Storage, chosen: tuple[str, ...], seams: Seams, rng: np.random.Generator
) -> tuple[str, dict[str, Any]]:
    """One run through up to four deaths, each life losing other clients; the last one is quiet."""
    simulation = storage.create(*chosen)
    run_id = simulation.run_id
    for _ in range(4):
        # Anywhere, or where it would do most harm: with a sum in hand that is not committed.
        seams.left = int(rng.integers(0, 130))
        if rng.random() < 0.5:
            seams.left, seams.most = None, len(seams.sums) + 1
        with opened(losing(simulation, rng, most=3)) as lossy:
            try:
                return run_id, execute(lossy, SilentObserver())
            except (Crash, RunStopped):
                pass
        seams.left = seams.most = None
        simulation = storage.reopen(run_id)
    for _ in range(4):
        with opened(simulation) as quiet:
            try:
                return run_id, execute(quiet, SilentObserver())
            except RunStopped:
                pass
        simulation = storage.reopen(run_id)
    raise AssertionError("a run without losses must come to its end")

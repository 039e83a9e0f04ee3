"""Real processes over local sockets, killed, stopped and started at random: the run goes on.

After all of it no round was applied twice, no charge is missing, epsilon is within the budget, and
the coordinator's ledger has every release that a client's own store has.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from platform.agreement.checking import faults_of
from platform.disk.opening import open_existing
from storage import open_client_store
from tests.trunk._federations import BASE, write_holder
from tests.trunk._processes import Processes, runs_in, torment

NAMES = ("east", "north", "west")
SECONDS = 240.0


def configuration(folder: Path) -> str:
    tree = BASE.replace("clients: [east, north, south, west],", "clients: [east, north, west],")
    tree = tree.replace("clients: 4", "clients: 3").replace("rounds: 2", "rounds: 3")
    tree = tree.replace(
        "privacy: {mechanism: none}",
        "privacy: {mechanism: distributed_noise, clipping_norm: 0.1, target_epsilon: 8.0, "
        "spare_attempts: 40}",
    )
    tree = tree.replace(
        "secure_aggregation: {largest_weight: 64}",
        "secure_aggregation: {enabled: true, threshold: 2, corrupt: 1}\ncohort: {retries: 3}",
    )
    times = "phase_seconds: 4.0, training_seconds: 8.0, joining_seconds: 20.0"
    return tree.replace("federation: {", f"federation: {{socket: {folder}/hub.sock, {times}, ")


def require_sound(folder: Path) -> None:
    (run_id,) = runs_in(folder / "sotto.db")
    with open_existing(f"sqlite:///{folder}/sotto.db") as database:
        assert faults_of(database, run_id)[1] == []
    with closing(sqlite3.connect(folder / "sotto.db")) as db:
        rounds = [n for (n,) in db.execute("SELECT round_number FROM rounds ORDER BY round_number")]
        charged = set(db.execute("SELECT pseudonym, round_number, attempt, channel FROM ledger"))
    assert rounds == sorted(set(rounds))
    for name in NAMES:
        store = open_client_store(folder / name / "store" / "client.db", read_only=True)
        own = {
            (store.identity.pseudonym, row.round_number, row.attempt, row.channel)
            for row in store.rows()
        }
        # What a client released is charged; what is charged need not have been released.
        assert own <= charged


def hold_under_blows(folder: Path, seed: int, blows: int) -> None:
    for name in NAMES:
        write_holder(folder, name)
    (folder / "run.yaml").write_text(configuration(folder))
    processes = Processes(folder, NAMES)
    try:
        processes.start_all()
        torment(processes, random.Random(seed), blows=blows, seconds=SECONDS)
    finally:
        processes.end()
    require_sound(folder)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_survives_its_processes(tmp_path_factory, seed):
    hold_under_blows(tmp_path_factory.mktemp("p"), seed, blows=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 200))
def test_a_run_survives_its_processes_at_length(tmp_path_factory, seed):
    hold_under_blows(tmp_path_factory.mktemp("p"), seed, blows=8)

"""Mechanisms in whole runs: what is charged, sent and written down."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from methods import ClientView
from platform.errors import ProtocolError, RunStopped
from platform.experiment.comparisons import train_twin
from platform.experiment.finishing import execute
from platform.parties.profile import first_state, noise_of
from platform.parties.totality import train
from platform.protection.charging import rows_that_count
from platform.rounds import attempts
from platform.rounds.loop import Federation
from platform.rounds.observing import SilentObserver
from storage import LedgerRow
from tests.trunk._runs import (
    ADAPTIVE,
    EVERY_RECORD,
    FIXED,
    NO_POOL,
    RECORDS,
    Storage,
    crashed,
    gaussian_epsilon,
    opened,
    warnings_of,
)

ONE_STEP = ("rounds=2", "cohort.dropout_rate=0")
CHEAP = "secure_aggregation.enabled=false"
TWO_RUNS = (*ONE_STEP, *NO_POOL, *FIXED, CHEAP)


def budget(epsilon_: float) -> str:
    return f"privacy.lifetime_budget={epsilon_}"


def test_a_second_run_on_the_same_data_adds_to_the_first(storage, monkeypatch):
    """Room for five rounds: two, then two that must know of these, then one of two."""
    limit, reads = budget(gaussian_epsilon(4.0, 5) + 1e-3), []

    def counted(*arguments: Any) -> list[LedgerRow]:
        reads.append(arguments)
        return rows_that_count(*arguments)

    monkeypatch.setattr(attempts, "rows_that_count", counted)
    runs = [storage.run(*TWO_RUNS, limit) for _ in range(3)]
    assert [len(run.summary["rounds"]) for run in runs] == [2, 2, 1]
    assert any("privacy.lifetime_budget" in w for w in warnings_of(runs[2].summary))
    # Other runs' ledgers are read once in the rounds of each run, as long as they stand still.
    assert len(reads) == 3
    assert storage.rows("SELECT count(DISTINCT pseudonym) FROM ledger") == [(5,)]


def test_a_client_holds_to_its_own_ledger(storage: Storage) -> None:
    """A coordinator that has lost its books asks; no client takes part, none writes a row."""
    given = (*TWO_RUNS, "secure_aggregation.enabled=true", budget(gaussian_epsilon(4.0, 2) + 1e-3))
    storage.run(*given)
    for path in storage.folder.glob("sotto.db*"):
        path.unlink()
    (file,) = (storage.folder / "clients").rglob("*.db")

    def rows() -> list[int]:
        with closing(sqlite3.connect(file)) as connection:
            query = "SELECT count(*) FROM ledger GROUP BY client"
            return [n for (n,) in connection.execute(query)]

    assert rows() == [2] * 5
    with opened(storage.create(*given)) as simulation:
        with pytest.raises(RunStopped, match="round 1"):
            execute(simulation, SilentObserver())
    assert rows() == [2] * 5
    # Nothing left anybody, and the coordinator knows: its reservation is free again.
    assert storage.rows("SELECT DISTINCT status FROM ledger") == [("aborted",)]


FOLLOWING = (*TWO_RUNS, *ADAPTIVE, "rounds=3")


def test_the_norm_follows_the_clients_and_goes_on_in_a_resumed_run(storage, monkeypatch):
    begun = storage.create(*FOLLOWING)
    run_id = crashed(monkeypatch, begun, Federation, "_commit", 2, after=True)
    rounds = storage.resume(run_id).summary["rounds"]
    norms = [document["clipping_norm"] for document in rounds]
    assert norms[0] == 1.0 and len(set(norms)) > 1
    for now, after in pairwise(rounds):
        excess = (1.0 - now["clipped_fraction"]) - 0.5
        expected = now["clipping_norm"] * np.exp(-0.3 * excess)
        assert after["clipping_norm"] == pytest.approx(expected, rel=1e-12)
    for document in rounds:
        assert 0.0 <= document["clipped_fraction"] <= 1.0
        assert 0.0 <= document["signal_to_noise"]["low"] < document["signal_to_noise"]["high"]
    charged = storage.rows(
        "SELECT DISTINCT round_number, clipping_norm, standard_deviation FROM ledger ORDER BY 1"
    )
    for (_, joint, deviation), norm in zip(charged, norms, strict=True):
        assert joint == pytest.approx(norm * np.hypot(1.0, 0.2), rel=1e-12)
        assert deviation == pytest.approx(4.0 * joint, rel=1e-12)


def test_a_norm_is_sent_exactly_where_it_adapts(storage: Storage) -> None:
    with opened(storage.create(*FOLLOWING)) as following:
        assert following.run.terms.protection.at(0.5).clipping_norm == 0.5
        for norm in (None, 0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(ProtocolError, match="norm"):
                following.run.terms.protection.at(norm)
    with opened(storage.create(*NO_POOL, *FIXED)) as fixed:
        assert fixed.run.terms.protection.at(None) is fixed.run.terms.protection
        with pytest.raises(ProtocolError, match="where it adapts"):
            fixed.run.terms.protection.at(1.0)


def experts_of(method) -> tuple[dict, ...]:
    rng = np.random.default_rng(3)
    spec = method.pool_policy().spec
    return tuple(
        {n: rng.normal(0, 0.1, s.shape).astype(np.float32) for n, s in spec.items()}
        for _ in range(2)
    )


@pytest.mark.parametrize("personal", ["joint", "decoupled"])
def test_what_is_released_depends_on_experts_only_when_joint(storage, personal):
    with opened(storage.create(*RECORDS, f"privacy.personal={personal}", *ONE_STEP)) as simulation:
        profile = next(iter(simulation.population.clients.values())).profile
        method = simulation.run.terms.method
        broadcast = method.broadcast(method.init_server(np.random.default_rng(0)))
        results = [
            train(
                profile,
                simulation.population.make_trainer,
                ClientView(broadcast, experts, first_state(profile)),
                round_number=1,
                noise=noise_of(profile, 1),
            )
            for experts in ((), experts_of(method))
        ]
        same = all(np.array_equal(results[0].update[n], results[1].update[n]) for n in broadcast)
        gates = [n for n in results[1].personal if n.startswith("gate.")]
        assert same is (personal == "decoupled")
        assert bool(gates) is (personal == "joint")
        for name in gates:
            before = first_state(profile)[name]
            assert not np.array_equal(results[1].personal[name], before)


def test_decoupled_gates_are_trained_after_the_last_release(storage: Storage) -> None:
    gates = ("privacy.personal=decoupled", "method.decoupled_steps=2", "pool.minimum=2")
    run = storage.run(*EVERY_RECORD, *gates, *ONE_STEP, CHEAP)
    assert run.summary["unit"] == "record"
    assert all(b"gate." in personal for personal, _ in run.personal_parts().values())
    assert storage.rows("SELECT DISTINCT mechanism, channel FROM ledger") == [("dp_sgd", "sum")]


def test_the_local_twin_is_noised_under_dp_sgd(storage: Storage) -> None:
    def twin(deviation: float) -> np.ndarray:
        changed = [f"privacy.noise_multiplier={deviation}"]
        with opened(storage.create(*EVERY_RECORD, *NO_POOL, *changed, *ONE_STEP)) as simulation:
            profile = next(iter(simulation.population.clients.values())).profile
            state = simulation.run.terms.method.init_server(np.random.default_rng(0))
            trained, _ = train_twin(
                profile, simulation.population.make_trainer, state, (1,), final_round=2
            )
            return np.concatenate([np.ravel(trained[n] - state[n]) for n in sorted(trained)])

    quiet, loud = twin(0.5), twin(200.5)
    # Learning rate 0.05 x 200 x 0.5 over a batch of 4, on each coordinate of one step.
    assert np.std(loud - quiet) == pytest.approx(0.05 * 200 * 0.5 / 4, rel=0.3)

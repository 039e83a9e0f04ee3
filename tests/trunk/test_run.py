"""Whole runs in this process: what they report, and that they do it again."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import yaml

from methods import ClientView, Examples
from platform.config import parse_config
from platform.experiment.caveats import caveats_of
from platform.experiment.evaluation import Measured, over_clients
from platform.experiment.finishing import execute
from platform.experiment.simulation import Simulation
from platform.parties.identities import client_names
from platform.rounds.attempts import charges_of, draw_cohort
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import (
    ADVERSARIES,
    EVERY_RECORD,
    FIXED,
    LOST,
    NO_POOL,
    NONE,
    ROUNDS,
    TWINS,
    Finished,
    Storage,
    opened,
    warnings_of,
)


def test_files_of_a_run_say_what_the_run_returned(noised_run: Finished) -> None:
    folder = noised_run.folder
    assert json.loads((folder / "summary.json").read_text()) == noised_run.summary
    assert len(noised_run.summary["rounds"]) == ROUNDS
    for document in noised_run.summary["rounds"]:
        assert (document["cohort"], document["dropped"]) == (5, LOST)
        assert document["bytes_up"] > 0 and document["bytes_down"] > 0
        assert sorted(document["epsilon"]) == sorted(ADVERSARIES)
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in rows] == [1, 2, 3]
    assert float(rows[2]["epsilon_server"]) == noised_run.summary["rounds"][2]["epsilon"]["server"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == noised_run.summary["rounds"]
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    assert parse_config(tree) == noised_run.storage.config(TWINS)
    facts = yaml.safe_load((folder / "effective.yaml").read_text())["environment"]
    assert facts["torch"] and facts["python"] and facts["device"] == "cpu"
    assert not list(folder.glob("*.part"))


def test_nothing_is_promised_without_a_mechanism(plain_run: Finished) -> None:
    summary = plain_run.summary
    for document in (*summary["rounds"], summary["final"]):
        assert document["epsilon"] == dict.fromkeys(ADVERSARIES, "inf")
    assert (summary["unit"], summary["relation"], summary["noise_source"]) == (None, None, None)
    assert "epsilon is infinite" in warnings_of(summary)[0]


def test_a_warning_that_an_earlier_version_stored_without_a_code_is_read() -> None:
    early = ["the run ended before round 2: why", "expert pool: linkable", "delta is large"]
    found = caveats_of({"warnings": early})
    assert [one.code for one in found] == ["ended-early", "expert-pool", "other"]
    assert [one.text for one in found] == early


@pytest.mark.parametrize(("method", "mechanism"), [("coop", "upload_noise"), ("zero_shot", "none")])
def test_method_that_shares_nothing_costs_nothing(storage, method, mechanism):
    overrides = [TWINS, f"method.name={method}", "rounds=1", f"privacy.mechanism={mechanism}"]
    overrides += ["method.context_tokens=2"] if method == "coop" else []
    run = storage.run(*overrides)
    for document in (*run.summary["rounds"], run.summary["final"]):
        assert document["epsilon"] == dict.fromkeys(ADVERSARIES, 0.0)
    assert storage.rows("SELECT * FROM ledger") == []
    assert storage.rows("SELECT * FROM pool") == []
    assert run.summary["gain_over_local"] == pytest.approx(0.0)


def test_masks_change_nothing_about_the_noised_sum(storage: Storage, noised_run: Finished) -> None:
    """Both sum the same quantised vectors, so only the rounding of single precision differs."""
    plain = storage.run("secure_aggregation.enabled=false")
    assert plain.summary["final"]["epsilon"] == noised_run.summary["final"]["epsilon"]
    assert any("aggregation is off" in text for text in warnings_of(plain.summary))
    for name, array in plain.state().items():
        np.testing.assert_allclose(array, noised_run.state()[name], rtol=0, atol=1e-5)


PARTIAL = (
    *(NONE, "task.clients=6", "cohort.size=3", "cohort.dropout_rate=0", "rounds=5"),
    *("secure_aggregation.enabled=false", "pool.generations=3"),
)


def test_partial_participation(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back goes on from its own last part; who comes late starts as first-time."""
    config = storage.config(*PARTIAL)
    cohorts = {n: draw_cohort(config, client_names(6), n) for n in range(1, 6)}
    turns = iter([(n, name) for n, cohort in cohorts.items() for name in cohort])
    last: dict[str, tuple[int, Mapping[str, Any]]] = {}
    pauses, late = 0, 0
    with opened(storage.create(*PARTIAL)) as simulation:
        owner = {id(c.profile.data): name for name, c in simulation.population.clients.items()}
        method = type(simulation.run.terms.method)
        original = method.client_update

        def spy(self: Any, view: ClientView, data: Examples, *rest: Any) -> Any:
            nonlocal pauses, late
            result = original(self, view, data, *rest)
            number, name = next(turns)
            assert owner[id(data)] == name
            before, part = last.get(name, (0, view.personal))
            pauses += 0 < before < number - 1
            late += before == 0 and number > 2
            assert view.personal.keys() == part.keys()
            assert all(np.array_equal(view.personal[key], part[key]) for key in part)
            # Three entries a round live for three; at least 2(K+1) = 4 are needed.
            live = range(max(1, number - 3), number)
            mine = any(name in cohorts[n] for n in live)
            assert len(view.experts) == int(mine and len(live) > 1)
            assert not before or any(
                not np.array_equal(result.personal[key], part[key]) for key in part
            )
            last[name] = number, dict(result.personal)
            return result

        monkeypatch.setattr(method, "client_update", spy)
        # The twins train through the same method, and are not what is watched here.
        twins = Measured("client_mean", {"local": over_clients([(0, 1)] * 6)})
        monkeypatch.setattr("platform.experiment.finishing.measure_twins", lambda *_: twins)
        summary = execute(simulation, SilentObserver())
        for name, (_, part) in last.items():
            client = simulation.population.clients[name]
            kept = client.state(simulation.run.terms.final_attempt).personal
            assert all(np.array_equal(kept[key], part[key]) for key in part)
        # Whoever was not in the last round is told of it all the same.
        with simulation.database.unit_of_work(read_only=True) as uow:
            for name in simulation.run.roll.pseudonyms.values():
                (charged,) = charges_of(uow, name, datetime.now(UTC)).runs.values()
                assert charged.newest == (5, 1)
    assert next(turns, None) is None and pauses and late
    assert all(len(d["accuracy"]["per_client"]) == 6 for d in summary["rounds"])
    assert storage.rows("SELECT DISTINCT generation FROM pool ORDER BY 1") == [(3,), (4,), (5,)]


WILD = "training={local_steps: 8, batch_size: 4, learning_rate: 1000.0, weight_decay: 1000.0}"
"""Each step multiplies weights by a million, until they overflow."""
MODULES = (
    "method={name: pm_moe, base: fedper, gate_rounds: 1, "
    "base_options: {network: cnn, image_size: 16, channels: [2, 3], feature_width: 8}}",
    "task={dataset: digits, clients: 4, shots: 3, model: null, new_clients: 1}",
    "secure_aggregation={enabled: true, threshold: 3}",
    "privacy.mechanism=upload_noise",
    *("rounds=2", "cohort.dropout_rate=0", "privacy.noise_source=os", WILD),
    *FIXED,
)


def failures(simulation: Simulation) -> dict[str, list[tuple[int, int]]]:
    return {
        name: [(f.round_number, f.attempt) for f in client._store.failures(simulation.run_id)]
        for name, client in simulation.population.clients.items()
    }


@pytest.mark.slow
def test_modules_that_diverge_stop_nobody(storage: Storage):
    with opened(storage.create(*MODULES)) as simulation:
        summary = execute(simulation, SilentObserver())
        kept = failures(simulation)
        clients = simulation.population.clients.values()
        charged = [len(client._store.rows(simulation.run_id)) for client in clients]
    assert [entry["round"] for entry in summary["rounds"]] == [1, 2, 3]
    # What the second starts from is noise, from which a network may happen to learn nothing at all.
    assert all((1, 1) in entries for entries in kept.values())
    # Two sums and one entry, as for clients that learnt something.
    assert charged == [3] * 4
    for file in (storage.file, *(storage.folder / simulation.run_id).glob("*.*")):
        assert b"NonFinite" not in file.read_bytes()


def test_noised_steps_that_overflow_stop_nobody(storage: Storage):
    """Under `dp_sgd` the result of noised steps tells no more than they do."""
    alone = (*NO_POOL, "rounds=1", "cohort.dropout_rate=0")
    with opened(storage.create(*EVERY_RECORD, WILD, *alone)) as simulation:
        summary = execute(simulation, SilentObserver())
        kept = failures(simulation)
    assert len(summary["rounds"]) == 1
    assert all((1, 1) in entries for entries in kept.values())

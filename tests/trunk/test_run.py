"""Whole runs in this process: what they report, and that they do it again."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import yaml

from methods import ClientView, Examples, Registry
from platform.config import parse_config
from platform.experiment.evaluation import Measured, over_clients
from platform.experiment.finishing import execute
from platform.parties.identities import client_names
from platform.rounds.attempts import draw_cohort
from platform.rounds.observing import SilentObserver
from tests.trunk._runs import (
    ADVERSARIES,
    LOST,
    NONE,
    ROUNDS,
    Finished,
    Storage,
    comparable,
    opened,
)

SUMMARY_KEYS = [
    *(
        "schema_version",
        "run_id",
        "phase_two_of",
        "config",
        "method",
        "dataset",
        "unit",
        "mechanism",
    ),
    *("relation", "sampling", "subspace", "noise_distribution", "noise_source", "delta"),
    *("accountant", "accountants", "rounds", "stopping", "final"),
    *(
        "local",
        "gain_over_local",
        "worth_of_sharing",
        "silent",
        "phases",
        "best_on_validation",
        "evaluation",
        "training",
        "warnings",
    ),
    "audit_head",
]
ROUND_KEYS = [
    *("round", "phase", "cohort", "dropped", "accuracy", "validation", "released_validation"),
    *("epsilon", "bytes_up", "bytes_down", "seconds", "clipping_norm"),
    *("clipped_fraction", "signal_to_noise", "groups"),
]
FINAL_KEYS = [*ROUND_KEYS, "protocol", "new_clients", "expert_weights"]


@pytest.mark.parametrize("which", ["plain_run", "noised_run"])
def test_summary_has_the_issues_keys(which: str, request: pytest.FixtureRequest) -> None:
    run: Finished = request.getfixturevalue(which)
    summary = run.summary
    assert list(summary) == SUMMARY_KEYS
    assert [list(r) for r in summary["rounds"]] == [ROUND_KEYS] * ROUNDS
    assert list(summary["final"]) == FINAL_KEYS
    assert list(summary["local"]) == ["accuracy", "protocol"]
    assert summary["schema_version"] == 1 and summary["config"] == "small"
    for document in summary["rounds"]:
        assert sorted(document["accuracy"]) == ["mean", "per_client", "std", "weighted", "worst"]
        assert sorted(document["epsilon"]) == sorted(ADVERSARIES)
        assert (document["cohort"], document["dropped"]) == (5, LOST)
        assert document["bytes_up"] > 0 and document["bytes_down"] > 0


def test_accuracies_are_consistent_with_one_another(plain_run: Finished) -> None:
    for document in (*plain_run.summary["rounds"], plain_run.summary["final"]):
        accuracy = document["accuracy"]
        values = accuracy["per_client"]
        assert len(values) == 5 and all(0.0 <= v <= 1.0 for v in values)
        # 24 test images a client: four classes of six.
        assert all(v * 24 == pytest.approx(round(v * 24)) for v in values)
        assert accuracy["mean"] == pytest.approx(sum(values) / 5)
        # All hold as many test images, so the weights are even.
        assert accuracy["weighted"] == pytest.approx(accuracy["mean"])
        assert accuracy["worst"] == min(values)
        assert accuracy["std"] == pytest.approx(float(np.std(values)))


def test_files_of_a_run_say_what_the_run_returned(noised_run: Finished) -> None:
    folder = noised_run.folder
    assert json.loads((folder / "summary.json").read_text()) == noised_run.summary
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in rows] == [1, 2, 3]
    assert float(rows[2]["epsilon_server"]) == noised_run.summary["rounds"][2]["epsilon"]["server"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == noised_run.summary["rounds"]
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    assert parse_config(tree) == noised_run.storage.config()
    facts = yaml.safe_load((folder / "effective.yaml").read_text())["environment"]
    assert facts["torch"] and facts["python"] and facts["device"] == "cpu"
    assert not list(folder.glob("*.part"))


def test_nothing_is_promised_without_a_mechanism(plain_run: Finished) -> None:
    summary = plain_run.summary
    for document in (*summary["rounds"], summary["final"]):
        assert document["epsilon"] == dict.fromkeys(ADVERSARIES, "inf")
    assert (summary["unit"], summary["relation"], summary["noise_source"]) == (None, None, None)
    assert "epsilon is infinite" in summary["warnings"][0]


@pytest.mark.parametrize("method", ["coop", "zero_shot"])
@pytest.mark.parametrize("mechanism", ["none", "upload_noise"])
def test_method_that_shares_nothing_costs_nothing(
    storage: Storage, method: str, mechanism: str
) -> None:
    overrides = [f"method.name={method}", "rounds=1", f"privacy.mechanism={mechanism}"]
    overrides += ["method.context_tokens=2"] if method == "coop" else []
    run = storage.run(*overrides)
    for document in (*run.summary["rounds"], run.summary["final"]):
        assert document["epsilon"] == dict.fromkeys(ADVERSARIES, 0.0)
    assert storage.rows("SELECT * FROM ledger") == []
    assert storage.rows("SELECT * FROM pool") == []
    assert run.summary["gain_over_local"] == pytest.approx(0.0)


def test_same_seed_gives_the_same_run(storage: Storage, plain_run: Finished) -> None:
    again = storage.run(NONE)
    assert comparable(again.summary) == comparable(plain_run.summary)
    assert again.run_id != plain_run.run_id
    assert again.state().keys() == plain_run.state().keys()
    for name, array in plain_run.state().items():
        np.testing.assert_array_equal(array, again.state()[name])


def test_same_seed_gives_the_same_noise_where_it_is_seeded(
    storage: Storage, noised_run: Finished
) -> None:
    again = storage.run()
    assert comparable(again.summary) == comparable(noised_run.summary)
    for name, array in noised_run.state().items():
        np.testing.assert_array_equal(array, again.state()[name])


def test_noise_of_the_operating_system_is_fresh(storage: Storage, noised_run: Finished) -> None:
    runs = [storage.run("privacy.noise_source=os", "rounds=1") for _ in range(2)]
    first, second = (run.state() for run in runs)
    assert all(not np.array_equal(first[name], second[name]) for name in first)
    assert runs[0].summary["noise_source"] == "os"


def test_another_seed_gives_another_run(storage: Storage, plain_run: Finished) -> None:
    other = storage.run(NONE, "seed=4", "rounds=1")
    states = [next(iter(run.state().values())) for run in (other, plain_run)]
    assert not np.array_equal(*states)
    assert comparable(other.summary)["rounds"][0] != comparable(plain_run.summary)["rounds"][0]


SMALL = ["method.network=features", "method.feature_width=8"]
CNN = ["method.network=cnn", "method.image_size=16", "method.channels=[2, 3]"]
CHANGES = {
    "lg_fedavg": SMALL,
    "scaffold": SMALL,
    "fedgen": [*SMALL, "method.ensemble=mean"],
    "fedgh": [*SMALL, "method.prototypes=mean"],
    "fedproto": SMALL,
    "feddistill": SMALL,
    "fedpcl": SMALL,
    "pm_moe": ["method.base_options.network=features", "method.gate_rounds=1"],
    "ccst": [*CNN, "method.space=pixels"],
    "elcfs": CNN,
    "stablefdg": CNN,
    "dp_fpl": ["method.context_tokens=2", "method.rank=2"],
    "fedtpg": [],
    "fedclip": ["privacy.per_sample_clipping_norm=null"],
    "fedcocoop": [],
    "fedmaple": [],
    "pfedmoap": ["method.context_tokens=2", "method.experts=1"],
}
"""What a method takes in place of a short prompt."""


def sharing_methods() -> list[str]:
    """Methods that share something and read the aggregate only.

    Of those on small networks only some: the contract suite masks a round of each.
    """
    others = {"coop", "zero_shot", "prompt_fedamp", "pfedpg", "swad", "doprompt", "hcvp"}
    others |= {"fedavg", "fedprox", "moon", "ditto", "fed_syn_moe", "fedper", "fedrep", "fedrod"}
    others |= {"fedbabu", "gpfl", "fedcp", "dbe", "fedsr", "feddg_ga", "fedadg"}
    names = [name for name in Registry().available() if name not in others]
    assert {"promptfl", "pfedmoap"} <= set(names)
    return names


QUICK = {"promptfl", "pfedmoap", "scaffold", "fedgen", "pm_moe"}
"""A prompt, one with experts, and networks: what a sum carries beside is the contract suite's."""


@pytest.mark.parametrize(
    "method",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in sharing_methods()
    ],
)
def test_masked_sum_is_the_plain_sum_up_to_quantisation(storage: Storage, method: str) -> None:
    # Six clients own 4, 4, 3, 3, 3 and 3 classes, so the weights differ.
    overrides = [NONE, f"method.name={method}", "rounds=1", "task.clients=6"]
    overrides += CHANGES.get(method, ["method.context_tokens=2"])
    masked = storage.run(*overrides)
    plain = storage.run(*overrides, "secure_aggregation.enabled=false")
    assert masked.survivors() == plain.survivors()
    step = 2 * 8.0 / (2**20 - 1)
    plain_state = plain.state()
    for name, array in masked.state().items():
        # A mean over weights: one step at most, plus what single precision rounds. FedGen's server
        # trains the generator on the means, and its optimiser enlarges small differences.
        # A table's rows are divided by means of flags, a sixth or more, and were sent over the root
        # of their width, 20 at most.
        steps = {"generator": 8, "table": 64}.get(name.split(".")[0], 1)
        np.testing.assert_allclose(array, plain_state[name], rtol=0, atol=steps * step + 1e-6)
    assert any(not np.array_equal(a, plain_state[n]) for n, a in masked.state().items())
    image = 1 / 18
    for left, right in zip(
        masked.summary["final"]["accuracy"]["per_client"],
        plain.summary["final"]["accuracy"]["per_client"],
        strict=True,
    ):
        assert abs(left - right) <= 2 * image


def test_masks_change_nothing_about_the_noised_sum(storage: Storage, noised_run: Finished) -> None:
    """Both sum the same quantised vectors, so only the rounding of single precision differs."""
    plain = storage.run("secure_aggregation.enabled=false")
    assert plain.summary["final"]["epsilon"] == noised_run.summary["final"]["epsilon"]
    for name, array in plain.state().items():
        np.testing.assert_allclose(array, noised_run.state()[name], rtol=0, atol=1e-5)


def test_run_without_secure_aggregation_says_so(storage: Storage) -> None:
    run = storage.run(NONE, "secure_aggregation.enabled=false", "rounds=2")
    assert any("secure aggregation is off" in text for text in run.summary["warnings"])
    assert len(storage.rows("SELECT * FROM pool")) == 4


PARTIAL = (
    *(NONE, "task.clients=6", "cohort.size=3", "cohort.dropout_rate=0", "rounds=5"),
    *("secure_aggregation.threshold=2", "pool.generations=3"),
)


def partial_cohorts(storage: Storage) -> dict[int, tuple[str, ...]]:
    config = storage.config(*PARTIAL)
    return {n: draw_cohort(config, client_names(6), n) for n in range(1, 6)}


def test_partial_participation(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes back goes on from its own last part; who comes late starts as first-time."""
    cohorts = partial_cohorts(storage)
    with opened(storage.create(*PARTIAL)) as simulation:
        owner = {id(c.profile.data): name for name, c in simulation.population.clients.items()}
        given: dict[tuple[int, str], Mapping[str, Any]] = {}
        made: dict[tuple[int, str], Mapping[str, Any]] = {}
        served: dict[tuple[int, str], int] = {}
        method = type(simulation.run.terms.method)
        original = method.client_update
        turns = iter([(n, name) for n, cohort in cohorts.items() for name in cohort])

        def spy(self: Any, view: ClientView, data: Examples, *rest: Any) -> Any:
            result = original(self, view, data, *rest)
            key = next(turns)
            assert owner[id(data)] == key[1]
            given[key], made[key] = dict(view.personal), dict(result.personal)
            served[key] = len(view.experts)
            return result

        monkeypatch.setattr(method, "client_update", spy)
        # The twins train through the same method, and are not what is watched here.
        twins = Measured("client_mean", {"local": over_clients([(0, 1)] * 6)})
        monkeypatch.setattr("platform.experiment.finishing.measure_twins", lambda *_: twins)
        summary = execute(simulation, SilentObserver())
        kept = {
            name: client.state(simulation.run.terms.final_attempt).personal
            for name, client in simulation.population.clients.items()
        }
    assert_last_parts_are_kept(kept, made)
    assert set(given) == {(n, c) for n, cohort in cohorts.items() for c in cohort}
    assert_personal_parts_follow(given, made)
    assert_experts_only_with_a_live_entry(cohorts, served)
    for document in summary["rounds"]:
        assert len(document["accuracy"]["per_client"]) == 6
    generations = {row[0] for row in storage.rows("SELECT generation FROM pool")}
    assert generations == {3, 4, 5}


def assert_last_parts_are_kept(
    kept: Mapping[str, Mapping[str, Any]], made: Mapping[tuple[int, str], Mapping[str, Any]]
) -> None:
    """This method's `personalise` changes nothing, so the last round's part is the final one."""
    for name, arrays in kept.items():
        rounds = [number for number, other in made if other == name]
        if rounds:
            last = made[max(rounds), name]
            assert arrays.keys() == last.keys()
            assert all(np.array_equal(array, last[key]) for key, array in arrays.items())


def assert_personal_parts_follow(
    given: Mapping[tuple[int, str], Mapping[str, Any]],
    made: Mapping[tuple[int, str], Mapping[str, Any]],
) -> None:
    gaps = 0
    for number, name in given:
        before = [n for n, other in made if other == name and n < number]
        if not before:
            continue
        last = max(before)
        gaps += number - last > 1
        assert given[number, name].keys() == made[last, name].keys()
        for key, array in made[last, name].items():
            np.testing.assert_array_equal(given[number, name][key], array)
        # Else the comparison above would hold for a part that never changes.
        assert any(
            not np.array_equal(a, made[number, name][k]) for k, a in made[last, name].items()
        )
    assert gaps, "no client came back after a pause; choose another seed"


def assert_experts_only_with_a_live_entry(
    cohorts: Mapping[int, tuple[str, ...]], served: Mapping[tuple[int, str], int]
) -> None:
    late = 0
    for (number, name), count in served.items():
        live = range(max(1, number - 3), number)
        mine = any(name in cohorts[n] for n in live)
        late += number > 2 and not any(name in cohorts[n] for n in range(1, number))
        # Three entries a round; at least 2(K+1) = 4 are needed, so none before round 3.
        assert count == (1 if mine and 3 * len(live) >= 4 else 0), (number, name)
    assert late, "no client came for the first time after round 2; choose another seed"


def test_clients_that_never_took_part_are_measured(storage: Storage) -> None:
    run = storage.run(
        *(NONE, "task.clients=6", "cohort.size=2", "cohort.dropout_rate=0", "rounds=1"),
        *("secure_aggregation.threshold=2", "pool.minimum=2"),
    )
    accuracy = run.summary["final"]["accuracy"]
    assert len(accuracy["per_client"]) == 6 and math.isfinite(accuracy["mean"])
    assert run.summary["rounds"][0]["cohort"] == 2


def test_evaluation_every_second_round(storage: Storage) -> None:
    run = storage.run(NONE, "evaluation.every=2", "rounds=3")
    means = [r["accuracy"]["mean"] for r in run.summary["rounds"]]
    assert means[0] is None and None not in means[1:]
    assert run.summary["rounds"][0]["accuracy"]["per_client"] is None

"""Private experts in whole runs: what is summed, charged and said, and who learns of a choice."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from methods import ClientView, LocalResult, Visibility
from methods.interface.groups import CHOICE, InGroups
from platform.errors import ConfigError, ProtocolError
from platform.experiment.finishing import execute
from platform.experiment.privacy_auditing.audit import AuditPlan, audit_failing
from platform.parties import totality
from platform.parties.client import Client
from platform.parties.profile import as_sent, expectations_of, require_broadcast
from platform.protection.sums import SumProtection
from platform.rounds.observing import SilentObserver
from platform.wire.codec import decode_arrays
from privacy import GroupCounts
from tests.trunk._audits import NOISE, audited
from tests.trunk._runs import (
    NO_POOL,
    RECORDS,
    Storage,
    comparable,
    crashed,
    gaussian_epsilon,
    opened,
    warnings_of,
)

K, WIDTH = 2, 256
POOL = f"pool={{kind: groups, experts: {K}}}"
GROUPED = (*NO_POOL, POOL, "rounds=2")
CENTRAL, DISTRIBUTED = "privacy.mechanism=central_noise", "privacy.mechanism=distributed_noise"
BARE = "privacy={mechanism: none}"
STEP = {0: 0.03, 1: -0.01}


def force(monkeypatch, groups: dict[int, int], *, failing=None, number: int = K) -> None:
    """Clients, by their place in order, train nothing and are in these groups."""

    def train(profile, make_trainer, view, *, round_number, noise):
        place = int(profile.name.rpartition("-")[2]) % 5
        if place == failing:
            raise FloatingPointError
        group = groups[place]
        update = np.zeros((number, 2, WIDTH // 2), np.float32)
        update[group] = STEP[group]
        personal = {CHOICE: np.array(group, np.int64)}
        return LocalResult({"context": update}, None, personal, group=group)

    monkeypatch.setattr(totality, "train", train)
    # Else accuracies, which a simulation looks at, would differ with the choice.
    original = InGroups._view
    monkeypatch.setattr(InGroups, "_view", lambda self, view, choice: original(self, view, 0))


FORCED = {0: 0, 1: 1, 2: 0, 3: 0, 4: 1}
SWAPPED = {0: 1, 1: 0, 2: 0, 3: 0, 4: 1}


def test_counts_are_free_where_a_client_is_replaced_and_paid_for_where_it_comes_or_goes(storage):
    noise = (CENTRAL, "privacy.target_epsilon=null", "privacy.noise_multiplier=4.0")
    done = storage.run(*GROUPED, *noise)
    spent = done.summary["final"]["epsilon"]["observer"]
    assert spent == pytest.approx(gaussian_epsilon(4.0, 2), rel=1e-3)
    paid = storage.run(*GROUPED, *noise, "privacy.relation=add_or_remove_one", "rounds=1").summary
    expected = gaussian_epsilon(2 * 4.0 / math.hypot(1.0, 0.25), 1)
    assert paid["final"]["epsilon"]["observer"] == pytest.approx(expected, rel=1e-3)
    for entry in (document["groups"] for document in done.summary["rounds"]):
        assert len(entry["counts"]) == K and entry["floor"] == pytest.approx(max(1.0, entry["std"]))
        assert entry["kept"] == [k for k in range(K) if entry["counts"][k] < entry["floor"]]
    query = "SELECT clipping_norm FROM ledger WHERE run_id = ?"
    norms = {norm for (norm,) in storage.rows(query, done.run_id)}
    assert 1.0 < min(norms) and max(norms) < 1.001
    assert any("private experts:" in words for words in warnings_of(done.summary))


@pytest.mark.slow
def test_the_noise_is_calibrated_for_counts_too(storage: Storage):
    comes = ("privacy.relation=add_or_remove_one", "privacy.target_epsilon=8.0")
    done = storage.run(*GROUPED, DISTRIBUTED, *comes)
    assert 7.9 < done.summary["final"]["epsilon"]["observer"] <= 8.0


def test_masked_sums_give_each_group_its_own_mean(storage: Storage, monkeypatch):
    force(monkeypatch, FORCED)
    simulation = storage.create(*GROUPED, BARE, "rounds=1")
    done = storage.finish(simulation)
    moved = done.state()["context"] - simulation.run.terms.initial_state()["context"]
    for group, step in STEP.items():
        np.testing.assert_allclose(moved[group], step, atol=2e-5)
    shown = {"kept": [], "copied": [], "counts": None, "std": None, "floor": 1.0}
    assert done.summary["rounds"][0]["groups"] == shown


def test_a_crowded_experts_copy_takes_the_place_of_one_that_nobody_picks(storage, monkeypatch):
    force(monkeypatch, dict.fromkeys(range(5), 0), number=3)
    split = "pool={kind: groups, experts: 3, empty: split}"
    simulation = storage.create(*GROUPED, BARE, split, "rounds=1")
    before = simulation.run.terms.initial_state()["context"]
    done = storage.finish(simulation)
    state = done.state()["context"]
    # Five clients are more than twice 5 / 3, and the half that is left is not.
    assert np.linalg.norm(state[1] - state[0]) == pytest.approx(0.03 * math.sqrt(WIDTH), rel=1e-3)
    assert state[2].tobytes() == before[2].tobytes()
    entry = done.summary["rounds"][0]["groups"]
    assert (entry["kept"], entry["copied"]) == ([2], [[1, 0]])
    assert any("in 1 of 1 rounds" in words for words in warnings_of(done.summary))


def test_a_failed_client_is_counted_nowhere(storage: Storage, monkeypatch):
    force(monkeypatch, FORCED, failing=1)
    quiet = ("privacy.target_epsilon=null", "privacy.noise_multiplier=0.001")
    done = storage.run(*GROUPED, CENTRAL, *quiet, "cohort.dropout_rate=0.0", "rounds=1")
    entry = done.summary["rounds"][0]["groups"]
    assert entry["counts"] == pytest.approx([3, 1], abs=0.01)


def settled(storage: Storage) -> str:
    """What rounds left behind at the coordinator, but for times and what is drawn anew each run."""
    found = []
    for (text,) in storage.rows("SELECT document FROM rounds ORDER BY round_number"):
        document = json.loads(text)
        found.append({n: v for n, v in document.items() if "seconds" not in n})
    states = [blob.hex() for (blob,) in storage.rows("SELECT blob FROM states ORDER BY rowid")]
    return json.dumps([found, states], sort_keys=True)


def test_whoever_holds_the_coordinators_disk_cannot_tell_two_clients_choices_apart(
    tmp_path, monkeypatch, caplog
):
    """Two worlds in which two clients have changed places leave the same behind."""
    caplog.set_level(logging.DEBUG)
    left, personal = {}, {}
    for name, groups in {"one": FORCED, "other": SWAPPED}.items():
        (tmp_path / name).mkdir()
        storage = Storage(tmp_path / name)
        with monkeypatch.context() as patched:
            force(patched, groups)
            patched.setattr(InGroups, "personalise", lambda self, view, *rest: view.personal)
            done = storage.run(*GROUPED, BARE)
        left[name] = settled(storage)
        parts = done.personal_parts().values()
        personal[name] = [int(decode_arrays(own)[CHOICE]) for own, _ in parts]
        clients = done.folder / "clients"
        for file in storage.folder.rglob("*"):
            if file.is_file() and clients not in file.parents:
                assert CHOICE.encode() not in file.read_bytes(), file
        assert "choice" not in json.dumps(done.summary)
        with closing(sqlite3.connect(storage.file)) as connection:
            assert "choice" not in "\n".join(connection.iterdump())
    assert left["one"] == left["other"]
    # The stores of the clients do tell, so there was something to find.
    assert personal["one"] != personal["other"]
    assert "choice" not in caplog.text


@pytest.mark.slow
def test_a_client_that_dies_between_picking_and_sending_picks_the_same(storage, monkeypatch):
    whole = storage.run(*GROUPED, DISTRIBUTED)
    original, picked = InGroups.best_for, []

    def watching(self, view, data):
        choice = original(self, view, data)
        place = (view.broadcast["context"].tobytes(), data.arrays["features"].tobytes())
        picked.append((place, choice))
        return choice

    monkeypatch.setattr(InGroups, "best_for", watching)
    simulation = storage.create(*GROUPED, DISTRIBUTED)
    run_id = crashed(monkeypatch, simulation, Client, "_upload", 6)
    died = picked[-1]
    resumed = storage.resume(run_id)
    again = [choice for place, choice in picked[len(picked) - 1 :: -1] if place == died[0]]
    assert len(again) >= 2 and set(again) == {died[1]}
    assert comparable(resumed.summary) == comparable(whole.summary)


def test_a_hostile_expert_moves_nothing_and_tells_nobody_apart(storage: Storage, monkeypatch):
    work, carry, carried = totality.work, SumProtection.carry, []

    def hostile(local):
        context = np.array(local.broadcast["context"])
        context[1, 0, 0] = np.nan
        return totality.LocalRound(**{**vars(local), "broadcast": {"context": context}})

    def watching(self, vector, *noise):
        carried.append(vector)
        return carry(self, vector, *noise)

    monkeypatch.setattr(SumProtection, "carry", watching)
    working = lambda local, remember: work(hostile(local), remember)  # noqa: E731
    monkeypatch.setattr("platform.parties.client.work", working)
    storage.run(*GROUPED, CENTRAL, "rounds=1")
    sent = [vector for vector in carried if not vector.any()]
    # A failed client trains once more, on its own ground, and throws that away.
    assert len(sent) >= 4 and all(vector.shape == (K * WIDTH + K,) for vector in carried)


CHEATS = (
    lambda update, group: (np.ones_like(update), group),
    lambda update, group: (update, 1 - group),
    lambda update, group: (update, None),
    lambda update, group: (update, K),
)


def test_an_update_outside_its_block_never_leaves(storage: Storage, monkeypatch):
    """Counts are free only where a client is in one block; the platform does not take its word."""
    original, cheats = InGroups.client_update, {}

    def cheating(self, view, data, *others):
        result = original(self, view, data, *others)
        # Each client has a way of its own; a failed one trains again.
        cheat = cheats.setdefault(data.arrays["features"].tobytes(), CHEATS[len(cheats) % 4])
        update, group = cheat(result.update["context"], result.group)
        return LocalResult({"context": update}, None, result.personal, group=group)

    monkeypatch.setattr(InGroups, "client_update", cheating)
    overrides = (*GROUPED, CENTRAL, "rounds=1", "cohort.dropout_rate=0.0")
    with opened(storage.create(*overrides)) as simulation:
        execute(simulation, SilentObserver())
        clients = simulation.population.clients.values()
        failures = [client._store.failures(simulation.run_id) for client in clients]
    assert len(cheats) == sum(map(bool, failures)) == 5


def test_a_client_refuses_another_number_of_experts(storage: Storage):
    with opened(storage.create(*GROUPED, DISTRIBUTED)) as simulation:
        expected = expectations_of(simulation.run.terms.method)
    require_broadcast(expected, {"context": np.zeros((K, 2, WIDTH // 2), np.float32)})
    for experts in (K - 1, K + 1):
        told = np.zeros((experts, 2, WIDTH // 2), np.float32)
        with pytest.raises(ProtocolError, match="not those of"):
            require_broadcast(expected, {"context": told})


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [CENTRAL, DISTRIBUTED])
def test_the_audit_refutes_nothing_for_neighbours_in_one_group_and_in_two(storage, mechanism):
    run = storage.plan(*GROUPED, *NOISE, mechanism)
    found = audited(run)
    assert [one.channel for one in found] == ["sum", "sum, two groups"]
    assert all(one.passed and one.result.is_tight for one in found)
    assert audit_failing(AuditPlan(run, 300)).passed


def test_the_audit_finds_counts_that_are_not_paid_for(storage: Storage, monkeypatch):
    """A count of three times C would be free in the ledger, and is not for two groups."""
    monkeypatch.setattr(GroupCounts, "bound", lambda self, norm: 3.0 * norm)
    monkeypatch.setattr(GroupCounts, "charged_norm", lambda self, norm, count, relation: norm)
    noise = ("privacy.target_epsilon=null", "privacy.noise_multiplier=1.0")
    found = audited(storage.plan(*GROUPED, *noise, CENTRAL), 200)
    assert found[0].passed and not found[1].passed


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("pool={kind: groups}",), r"pool\.experts: is needed"),
        (("pool={kind: groups, experts: 6}",), r"pool\.experts: 6 "),
        ((POOL, "pool.noise=independent"), r"pool\.noise: independent"),
        (
            (*GROUPED, CENTRAL, "secure_aggregation.enabled=false"),
            r"secure_aggregation\.enabled: false",
        ),
        ((*GROUPED, "privacy.mechanism=upload_noise"), r"privacy\.mechanism: upload_noise"),
        ((*GROUPED, *RECORDS), r"privacy\.mechanism: dp_sgd"),
        ((*GROUPED, BARE, "pool.count_ratio=0.5"), r"pool\.count_ratio: 0\.5"),
        ((*GROUPED, CENTRAL, "method={name: fedpgp}"), r"pool\.kind: groups is for"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(storage: Storage, overrides, said):
    with pytest.raises(ConfigError, match=said):
        storage.create(*overrides)
    assert not storage.file.exists()


def test_a_broadcast_for_one_client_is_not_common():
    view = ClientView({"context": np.zeros((2, 4), np.float32)}, own=3)
    for visibility, common in (("aggregate_only", True), ("per_client", False)):
        profile = SimpleNamespace(method=SimpleNamespace(visibility=Visibility(visibility)))
        sent = as_sent(profile, view)
        assert sent.is_common is common
        assert (sent.broadcast, sent.own) == (view.broadcast, 3)
    assert not view.is_common

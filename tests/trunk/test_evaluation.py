"""Accuracy by hand, each client with its own personal part and its own images."""

from __future__ import annotations

import math

import numpy as np
import pytest

from methods import ClientView, Examples, PoolPolicy, TensorSpec
from platform.experiment.evaluation import (
    accuracy_document,
    harmonic_mean,
    mean_over_clients,
    measured,
    over_clients,
)
from platform.parties.scoring import (
    CommonScores,
    EvaluationSet,
    MeasuredSets,
    accuracy,
    mean_weights,
    ranked_means,
)


class Lookup:
    """Predicts the columns of `batch`, shifted by the personal part and the broadcast."""

    def predict(self, view, batch, classes):
        assert set(batch) == {"features"}, "labels are not for predicting"
        shift = int(view.broadcast["shift"]) + int(view.personal["shift"]) + len(view.experts)
        return np.roll(batch["features"], shift, axis=1)[:, : len(classes)]


def one_hot(*columns: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[list(columns)]


TEST = Examples({"features": one_hot(0, 1, 2, 0), "labels": np.array([0, 1, 2, 2])})


def number(value: int) -> dict[str, np.ndarray]:
    return {"shift": np.array(value)}


def test_a_summary_by_hand():
    """0.5 of 10, 1.0 of 30: mean 0.75, weighted 35/40, deviation 0.25, worst 0.5."""
    summary = over_clients([(5, 10), (30, 30)])
    assert (summary.mean, summary.weighted, summary.std) == (0.75, 0.875, 0.25)
    assert (summary.worst, summary.per_client) == (0.5, (0.5, 1.0))
    assert over_clients([(0, 2), (1, 2), (2, 2)]).std == pytest.approx(math.sqrt(1 / 6))
    assert set(accuracy_document(None).values()) == {None}


class Scripted:
    """Says of each image what column k of `answers` does, for a client of kind k."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, tuple[str, ...]]] = []

    def predict(self, view, batch, classes):
        kind = int(view.personal["kind"])
        said = batch["answers"][:, kind]
        self.calls.append((kind, len(said), tuple(classes)))
        return np.eye(len(classes), dtype=np.float32)[said]


def answered(labels: list[int], *said: list[int]) -> Examples:
    return Examples({"answers": np.array(said).T, "labels": np.array(labels)})


def measure(method, protocol, common, *, tests):
    shared, tallies = CommonScores(), []
    for kind, own in enumerate(OWN.values()):
        sets = MeasuredSets({"local": EvaluationSet(own, BASE)}, common, shared)
        view = ClientView({}, (), {"kind": np.array(kind)})
        tallies.append({name: sets.tally(method, view, name) for name in tests})
    return measured(protocol, tests, tallies)


BASE, NOVEL = ("a", "b", "c"), ("d", "e")
OWN = {
    "c0": answered([0, 0], [0, 0], [1, 1]),
    "c1": answered([1, 2, 2, 2], [0, 0, 0, 0], [1, 2, 2, 0]),
}


def test_base_to_novel_by_hand():
    """Own 1 and 3/4; base 2/4 and 3/4; novel 1/2 and 0: means 7/8, 5/8 and 1/4."""
    common = {
        "base": EvaluationSet(answered([0, 1, 2, 0], [0, 1, 0, 1], [0, 1, 2, 1]), BASE),
        "novel": EvaluationSet(answered([0, 1], [0, 0], [1, 0]), NOVEL),
    }
    method = Scripted()
    found = measure(method, "base_to_novel", common, tests=("local", "base", "novel"))
    assert found.local.per_client == (1.0, 0.75)
    assert found.local.weighted == pytest.approx(5 / 6)
    harmonic = 3 / (8 / 7 + 8 / 5 + 4)
    assert found.document() == {
        **{"name": "base_to_novel", "local": 0.875, "base": 0.625, "novel": 0.25},
        "harmonic_mean": pytest.approx(harmonic),
    }
    assert found.headline == pytest.approx(harmonic)
    # Own and base images are told apart among the base classes, novel ones among the novel.
    expected = [(2, BASE), (4, BASE), (2, NOVEL), (4, BASE), (4, BASE), (2, NOVEL)]
    assert [(rows, classes) for _, rows, classes in method.calls] == expected


def test_leave_one_domain_out_by_hand():
    """On the target 3/4 and 1/4: mean 1/2, deviation 1/4, worst 1/4; own domains 1 and 3/4."""
    target = EvaluationSet(answered([0, 1, 2, 0], [0, 1, 2, 1], [0, 0, 0, 1]), BASE)
    protocol, tests = "leave_one_domain_out", ("local", "target")
    found = measure(Scripted(), protocol, {"target": target}, tests=tests)
    assert found.document() == {
        **{"name": "leave_one_domain_out", "local": 0.875},
        "target": {
            **{"mean": 0.5, "weighted": 0.5, "std": 0.25, "worst": 0.25},
            "per_client": [0.75, 0.25],
        },
    }
    assert found.headline == 0.5


def test_the_harmonic_mean_of_the_paper():
    """FedPGP, table 1, OxfordPets: CLIP, and FedPGP, to the two digits that are printed."""
    assert harmonic_mean((79.18, 79.83, 83.25)) == pytest.approx(80.72, abs=0.011)
    assert harmonic_mean((95.67, 85.69, 81.75)) == pytest.approx(87.33, abs=0.011)
    assert harmonic_mean((1.0, 0.0, 1.0)) == 0.0


def test_many_images_are_predicted_in_blocks_and_counted_once():
    labels = np.arange(1100) % 3
    said = np.where(np.arange(1100) % 10 == 0, (labels + 1) % 3, labels)
    method = Scripted()
    view = ClientView({}, (), {"kind": np.array(0)})
    test = EvaluationSet(answered(labels.tolist(), said.tolist()), BASE)
    assert accuracy(method, view, test) == pytest.approx(0.9)
    assert [rows for _, rows, _ in method.calls] == [512, 512, 76]


def test_a_model_of_its_own_is_never_measured_by_another_clients_count():
    target = EvaluationSet(TEST, ("a", "b", "c"))
    sets = MeasuredSets({}, {"target": target}, CommonScores())
    views = ((0, 0, 3, 3), (0, 1, 3, 0), (1, 0, 3, 0), (0, 0, 3, 3), (0, 1, 0, 0))
    for broadcast, personal, experts, right in views:
        view = ClientView(number(broadcast), ({},) * experts, number(personal))
        assert sets.tally(Lookup(), view, "target") == (right, 4)


CLASSES = ("a", "b")


class Told:
    def __init__(self, policy: PoolPolicy | None) -> None:
        self.policy = policy
        self.seen: list[int] = []

    def pool_policy(self) -> PoolPolicy | None:
        return self.policy

    def expert_weights(self, view, batch, classes):
        assert set(batch) == {"features"}
        assert classes == CLASSES
        self.seen.append(len(batch["features"]))
        return None if view.personal else batch["features"] * view.broadcast["scale"]


PICKED = PoolPolicy({"x": TensorSpec((1,))}, 2)
FIXED = PoolPolicy({"x": TensorSpec((1,))}, 2, "all", exclude_self=False, fixed=True)


def weighed(policy, *clients, without=()):
    method, found = Told(policy), []
    for number, rows in enumerate(clients):
        examples = {"features": np.array(rows, np.float32), "labels": np.zeros(len(rows))}
        personal = {"no": 1} if number in without else {}
        view = ClientView({"scale": np.float32(1)}, (), personal)
        found.append(mean_weights(method, view, EvaluationSet(Examples(examples), CLASSES)))
    return mean_over_clients([means for means in found if means is not None]), method


ONE = [[0.2, 0.1, 0.7], [0.4, 0.5, 0.1]]
OTHER = [[0.6, 0.1, 0.3]]


def test_the_mean_by_hand():
    # Ranked: (.2, .7, .1) and (.4, .5, .1) give (.3, .6, .1); the other client (.6, .3, .1).
    # In their order: (.3, .3, .4) and (.6, .1, .3).
    ordered = [0.45, 0.2, 0.35]
    for policy, expected in ((PICKED, [0.45, 0.45, 0.1]), (None, ordered), (FIXED, ordered)):
        np.testing.assert_allclose(weighed(policy, ONE, OTHER)[0], expected, atol=1e-7)
    found, _ = weighed(PICKED, ONE, OTHER, without={0})
    np.testing.assert_allclose(found, [0.6, 0.3, 0.1], atol=1e-7)
    assert weighed(PICKED, ONE, OTHER, without={0, 1})[0] is None
    assert weighed(None)[0] is None


def test_a_large_test_set_is_read_in_blocks_and_the_mean_is_of_images():
    rows = [[1.0, 0.0]] * 512 + [[0.0, 1.0]] * 128
    found, method = weighed(None, rows)
    assert method.seen == [512, 128]
    np.testing.assert_allclose(found, [0.8, 0.2])


def test_the_own_expert_is_not_ranked():
    means = ranked_means(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), is_ranked=True)
    np.testing.assert_allclose(means, [0.1, 0.4, 0.3, 0.2], atol=1e-7)
    alone = ranked_means(np.ones((3, 1), np.float32), is_ranked=True)
    np.testing.assert_array_equal(alone, [1.0])


def test_a_run_with_a_pool_says_what_experts_count(plain_run):
    weights = plain_run.summary["final"]["expert_weights"]
    assert len(weights) == 2
    assert math.isclose(sum(weights), 1.0, abs_tol=1e-6)
    assert min(weights) > 0

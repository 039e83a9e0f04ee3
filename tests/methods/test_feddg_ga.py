"""FedDG-GA: weights and gaps by hand, whose data a gap is of, and the base without any step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from methods import Aggregate, ClientView, Examples, Source, Weighting, fedavg
from methods.feddg_ga import (
    GAP,
    MEASURED,
    STEPS,
    WEIGHT,
    Config,
    FedDGGA,
    adjusted,
    held_out,
    scores,
    weighted_mean,
)
from tests.methods._tiny_networks import CLASSES, arrays, tiny
from tests.methods._training import RecordingTrainer, rng


def build(population: int = 2, **options) -> FedDGGA:
    return FedDGGA(tiny(fedavg.FedAvg, fedavg), Config(**options), CLASSES, population)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"metric": "loss"}, (0.338462, 0.292308, 0.369231)),
        ({"metric": "loss", "centre": True, "divisor": 1.0}, (0.358333, 0.133333, 0.508333)),
        # (0.3, 0.35, 0.266667) over 0.916667: a gain in accuracy is no reason to count for more.
        ({"metric": "accuracy"}, (0.327273, 0.381818, 0.290909)),
        # (1/3 + 0.4, 1/3 - 0.2, 1 where it would be 1.133) over 1.866667.
        ({"metric": "loss", "divisor": 0.25}, (0.392857, 0.071429, 0.535714)),
        # (1, 0, 1) where they would be 1.33, -0.17 and 2.33.
        ({"metric": "loss", "divisor": 0.1}, (0.5, 0.0, 0.5)),
    ],
)
def test_weights_by_hand(options, expected):
    gaps = np.array([0.10, -0.05, 0.20])
    got = adjusted(np.full(3, 1 / 3), gaps, step=0.2, config=Config(**options))
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_means_by_hand():
    values = [np.array([0.0, 4.0]), np.array([8.0, 0.0])]
    assert weighted_mean(values, np.array([0.3, 0.1])).tolist() == pytest.approx([2.0, 3.0])
    assert weighted_mean(values, np.zeros(2)).tolist() == [4.0, 2.0]


def test_scores_by_hand():
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [1000.0, 0.0]])
    labels = np.array([1, 0, 1])
    assert scores(logits, labels, "accuracy").tolist() == [1.0, 0.0, 0.0]
    expected = [math.log(1.0 + math.exp(-1.0)), math.log(1.0 + math.e), 1000.0]
    np.testing.assert_allclose(scores(logits, labels, "loss"), expected, rtol=1e-12)


def test_what_is_spared_is_spread_evenly_and_never_trained_on():
    data = Examples({"features": np.arange(10.0)[:, None], "labels": np.zeros(10, np.int64)})
    kept, taken = held_out(data, 0.2)
    assert taken.arrays["features"][:, 0].tolist() == [2.0, 7.0]
    assert kept.arrays["features"][:, 0].tolist() == [0, 1, 3, 4, 5, 6, 8, 9]
    # Less than one image: all are trained on, and measured on.
    assert held_out(data, 0.09) == (data, data)


@pytest.mark.parametrize(
    ("metric", "gap", "measured"),
    [
        ("accuracy", 0.5 - 0.25, 0.5),
        # log(1 + 1/e) and log(1 + e).
        ("loss", (0.313262 + 1.313262) / 2 - 0.25, 0.813262),
    ],
)
def test_a_gap_by_hand(metric, gap, measured):
    """Rows 2 and 7 are spared; one of the two is a yes, and yes is all that the network says."""
    labels = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    data = Examples({"features": np.ones((10, 1), np.float32), "labels": labels})
    method, idle = build(metric=metric, held_out=0.2, gap_factor=4.0), RecordingTrainer()
    always_yes = arrays(fc_weight=[[1]], fc_bias=[0], weight=[[0], [0]], bias=[0, 1])
    view = ClientView(always_yes, personal={MEASURED: np.array([0.25])})
    got = method.client_update(view, data, idle, rng())
    assert got.update[GAP].tolist() == pytest.approx([4.0 * gap], abs=1e-5)
    # Nothing was trained, so the client's own model is the one that it was sent.
    assert got.personal[MEASURED].tolist() == pytest.approx([measured], abs=1e-6)
    assert idle.examples["labels"].tolist() == [0] * 8
    assert method.shared_spec()[GAP].source is Source.PERSONAL


def aggregate(method: FedDGGA, updates: dict) -> Aggregate:
    """Plain means and sums, and each update."""
    values = {}
    for name, spec in method.shared_spec().items():
        total = sum(update[name] for update in updates.values())
        values[name] = total if spec.weighting is Weighting.SUM else total / len(updates)
    return Aggregate(values, 10.0, len(updates), method.population, updates)


def upload(method: FedDGGA, value: float, gap: float) -> dict[str, np.ndarray]:
    """The same change of every coordinate."""
    found = {n: np.full(s.shape, value, np.float32) for n, s in method.shared_spec().items()}
    return {**found, GAP: np.array([gap], np.float32)}


def test_rounds_by_hand():
    """Two of two clients: a plain mean, then weights from gaps, then a smaller step."""
    method = build(metric="loss", step=0.3, rounds=10, divisor=1.0)
    state = method.init_server(rng())
    start = state["head.bias"][0]
    updates = {"a": upload(method, 1.0, 0.0), "b": upload(method, 3.0, 0.0)}
    state = method.server_update(state, aggregate(method, updates), (), rng())
    assert state["head.bias"][0] == pytest.approx(start + 2.0)
    assert state[f"{WEIGHT}a"] == state[f"{WEIGHT}b"] == 0.5
    # d_0 = 0.3 (1 + 1/10) = 0.33: 0.5 + 0.33 and 0.5 - 0.165, over 1.165.
    updates = {"a": upload(method, 1.0, 0.2), "b": upload(method, 3.0, -0.1)}
    state = method.server_update(state, aggregate(method, updates), (), rng())
    weights = np.array([0.83, 0.335]) / 1.165
    got = [state[f"{WEIGHT}{key}"][0] for key in "ab"]
    np.testing.assert_allclose(got, weights, rtol=1e-6)
    moved = weights[0] * 1.0 + weights[1] * 3.0
    assert state["head.bias"][0] == pytest.approx(start + 2.0 + moved, rel=1e-5)
    # d_1 = 0.3.
    state = method.server_update(state, aggregate(method, updates), (), rng())
    weights = np.array([min(weights[0] + 0.3, 1.0), weights[1] - 0.15])
    got = [state[f"{WEIGHT}{key}"][0] for key in "ab"]
    np.testing.assert_allclose(got, weights / weights.sum(), rtol=1e-6)
    assert state[STEPS] == 2.0


def test_who_stays_away_keeps_its_weight_and_who_is_new_has_no_gap():
    method = build(population=4, metric="loss", divisor=1.0)
    state = {**method.init_server(rng()), STEPS: np.array([1.0])}
    state |= {f"{WEIGHT}{key}": np.array([0.25]) for key in "abc"}
    got = method.weighed(state, {"a": 0.4, "b": -0.2, "new": 9.0})
    # 0.45 and 0.15, over 0.6 and times the 0.5 that both had.
    assert got[f"{WEIGHT}a"][0] == pytest.approx(0.375)
    assert got[f"{WEIGHT}b"][0] == pytest.approx(0.125)
    assert got[f"{WEIGHT}new"] == 0.25
    assert f"{WEIGHT}c" not in got

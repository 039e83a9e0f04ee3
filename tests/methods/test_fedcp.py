"""FedCP by hand-worked numbers: context, shares, both heads, discrepancy, the half of a head."""

from __future__ import annotations

import math

import numpy as np
import torch

from methods import Aggregate, ClientView, Examples, fedcp, fedper
from methods.fedcp import context_of
from methods.networks.extractors import OnFeatures
from tests.methods._training import RecordingTrainer, rng, tensors, trainer

CLASSES = ("ant", "bee")
ROOT = math.sqrt(2.0)
EXTRACTOR = {
    # The extractor scales what it is given by the root of its width; this takes it back.
    "extractor.fc.weight": np.eye(2, dtype=np.float32) / np.float32(ROOT),
    "extractor.fc.bias": np.zeros(2, np.float32),
}
GENERIC = {
    "generic.weight": np.eye(2, dtype=np.float32),
    "generic.bias": np.array([10.0, 20.0], np.float32),
}
POLICY = {
    # Of v * h = (1.2, 0.8) it makes (3, 1, -1, -3).
    "policy.weight": np.array([[2.5, 0], [0, 1.25], [0, -1.25], [-2.5, 0]], np.float32),
    "policy.bias": np.zeros(4, np.float32),
    "policy_norm.weight": np.ones(4, np.float32),
    "policy_norm.bias": np.zeros(4, np.float32),
}
SHARED = {**EXTRACTOR, **GENERIC, **POLICY}
HEAD = {
    "head.weight": np.array([[1, 2], [2, 2]], np.float32),  # column sums (3, 4)
    "head.bias": np.array([0.5, 0.25], np.float32),
}
BATCH = {"features": np.array([[2.0, 1.0]], np.float32)}


def build(**options) -> fedcp.FedCP:
    config = fedcp.Config(network="features", **options)
    return fedcp.FedCP(config, OnFeatures(2, 2), CLASSES, needs=frozenset({"features"}))


def view(personal=HEAD, **changed) -> ClientView:
    return ClientView({**SHARED, **changed}, personal=personal)


def drawn(count: int = 12, seed: int = 0) -> Examples:
    draws = rng(seed)
    features = draws.uniform(0.1, 2, (count, 2)).astype(np.float32)
    return Examples({"features": features, "labels": draws.integers(0, 2, count)})


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


# (3, 1, -1, -3) has mean 0 and variance 5; what is negative after normalisation counts as 0.
SHARE_1, SHARE_2 = sigmoid(3 / math.sqrt(5)), sigmoid(1 / math.sqrt(5))


def test_the_context_is_the_columns_of_the_head_at_length_one():
    np.testing.assert_allclose(context_of(HEAD["head.weight"]), [0.6, 0.8], rtol=1e-6)
    assert not context_of(np.zeros((2, 2), np.float32)).any()


def shares(parameters, batch):
    method = build()
    rows = tensors(batch)
    features = method.features(parameters, rows)
    return method.shares(parameters, features, rows).tolist()


def test_the_shares_by_hand():
    parameters = tensors(build().model_of(view()))
    np.testing.assert_allclose(shares(parameters, BATCH), [[SHARE_1, SHARE_2]], rtol=1e-4)


def test_the_logits_are_both_heads_on_their_parts():
    """Of features (2, 1) the personal head is fed (2 r1, r2), the generic one what is left."""
    logits = build().predict(view(), BATCH, CLASSES)
    first, second = 2 * SHARE_1, SHARE_2
    by_hand = [
        first + 2 * second + 0.5 + (2 - first) + 10,
        2 * first + 2 * second + 0.25 + (1 - second) + 20,
    ]
    np.testing.assert_allclose(logits, [by_hand], rtol=1e-5)


def settled(personal: float, generic: float):
    """A policy that gives the same two scores whatever it sees."""
    bias = np.array([personal] * 2 + [generic] * 2, np.float32)
    return {"policy_norm.weight": np.zeros(4, np.float32), "policy_norm.bias": bias}


def test_a_policy_that_calls_everything_personal_is_fedper():
    changed = {**settled(200.0, 0.0), "generic.bias": np.zeros(2, np.float32)}
    got = build().predict(view(**changed), drawn().arrays, CLASSES)
    plain = fedper.FedPer(fedper.Config(network="features"), OnFeatures(2, 2), CLASSES)
    expected = plain.predict(ClientView(EXTRACTOR, personal=HEAD), drawn().arrays, CLASSES)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def loop_discrepancy(one, other) -> float:
    def kernel(a, b):
        return sum(math.exp(-sum((a - b) ** 2) / (2 * w)) for w in (10, 15, 20, 50))

    def mean(rows, others):
        return sum(kernel(a, b) for a in rows for b in others) / (len(rows) * len(others))

    return mean(one, one) + mean(other, other) - 2 * mean(one, other)


def losses_where_features_are_doubled(weight: float):
    method = build(mmd_weight=weight)
    recording = RecordingTrainer()
    data = drawn(3)
    method.client_update(view(), data, recording, rng(3))
    doubled = 2.0 * recording.parameters["extractor.fc.weight"]
    parameters = {**tensors(recording.parameters), "extractor.fc.weight": torch.tensor(doubled)}
    return recording.objective.losses(parameters, {}, tensors(recording.examples)).numpy(), data


def test_the_loss_holds_the_discrepancy_to_the_broadcast_features():
    """Features twice as long as the broadcast extractor's, which are the given ones."""
    regularised, data = losses_where_features_are_doubled(5.0)
    plain, _ = losses_where_features_are_doubled(0.0)
    rows = data.arrays["features"].astype(np.float64)
    np.testing.assert_allclose(
        regularised - plain, [5.0 * loop_discrepancy(2 * rows, rows)] * 3, rtol=1e-4
    )


def test_a_client_sends_its_head_as_a_difference_to_the_generic_one():
    result = build().client_update(view(), drawn(), trainer(), rng(3))
    assert set(result.personal) == set(HEAD)
    for name, value in result.personal.items():
        generic = name.replace("head", "generic")
        np.testing.assert_array_equal(result.update[generic], value - GENERIC[generic])
        assert np.abs(value - HEAD[name]).max() > 0
    assert result.update["policy.weight"].any()


def test_the_new_generic_head_lies_halfway_between():
    """Generic 1 and heads 2 and 4 of equal weight: the mean of 1.5 and 2.5."""
    method = build()
    state = {n: np.ones_like(v) for n, v in SHARED.items()}
    changes = {n: np.full(v.shape, (2 - 1 + 4 - 1) / 2) for n, v in SHARED.items()}
    after = method.server_update(state, Aggregate(changes, 2.0, 2, 2), (), rng(3))
    assert set(after) == set(SHARED)
    for name, value in after.items():
        expected = 2.0 if name in GENERIC else 3.0
        np.testing.assert_array_equal(value, np.full(value.shape, expected))
        assert value.dtype == np.float32

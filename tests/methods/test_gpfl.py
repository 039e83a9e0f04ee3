"""GPFL by hand-worked numbers: the valve, the conditions, both kinds of guidance, the decay."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, fedper, gpfl
from methods.gpfl import SHARES, angle_losses, valve
from methods.networks.extractors import OnFeatures
from tests.methods._training import RecordingTrainer, rng, tensors

CLASSES = ("ant", "bee")
EXTRACTOR = {
    # The extractor scales what it is given by the root of its width; this takes it back.
    "extractor.fc.weight": np.eye(2, dtype=np.float32) / np.float32(math.sqrt(2.0)),
    "extractor.fc.bias": np.zeros(2, np.float32),
}
VALVE = {
    # gamma: of (1, 2) the linear layer makes (1, 3), normalised (-1, 1); of (2, 1) it makes (2, 2).
    "valve.gamma.weight": np.eye(2, dtype=np.float32),
    "valve.gamma.bias": np.array([0.0, 1.0], np.float32),
    "valve.gamma.norm.weight": np.ones(2, np.float32),
    "valve.gamma.norm.bias": np.zeros(2, np.float32),
    # beta: (2, -1) whatever the condition, after ReLU (2, 0), normalised (1, -1).
    "valve.beta.weight": np.zeros((2, 2), np.float32),
    "valve.beta.bias": np.array([2.0, -1.0], np.float32),
    "valve.beta.norm.weight": np.ones(2, np.float32),
    "valve.beta.norm.bias": np.zeros(2, np.float32),
}
OPEN = {n: np.zeros_like(v) if ".norm." in n else v for n, v in VALVE.items()}
EMBEDDING = np.array([[2.0, 0.0], [0.0, 4.0]], np.float32)
SHARED = {**EXTRACTOR, **VALVE, "embedding": EMBEDDING}
HEAD = {"head.weight": np.eye(2, dtype=np.float32), "head.bias": np.zeros(2, np.float32)}


def build(**options) -> gpfl.GPFL:
    config = gpfl.Config(network="features", **options)
    return gpfl.GPFL(config, OnFeatures(2, 2), CLASSES, needs=frozenset({"features"}))


def personal(first: float = 0.5):
    return {**HEAD, SHARES: np.array([first, 1 - first], np.float32)}


def examples(rows, labels) -> Examples:
    return Examples({"features": np.array(rows, np.float32), "labels": np.array(labels)})


FEW = examples([[3.0, 2.0], [1.0, 1.0], [0.5, 2.0], [1.0, 0.0]], [0, 0, 0, 1])


def opened(features, condition):
    return valve(tensors(VALVE), torch.tensor([features]), torch.tensor(condition)).tolist()


def test_the_valve_by_hand():
    """Condition (1, 2): gamma + 1 = (0, 2) and beta = (1, -1), so (3, 2) becomes (1, 3)."""
    np.testing.assert_allclose(opened([3.0, 2.0], [1.0, 2.0]), [[1.0, 3.0]], atol=1e-4)


def test_the_angle_by_hand():
    """Row (5, 0) has cosines 1 and 0 to the embeddings, row (0, 0) none to either."""
    rows = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 0.0]])
    got = angle_losses(rows, torch.from_numpy(EMBEDDING), torch.tensor([0, 1, 0]))
    by_hand = [math.log1p(math.exp(-1)), math.log1p(math.exp(1)), math.log(2)]
    np.testing.assert_allclose(got, by_hand, rtol=1e-6)


def test_the_conditions_are_means_of_the_broadcast_embeddings():
    """Shares (3/4, 1/4) of (2, 0) and (0, 4) make (1.5, 1); all alike they make (1, 2)."""
    recording = RecordingTrainer()
    result = build().client_update(
        ClientView(SHARED, personal=personal(0.1)), FEW, recording, rng(3)
    )
    np.testing.assert_allclose(recording.parameters["own_condition"], [1.5, 1.0])
    np.testing.assert_allclose(recording.parameters["generic_condition"], [1.0, 2.0])
    np.testing.assert_array_equal(recording.parameters["broadcast_embedding"], EMBEDDING)
    np.testing.assert_allclose(result.personal[SHARES], [0.75, 0.25])
    (group,) = recording.groups
    assert set(group.names) == {*SHARED, *HEAD}


def test_prediction_is_under_the_own_condition():
    """Of embeddings (4, 1) and (1, 2) shares make (1, 2), (2, 5/3) or (4, 1): gamma turns round.

    The hidden values are (1, 3), (2, 8/3) and (4, 2), so gamma is (-1, 1) twice and then (1, -1).
    """
    method = build()
    batch = {"features": np.array([[3.0, 2.0]], np.float32)}
    broadcast = {**SHARED, "embedding": np.array([[4.0, 1.0], [1.0, 2.0]], np.float32)}
    for first, expected in ((0.0, [1.0, 3.0]), (1 / 3, [1.0, 3.0]), (1.0, [7.0, 0.0])):
        logits = method.predict(ClientView(broadcast, personal=personal(first)), batch, CLASSES)
        np.testing.assert_allclose(logits, [expected], atol=1e-3)


def test_the_loss_of_an_example_by_hand():
    """Own (1, 3) for the task, generic (4, 1) for the guidance; frozen embedding (0, -2)."""
    parameters = {
        **tensors({**SHARED, **HEAD}),
        "own_condition": torch.tensor([1.0, 2.0]),
        "generic_condition": torch.tensor([2.0, 1.0]),
        "broadcast_embedding": torch.tensor([[9.0, 9.0], [0.0, -2.0]]),
    }
    batch = {"features": torch.tensor([[3.0, 2.0]]), "labels": torch.tensor([1])}
    task = math.log1p(math.exp(1 - 3))
    length = math.sqrt(17)
    angle = math.log(math.exp(4 / length) + math.exp(1 / length)) - 1 / length
    distance = 5.0  # of (4, 1) to (0, -2)
    for weight in (0.0, 0.1):
        loss = float(build(guidance_weight=weight).guided(parameters, batch)[0])
        assert loss == pytest.approx(task + angle + weight * distance, rel=1e-4)


def test_the_decay_is_of_embedding_and_valve():
    """Embeddings 4 + 16; gamma 2 + 1 + 2 + 0; beta 0 + 5 + 2 + 0: half of mu times 32."""
    recording = RecordingTrainer()
    build(decay=0.5).client_update(ClientView(SHARED, personal=personal()), FEW, recording, rng(3))
    parameters = tensors(recording.parameters)
    assert float(recording.penalty(parameters, {})) == pytest.approx(8.0, rel=1e-6)


def test_an_open_valve_without_guidance_predicts_as_fedper():
    rows = FEW.arrays
    got = build().predict(ClientView({**SHARED, **OPEN}, personal=personal(0.2)), rows, CLASSES)
    plain = fedper.FedPer(fedper.Config(network="features"), OnFeatures(2, 2), CLASSES)
    expected = plain.predict(ClientView(EXTRACTOR, personal=HEAD), rows, CLASSES)
    np.testing.assert_allclose(got, expected, rtol=1e-6)

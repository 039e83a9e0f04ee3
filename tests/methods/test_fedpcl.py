"""FedPCL: the contrast with prototypes by hand, and predictions by the nearest one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, fedpcl
from methods.fedpcl import OWN, FedPCL
from methods.networks.class_tables import KNOWN, PRESENCE, PROTOTYPES, TABLE
from tests.methods._tiny_networks import arrays, one_example, some_examples, tiny
from tests.methods._training import RecordingTrainer, rng, trainer

CLASSES = ("no", "yes")
AXES = [[1, 0], [0, 1]]


def build(given: int = 3, width: int = 4, **options) -> FedPCL:
    return tiny(FedPCL, fedpcl, given, width, **options)


def table(rows, known=(1, 1)):
    return {TABLE: np.array(rows, np.float32), KNOWN: np.array(known, np.float32)}


def network(*feature: float):
    """Its feature is always this, before it is brought to length 1."""
    return arrays(fc_weight=np.zeros((len(feature), 1)), fc_bias=feature)


def loss_of(method, broadcast, feature, label: int) -> float:
    parameters = method.tensors({**network(*feature), **broadcast})
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([label])}
    return method.objective(ClientView({})).losses(parameters, {}, batch).item()


@pytest.mark.parametrize("length", [1.0, 5.0])
def test_the_contrast_by_hand(length):
    """z = (1, 0), prototypes (1, 0) and (0, 1), tau = 1/2: ln(1 + e^-2), and with the other 2 more.

    How long the feature was has no say.
    """
    method = build(1, 2, temperature=0.5)
    assert loss_of(method, table(AXES), (length, 0), 0) == pytest.approx(0.126928, abs=1e-6)
    assert loss_of(method, table(AXES), (length, 0), 1) == pytest.approx(2.126928, abs=1e-6)


def test_how_long_a_prototype_is_counts_unless_it_is_the_cosine():
    """z = (3/5, 4/5), prototypes (1/2, 0) and (0, 1/4), tau = 1: 0.3 and 0.2, or 0.6 and 0.8."""
    rows = [[0.5, 0], [0, 0.25]]
    got = {
        similarity: loss_of(
            build(1, 2, temperature=1.0, similarity=similarity), table(rows), (3, 4), 0
        )
        for similarity in ("dot", "cosine")
    }
    assert got["dot"] == pytest.approx(math.log(1 + math.exp(-0.1)), abs=1e-6)
    assert got["cosine"] == pytest.approx(math.log(1 + math.exp(0.2)), abs=1e-6)


def test_classes_without_a_prototype_are_in_no_denominator():
    """With one class known there is nothing to tell it from; the other has no loss."""
    method, broadcast = build(1, 2), table([[0.1, 0.2], [9, 9]], (1, 0))
    assert loss_of(method, broadcast, (1, 0), 0) == pytest.approx(0.0, abs=1e-6)
    assert loss_of(method, broadcast, (1, 0), 1) == 0.0


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_the_first_round_trains_nothing_and_tells_prototypes(clipping):
    method, data = build(), some_examples(10, 3)
    own = method.init_client(rng(1), rng())
    view = ClientView(method.init_server(rng()), (), own)
    result = method.client_update(view, data, trainer(clipping=clipping), rng())
    assert all(np.array_equal(result.personal[name], value) for name, value in own.items())
    made = method.features(method.tensors(own), method.tensors(data.arrays)).numpy()
    lengths = np.linalg.norm(made, axis=1)
    assert all(abs(one - 1) < 1e-5 or one == 0 for one in lengths)
    for label in (0, 1):
        mean = made[data.arrays["labels"] == label].mean(axis=0)
        np.testing.assert_allclose(result.update[PROTOTYPES][label], mean, atol=1e-6)
    assert result.update[PRESENCE].tolist() == [1, 1]


def test_a_step_turns_the_feature_to_its_prototype():
    """z = f / |f| of f = (3, 4): the loss moves z by (p - p_0) / tau, f by what is across z.

    tau = 1/2: scores 1.2 and 1.6, so p_1 counts 1 / (1 + e^-0.4) and the gradient for class 0 is
    that times 2 (-1, 1). Across z = (0.6, 0.8) that is ((-1, 1) - 0.2 z) = (-1.12, 0.84), over 5.
    """
    method = build(1, 2, temperature=0.5)
    view = ClientView(table(AXES), (), network(3, 4))
    learner = trainer(steps=1, learning_rate=1.0)
    own = method.client_update(view, one_example(label=0), learner, rng()).personal
    share = 1 / (1 + math.exp(-0.4))
    expected = np.array([3, 4]) - share * 2 * np.array([-1.12, 0.84]) / 5
    np.testing.assert_allclose(own["extractor.fc.bias"], expected, atol=1e-5)


def test_prototypes_travel_as_they_are_and_the_server_averages_those_there_are():
    """Unit vectors are as long as flags: no root of the width beside them."""
    method = build(1, 2)
    data = Examples({"features": np.ones((2, 1), np.float32), "labels": np.array([1, 1])})
    view = ClientView(method.init_server(rng()), (), network(3, 4))
    result = method.client_update(view, data, RecordingTrainer(), rng())
    np.testing.assert_allclose(result.update[PROTOTYPES], [[0, 0], [0.6, 0.8]], atol=1e-6)
    other = {PROTOTYPES: np.array([[1, 0], [0, 1]], np.float32), PRESENCE: np.ones(2, np.float32)}
    values = {name: (result.update[name] + other[name]) / 2 for name in other}
    after = method.server_update(view.broadcast, Aggregate(values, 2.0, 2, 5), (), rng())
    np.testing.assert_allclose(after[TABLE], [[1, 0], [0.3, 0.9]], atol=1e-6)
    assert after[KNOWN].tolist() == [1, 1]


def predicted(method, broadcast, own, classes=CLASSES):
    view = ClientView(broadcast, (), own)
    return method.predict(view, one_example().arrays, classes)


OWN_TABLE = {OWN + TABLE: np.array([[0, 1], [1, 0]], np.float32)}
BOTH = {OWN + KNOWN: np.ones(2, np.float32)}


@pytest.mark.parametrize(
    ("inference", "expected"),
    [("own_prototypes", [[-1.0, 0.0]]), ("global_prototypes", [[0.0, -1.0]])],
)
def test_the_nearest_prototype_by_hand(inference, expected):
    """z = (1, 0) is (1 + 1) / 2 from (0, 1); the client's own classes are the other way round."""
    method = build(1, 2, inference=inference)
    own = {**network(2, 0), **OWN_TABLE, **BOTH}
    np.testing.assert_allclose(predicted(method, table(AXES), own), expected, atol=1e-6)
    if inference == "own_prototypes":
        # A class that the client does not have is one farther than any that it has.
        own[OWN + KNOWN] = np.array([1, 0], np.float32)
        np.testing.assert_allclose(predicted(method, table(AXES), own), [[-1, -2]], atol=1e-6)

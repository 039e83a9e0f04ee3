"""FedProto: its loss and its predictions by hand, and what is left of it without prototypes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, fedproto
from methods.fedproto import OWN, FedProto
from methods.networks.class_tables import KNOWN, TABLE
from tests.methods._tiny_networks import arrays, one_example, tiny
from tests.methods._training import rng, trainer

CLASSES = ("no", "yes")


def build(given: int = 3, width: int = 4, **options) -> FedProto:
    return tiny(FedProto, fedproto, given, width, **options)


def table(rows, known):
    return {TABLE: np.array(rows, np.float32), KNOWN: np.array(known, np.float32)}


def network(*feature: float):
    """Its feature is always this, and a head of zero gives both classes one half."""
    width = len(feature)
    zeros = np.zeros((width, 1)), np.zeros((2, width))
    return arrays(fc_weight=zeros[0], fc_bias=feature, weight=zeros[1], bias=[0, 0])


def loss_of(method, parameters, label: int) -> float:
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([label])}
    return method.objective(ClientView({})).losses(tensors, {}, batch).item()


@pytest.mark.parametrize(("weight", "distance"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_the_loss_by_hand(weight, distance):
    """Feature (0, 0), prototype (1, 1): the mean over both dimensions is 1."""
    method = build(1, 2, prototype_weight=weight)
    parameters = {**network(0, 0), **table([[7, 7], [1, 1]], [1, 1])}
    assert loss_of(method, parameters, 1) == pytest.approx(math.log(2) + distance, abs=1e-6)


def test_the_distance_is_to_the_prototype_of_the_examples_own_class():
    """(3, 1) and (0, 5): (9 + 16) / 2; and (3, 0): (0 + 1) / 2."""
    method = build(1, 2)
    parameters = {**network(3, 1), **table([[0, 5], [3, 0]], [1, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(math.log(2) + 12.5, abs=1e-5)
    assert loss_of(method, parameters, 1) == pytest.approx(math.log(2) + 0.5, abs=1e-5)


def test_a_step_draws_the_feature_to_its_prototype():
    """The head is zero, so the distance alone moves it: 2 (f - p) / 2 = (2, -4) by a rate of 0.1.

    Feature (3, 1), prototype (1, 5).
    """
    learner = trainer(steps=1, learning_rate=0.1)
    view = ClientView(table([[9, 9], [1, 5]], [1, 1]), (), network(3, 1))
    own = build(1, 2).client_update(view, one_example(label=1), learner, rng()).personal
    np.testing.assert_allclose(own["extractor.fc.bias"], [2.8, 1.4], atol=1e-6)


def predicted(method, broadcast, own, classes=CLASSES):
    view = ClientView(broadcast, (), own)
    return method.predict(view, one_example().arrays, classes)


def test_among_which_classes_it_looks_for_the_nearest():
    """The client has class 0 only, whose prototype is the farther one."""
    broadcast = table([[0, 5], [3, 0]], [1, 1])
    own = {**network(3, 1), OWN: np.array([1, 0], np.float32)}
    got = {
        inference: predicted(build(1, 2, inference=inference), broadcast, own).tolist()
        for inference in ("own_prototypes", "all_prototypes", "head")
    }
    assert got["own_prototypes"] == [[-12.5, -13.5]]
    assert got["all_prototypes"] == [[-12.5, -0.5]]
    assert got["head"] == [[0.0, 0.0]]


@pytest.mark.parametrize("inference", ["own_prototypes", "all_prototypes"])
def test_a_class_without_a_prototype_is_not_predicted_by_one(inference):
    """Its row of zeros would be the nearest."""
    method = build(1, 2, inference=inference)
    broadcast = table([[0, 0], [3, 3]], [0, 1])
    assert predicted(method, broadcast, network(0, 1)).tolist() == [[-7.5, -6.5]]


@pytest.mark.parametrize(("known", "mine"), [([0, 0], [1, 1]), ([0, 1], [1, 0])])
def test_where_there_is_no_prototype_the_head_predicts(known, mine):
    own = {**network(1, 0), "head.weight": np.array([[2, 0], [5, 0]], np.float32)}
    own[OWN] = np.array(mine, np.float32)
    assert predicted(build(1, 2), table(np.ones((2, 2)), known), own).tolist() == [[2, 5]]

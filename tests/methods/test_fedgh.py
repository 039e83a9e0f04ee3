"""FedGH: prototypes and the head's steps by hand, and how means over clients stand to them."""

from __future__ import annotations

import math

import numpy as np
import torch

from methods import Aggregate, ClientView, Examples, Task, fedgh
from methods.fedgh import known_prototypes
from methods.networks.class_tables import PRESENCE, PROTOTYPES
from platform.contract.examples import draw_examples
from tests.methods._training import rng, tensors, trainer

CLASSES = ("ant", "bee", "cow")
TASK = Task(CLASSES, ("one",), 4)
SMALL = {"network": "fasttext", "buckets": 20, "feature_width": 4}
ONE_STEP = {"server_batch": None, "server_rate": 0.5}


def build(**options):
    return fedgh.build(fedgh.Config(**{**SMALL, **options}), TASK)


def sent(rows, flags):
    """What a client with these prototypes (C, 4) sends: over the root of four."""
    return {
        PROTOTYPES: np.array(rows, np.float32) / 2.0,
        PRESENCE: np.array(flags, np.float32),
    }


def zero_head():
    return {"head.weight": np.zeros((3, 4), np.float32), "head.bias": np.zeros(3, np.float32)}


def aggregate(*clients, individual: bool = True):
    values = {n: np.mean([c[n] for c in clients], axis=0) for n in (PROTOTYPES, PRESENCE)}
    single = {f"client-{i}": c for i, c in enumerate(clients)} if individual else None
    return Aggregate(values, float(len(clients)), len(clients), 4, single)


ONE = sent([[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 3, 1]], [1, 0, 1])
TWO = sent([[3, 0, 0, 4], [2, 2, 2, 2], [0, 0, 0, 0]], [1, 1, 0])


def test_a_client_sends_the_means_of_what_its_trained_extractor_makes():
    method = build()
    labels = np.array([0, 1, 1, 0, 1, 0])
    data = Examples({**draw_examples(method, 0, 6).arrays, "labels": labels})
    view = ClientView(method.init_server(rng(1)), (), method.init_client(rng(2), rng(3)))
    result = method.client_update(view, data, trainer(), rng(3))
    words = torch.tensor(data.arrays["words"])
    made = method.extractor.features(tensors(result.personal), words).numpy()
    expected = [made[labels == label].mean(0) / math.sqrt(4) for label in (0, 1)]
    np.testing.assert_allclose(result.update[PROTOTYPES], [*expected, np.zeros(4)], atol=1e-6)
    assert result.update[PRESENCE].tolist() == [1, 1, 0]


def softmax_regression(pairs, batches, rate):
    """Steps of gradient descent from zero on batches of pairs, by numpy."""
    weight, bias = np.zeros((3, 4)), np.zeros(3)
    for batch in batches:
        rows = np.array([pairs[i][0] for i in batch], float)
        labels = [pairs[i][1] for i in batch]
        logits = rows @ weight.T + bias
        odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[labels]
        weight = weight - rate * odds.T @ rows / len(rows)
        bias = bias - rate * odds.mean(0)
    return weight, bias


PAIRS = [([1, 2, 0, 0], 0), ([0, 0, 3, 1], 2), ([3, 0, 0, 4], 0), ([2, 2, 2, 2], 1)]


def test_every_clients_pair_is_one_of_the_batch():
    method = build(**ONE_STEP, server_epochs=3)
    after = method.server_update(zero_head(), aggregate(ONE, TWO), (), rng(3))
    weight, bias = softmax_regression(PAIRS, [range(4)] * 3, 0.5)
    np.testing.assert_allclose(after["head.weight"], weight, atol=1e-5)
    np.testing.assert_allclose(after["head.bias"], bias, atol=1e-5)


def test_the_aggregate_has_one_mean_for_each_class():
    """Over the clients that have it: class 0 is both clients', the others are one's."""
    method = build(prototypes="mean")
    rows, classes = method.pairs(aggregate(ONE, TWO, individual=False))
    assert classes.tolist() == [0, 1, 2]
    np.testing.assert_allclose(rows, [[2, 1, 0, 2], [2, 2, 2, 2], [0, 0, 3, 1]], atol=1e-6)


def test_a_class_below_the_floor_is_left_out():
    """Half of the largest flag of one client; half of one client's among twenty."""
    noised = sent([[2, 0, 0, 0], [1, 1, 1, 1], [4, 4, 0, 0]], [2.0, 0.9, 1.0])
    rows, classes = known_prototypes(noised, 0.5)
    assert classes.tolist() == [0, 2]
    np.testing.assert_allclose(rows, [[1, 0, 0, 0], [4, 4, 0, 0]], atol=1e-6)
    method = build(prototypes="mean")
    for flag, kept in ((1 / 20, [0, 1]), (0.4 / 20, [0]), (-0.2, [0])):
        values = sent(np.ones((3, 4)), [1.0, flag, 0.0])
        _, classes = method.pairs(Aggregate(values, 20.0, 20, 50))
        assert classes.tolist() == kept
    strict = build(prototypes="mean", presence_floor=2.0)
    values = sent(np.ones((3, 4)), [1.0, 1.5 / 20, 2.5 / 20])
    assert strict.pairs(Aggregate(values, 20.0, 20, 50))[1].tolist() == [0, 2]

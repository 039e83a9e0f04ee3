"""FedGH: prototypes and the head's steps by hand, and how means over clients stand to them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, MethodError, Task, Visibility, fedavg, fedgh
from methods.fedgh import known_prototypes
from methods.networks.class_tables import PRESENCE, PROTOTYPES, class_means
from methods.networks.method import descend
from platform.contract.examples import draw_examples
from privacy.training import LocalTrainer, TrainingPlan

CLASSES = ("ant", "bee", "cow")
TASK = Task(CLASSES, ("one",), 4)
SMALL = {"network": "fasttext", "buckets": 20, "feature_width": 4}
ONE_STEP = {"server_batch": None, "server_rate": 0.5}


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(**options):
    return fedgh.build(fedgh.Config(**{**SMALL, **options}), TASK)


def learner(steps: int = 2) -> LocalTrainer:
    return LocalTrainer(TrainingPlan(local_steps=steps, batch_size=8, learning_rate=0.5))


def labelled(method, count: int, classes: int = 3):
    """Examples of the task's first classes."""
    data = draw_examples(method, 0, count)
    labels = rng(8).integers(0, classes, count)
    return type(data)({**data.arrays, "labels": labels})


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


def test_class_means_by_hand():
    features = np.array([[1, 0], [3, 4], [5, 6]], np.float32)
    means, flags = class_means(features, np.array([2, 0, 2]), 4)
    assert means.tolist() == [[3, 4], [0, 0], [3, 3], [0, 0]]
    assert flags.tolist() == [1, 0, 1, 0]
    assert means.dtype == flags.dtype == np.float32


def test_a_client_sends_the_means_of_what_its_trained_extractor_makes():
    """By one example at a time, of 300: more than are held at once."""
    method = build()
    data = labelled(method, 300, classes=2)
    view = ClientView(method.init_server(rng(1)), (), method.init_client(rng(2), rng()))
    result = method.client_update(view, data, learner(), rng())
    own = {name: torch.from_numpy(value) for name, value in result.personal.items()}
    made: dict[int, list] = {0: [], 1: []}
    for words, label in zip(data.arrays["words"], data.arrays["labels"], strict=True):
        row = torch.tensor(words)[None]
        made[int(label)].append(method.extractor.features(own, row)[0].numpy())
    for label in (0, 1):
        expected = np.mean(made[label], axis=0) / math.sqrt(4)
        np.testing.assert_allclose(result.update[PROTOTYPES][label], expected, atol=1e-6)
    assert not result.update[PROTOTYPES][2].any()
    assert result.update[PRESENCE].tolist() == [1, 1, 0]


def test_a_client_trains_the_whole_network_under_the_global_head():
    """As FedAvg does from the same start; the head that it ends with is dropped."""
    method, whole = build(), fedavg.build(fedavg.Config(**SMALL), TASK)
    data = labelled(method, 8)
    head, own = method.init_server(rng(1)), method.init_client(rng(2), rng())
    assert set(head) == {"head.weight", "head.bias"}
    result = method.client_update(ClientView(head, (), own), data, learner(), rng())
    start = {**head, **own}
    expected = whole.client_update(ClientView(start), data, learner(), rng()).update
    assert set(result.personal) == set(own)
    for name, value in result.personal.items():
        np.testing.assert_allclose(value, own[name] + expected[name], atol=1e-6)
    assert set(result.update) == {PROTOTYPES, PRESENCE}


def test_the_head_predicts_on_the_own_extractor():
    method, whole = build(), fedavg.build(fedavg.Config(**SMALL), TASK)
    head, own = method.init_server(rng(1)), method.init_client(rng(2), rng())
    batch = {"words": labelled(method, 5).arrays["words"]}
    got = method.predict(ClientView(head, (), own), batch, CLASSES)
    np.testing.assert_array_equal(got, whole.predict(ClientView({**head, **own}), batch, CLASSES))


def test_one_step_of_the_head_by_hand():
    """A head of zero gives each class a third: the gradient is (1/3 - e_y) times the prototype."""
    method = build(**ONE_STEP)
    alone = sent([[1, 2, 0, 0], [0] * 4, [0] * 4], [1, 0, 0])
    after = method.server_update(zero_head(), aggregate(alone), (), rng())
    direction = np.array([1 - 1 / 3, -1 / 3, -1 / 3])
    expected = 0.5 * direction[:, None] * np.array([[1, 2, 0, 0]])
    np.testing.assert_allclose(after["head.weight"], expected, atol=1e-6)
    np.testing.assert_allclose(after["head.bias"], 0.5 * direction, atol=1e-6)


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
    after = method.server_update(zero_head(), aggregate(ONE, TWO), (), rng())
    weight, bias = softmax_regression(PAIRS, [range(4)] * 3, 0.5)
    np.testing.assert_allclose(after["head.weight"], weight, atol=1e-5)
    np.testing.assert_allclose(after["head.bias"], bias, atol=1e-5)


@pytest.mark.parametrize(("size", "epochs"), [(1, 1), (3, 2)])
def test_batches_are_shuffled_anew_in_each_pass(size, epochs):
    method = build(server_rate=0.5, server_batch=size, server_epochs=epochs)
    after = method.server_update(zero_head(), aggregate(ONE, TWO), (), rng(6))
    orders, batches = rng(6), []
    for _ in range(epochs):
        order = orders.permutation(4).tolist()
        batches += [order[i : i + size] for i in range(0, 4, size)]
    weight, bias = softmax_regression(PAIRS, batches, 0.5)
    np.testing.assert_allclose(after["head.weight"], weight, atol=1e-5)
    np.testing.assert_allclose(after["head.bias"], bias, atol=1e-5)


def test_the_aggregate_has_one_mean_for_each_class():
    """Over the clients that have it: class 0 is both clients', the others are one's."""
    method = build(prototypes="mean")
    rows, classes = method.pairs(aggregate(ONE, TWO, individual=False))
    assert classes.tolist() == [0, 1, 2]
    np.testing.assert_allclose(rows, [[2, 1, 0, 2], [2, 2, 2, 2], [0, 0, 3, 1]], atol=1e-6)


def test_for_one_client_both_ways_are_one():
    heads = [
        build(**ONE_STEP, prototypes=kind).server_update(zero_head(), aggregate(ONE), (), rng())
        for kind in ("individual", "mean")
    ]
    for name in heads[0]:
        np.testing.assert_array_equal(heads[0][name], heads[1][name])
        assert heads[0][name].any()


@pytest.mark.parametrize("kind", ["individual", "mean"])
def test_clipping_all_that_is_sent_changes_nothing(kind):
    shorter = [{n: np.float32(0.01) * v for n, v in client.items()} for client in (ONE, TWO)]
    method = build(prototypes=kind)
    whole, short = (method.pairs(aggregate(*c)) for c in ((ONE, TWO), shorter))
    np.testing.assert_allclose(short[0], whole[0], rtol=1e-5)
    np.testing.assert_array_equal(short[1], whole[1])


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


@pytest.mark.parametrize("flags", [[0, 0, 0], [-1, -0.1, -2]])
@pytest.mark.parametrize("kind", ["individual", "mean"])
def test_a_head_without_prototypes_stays(kind, flags):
    method = build(prototypes=kind, server_batch=None)
    after = method.server_update(zero_head(), aggregate(sent(np.ones((3, 4)), flags)), (), rng())
    assert not any(value.any() for value in after.values())


def test_what_the_server_must_see():
    single, mean = build(), build(prototypes="mean")
    assert single.visibility is Visibility.PER_CLIENT
    assert single.units == {"client"}
    assert mean.visibility is Visibility.AGGREGATE_ONLY
    assert mean.units == {"client"}
    with pytest.raises(MethodError, match=r"aggregate\.individual is None; valid"):
        single.server_update(zero_head(), aggregate(ONE, individual=False), (), rng())


def test_a_floor_above_one_client_is_for_means_only():
    with pytest.raises(MethodError, match=r"method\.presence_floor: 1\.5 .*valid .*above 0 to 1"):
        build(presence_floor=1.5)
    assert build(presence_floor=1.0).config.presence_floor == 1.0


def test_training_at_the_server_leaves_its_start_alone():
    """One step along a gradient of (2, 4) from (1, 2), and a start that is still there."""
    start = {"point": torch.tensor([1.0, 2.0])}
    sgd = partial(torch.optim.SGD, lr=0.25)
    after = descend(start, [lambda leaves: leaves["point"].square().sum()], sgd)
    assert after["point"].tolist() == [0.5, 1.0]
    assert start["point"].tolist() == [1.0, 2.0]
    assert not start["point"].requires_grad

"""DBE by hand-worked numbers: the shift, the mean regularisation, the consensus of one round."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, dbe
from methods.dbe import CLIENT_MEAN, CONSENSUS, FEATURE_MEAN, HAS_CONSENSUS, RunningMean
from methods.networks.extractors import OnFeatures
from tests.methods._training import rng, trainer

CLASSES = ("ant", "bee")
ROOT = math.sqrt(2.0)
IDENTITY = {
    # The extractor scales what it is given by the root of its width; this takes it back.
    "extractor.fc.weight": np.eye(2, dtype=np.float32) / np.float32(ROOT),
    "extractor.fc.bias": np.zeros(2, np.float32),
}
HEAD = {"head.weight": np.eye(2, dtype=np.float32), "head.bias": np.zeros(2, np.float32)}
NO_HEAD = {name: np.zeros_like(value) for name, value in HEAD.items()}
NETWORK = {**IDENTITY, **HEAD}


def build(classes=CLASSES, given: int = 2, width: int = 2, **options) -> dbe.DBE:
    config = dbe.Config(network="features", **options)
    return dbe.DBE(config, OnFeatures(given, width), classes, needs=frozenset({"features"}))


def broadcast(network, consensus=None):
    known = consensus is not None
    mean = np.array(consensus if known else (0.0, 0.0), np.float32)
    return {**network, CONSENSUS: mean, HAS_CONSENSUS: np.array([int(known)])}


def shift(*values: float):
    return {CLIENT_MEAN: np.array(values, np.float32)}


def examples(rows, labels) -> Examples:
    return Examples({"features": np.array(rows, np.float32), "labels": np.array(labels)})


def drawn(count: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return examples(rng.uniform(0.1, 1, (count, 2)), rng.integers(0, 2, count))


def test_the_shift_is_added_to_the_features_before_the_head():
    """Features (1, 0) and shift (0.5, 2) make (1.5, 2); what is negative stays so."""
    view = ClientView(broadcast(NETWORK, (0, 0)), personal=shift(0.5, 2.0))
    batch = {"features": np.array([[1.0, 0.0]], np.float32)}
    np.testing.assert_allclose(build().predict(view, batch, CLASSES), [[1.5, 2.0]], atol=1e-6)
    view = ClientView(broadcast(NETWORK, (0, 0)), personal=shift(-3.0, 0.0))
    np.testing.assert_allclose(build().predict(view, batch, CLASSES), [[-2.0, 0.0]], atol=1e-6)


def test_the_running_mean():
    """With mu = 1/4 and batches of mean 4, 8, 1: 4, then 3 + 2 = 5, then 3.75 + 0.25 = 4."""
    running = RunningMean(0.25)
    for mean, expected in ((4.0, 4.0), (8.0, 5.0), (1.0, 4.0)):
        batch = torch.tensor([mean], requires_grad=True)
        value = running.after(batch)
        assert float(value.detach()) == expected
        # What is past has no gradient: the newest batch counts mu, the first one too.
        (gradient,) = torch.autograd.grad(value, batch)
        assert float(gradient) == 0.25


def losses(method, consensus, rows, labels, network, own=(0.0, 0.0)):
    view = ClientView(broadcast(network, consensus), personal=shift(*own))
    parameters = {n: torch.from_numpy(np.array(a)) for n, a in method.model_of(view).items()}
    batch = {"features": torch.tensor(rows), "labels": torch.tensor(labels)}
    return method.objective(view).losses(parameters, {}, batch).tolist()


def test_the_loss_by_hand():
    """Mean (2, 1) against consensus (1, 3): kappa (1 + 4) / 2, in the loss of each example."""
    rows, labels, network = [[1.0, 0.0], [3.0, 2.0]], [0, 1], {**IDENTITY, **NO_HEAD}
    got = losses(build(mean_weight=4.0), (1.0, 3.0), rows, labels, network)
    np.testing.assert_allclose(got, [math.log(2) + 10.0] * 2, rtol=1e-6)


@pytest.mark.parametrize(("momentum", "share"), [(1.0, 1.0), (0.5, 0.5)])
def test_one_step_pulls_the_mean_towards_the_consensus(momentum, share):
    """The gradient of 4 MSE at mean (2, 1) and consensus (1, 3) is 4 (1, -2); the rate is 1/2."""
    view = ClientView(broadcast({**IDENTITY, **NO_HEAD}, (1.0, 3.0)), personal=shift(0.0, 0.0))
    result = build(mean_weight=4.0, momentum=momentum).client_update(
        view, examples([[1.0, 0.5], [3.0, 1.5]], [0, 1]), trainer(steps=1), rng(3)
    )
    moved = result.update["extractor.fc.bias"]
    np.testing.assert_allclose(moved, share * np.array([-2.0, 4.0]), rtol=1e-5)


def test_one_step_moves_the_shift_by_the_gradient_of_cross_entropy():
    """Features (1, 1) of class 0 under the identity: p = (1/2, 1/2), so z moves by -(p - y) / 2."""
    view = ClientView(broadcast(NETWORK, (1.0, 1.0)), personal=shift(0.0, 0.0))
    result = build().client_update(view, examples([[1.0, 1.0]], [0]), trainer(steps=1), rng(3))
    np.testing.assert_allclose(result.personal[CLIENT_MEAN], [0.25, -0.25], rtol=1e-6)


def test_the_first_round_sends_the_mean_of_the_features():
    data = drawn(12)
    result = build().client_update(
        ClientView(broadcast(NETWORK), personal=shift(0.0, 0.0)), data, trainer(), rng(3)
    )
    assert not result.personal[CLIENT_MEAN].any()
    weight, bias = (
        NETWORK[f"extractor.fc.{n}"] + result.update[f"extractor.fc.{n}"]
        for n in ("weight", "bias")
    )
    features = np.maximum(ROOT * data.arrays["features"] @ weight.T + bias, 0.0)
    np.testing.assert_allclose(result.update[FEATURE_MEAN], features.mean(0), rtol=1e-5)


def test_with_a_consensus_the_mean_is_sent_no_more_and_the_shift_is_trained():
    view = ClientView(broadcast(NETWORK, (0.5, 0.5)), personal=shift(0.0, 0.0))
    # A small step: with the usual one all features die, and their mean with them.
    result = build().client_update(view, drawn(12), trainer(learning_rate=0.01), rng(3))
    assert not result.update[FEATURE_MEAN].any()
    assert result.personal[CLIENT_MEAN].all()


def test_the_server_takes_the_first_mean_as_consensus_for_good():
    method = build()
    state = method.init_server(rng(3))
    assert not state[HAS_CONSENSUS].any()
    changes = {n: np.full(s.shape, 0.5) for n, s in method.shared_spec().items()}
    aggregate = partial(Aggregate, total_weight=4.0, cohort_size=2, population=2)
    first = method.server_update(
        state, aggregate({**changes, FEATURE_MEAN: np.array([3.0, 4.0])}), (), rng(3)
    )
    np.testing.assert_array_equal(first[CONSENSUS], [3.0, 4.0])
    second = method.server_update(
        first, aggregate({**changes, FEATURE_MEAN: np.array([7.0, 7.0])}), (), rng(3)
    )
    np.testing.assert_array_equal(second[CONSENSUS], [3.0, 4.0])
    np.testing.assert_allclose(second["head.bias"], state["head.bias"] + 1.0, rtol=1e-6)
    assert first[HAS_CONSENSUS].tolist() == second[HAS_CONSENSUS].tolist() == [1]

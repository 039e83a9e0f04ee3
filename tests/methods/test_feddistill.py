"""FedDistill: what a row teaches, by hand, and what is left of it without rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, feddistill
from methods.feddistill import FedDistill
from methods.networks.class_tables import KNOWN, PRESENCE, TABLE
from tests.methods._tiny_networks import arrays, one_example, tiny
from tests.methods._training import RecordingTrainer, rng, trainer


def build(given: int = 3, width: int = 4, **options) -> FedDistill:
    return tiny(FedDistill, feddistill, given, width, **options)


def table(rows, known):
    return {TABLE: np.array(rows, np.float32), KNOWN: np.array(known, np.float32)}


def network(*logits: float):
    """Its logits are always these."""
    return arrays(fc_weight=[[0]], fc_bias=[0], weight=[[0], [0]], bias=logits)


def loss_of(method, parameters, label: int) -> float:
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([label])}
    return method.objective(ClientView({})).losses(tensors, {}, batch).item()


def test_a_row_as_it_is_by_hand():
    """Logits (2, 0) have logarithms -0.126928 and -2.126928; with (1, -1) they make -2.

    Of class 0 the cross-entropy is 0.126928.
    """
    method = build(1, 1, target="logits")
    parameters = {**network(2, 0), **table([[1, -1], [9, 9]], [1, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(0.126928 - 2.0, abs=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_the_divergence_by_hand(gamma):
    """Row (ln 3, 0) is (3/4, 1/4), the output (1/2, 1/2): 3/4 ln 3/2 + 1/4 ln 1/2 = 0.130812.

    The other way round it would be 0.143841.
    """
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert divergence == pytest.approx(0.130812, abs=1e-6)
    method = build(1, 1, distillation_weight=gamma)
    parameters = {**network(4, 4), **table([[9, 9], [math.log(3), 0]], [1, 1])}
    expected = math.log(2) + gamma * divergence
    assert loss_of(method, parameters, 1) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("target", ["softmax", "logits"])
def test_a_class_without_a_row_is_not_taught(target):
    method = build(1, 1, target=target)
    parameters = {**network(0, 0), **table([[5, 0], [0, 5]], [0, 1])}
    assert loss_of(method, parameters, 0) == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("target", "taught"), [("softmax", [0.25, -0.25]), ("logits", [math.log(3) / 2] * 2)]
)
def test_a_step_by_hand(target, taught):
    """Output (1/2, 1/2), class 1, row (ln 3, 0); eta = 0.4.

    Cross-entropy has the gradient (1/2, -1/2), the divergence q - p = (-1/4, 1/4), and the row as
    it is (sum of row) q - row = (ln 3)/2 - (ln 3, 0).
    """
    sign = {"softmax": (-1, -1), "logits": (-1, 1)}[target]
    gradient = np.array([0.5, -0.5]) + np.array(taught) * sign
    learner = trainer(steps=1, learning_rate=0.4)
    view = ClientView(table([[9, 9], [math.log(3), 0]], [1, 1]), (), network(0, 0))
    method = build(1, 1, target=target)
    own = method.client_update(view, one_example(label=1), learner, rng()).personal
    np.testing.assert_allclose(own["head.bias"], -0.4 * gradient, atol=1e-6)


def test_a_client_sends_mean_logits_of_its_classes():
    """f = relu(x), logits (f, 2f + 1): of 1 and 3 in class 1 (2, 5), over the root of two."""
    method = build(1, 1)
    own = arrays(fc_weight=[[1]], fc_bias=[0], weight=[[1], [2]], bias=[0, 1])
    data = Examples({"features": np.array([[1], [3]], np.float32), "labels": np.ones(2, np.int64)})
    view = ClientView(method.init_server(rng()), (), own)
    sent = method.client_update(view, data, RecordingTrainer(), rng()).update
    assert {n: v.shape for n, v in sent.items()} == {"logits": (2, 2), PRESENCE: (2,)}
    assert set(sent) == set(method.shared_spec())
    expected = np.array([[0, 0], [2, 5]]) / math.sqrt(2)
    np.testing.assert_allclose(sent["logits"], expected, atol=1e-6)
    assert sent[PRESENCE].tolist() == [0, 1]

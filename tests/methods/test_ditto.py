"""Ditto: a step of the personal network by hand, and that the global one is FedAvg's."""

from __future__ import annotations

import numpy as np

from methods import ClientView, Examples, Task, ditto
from methods.ditto import OWN, Ditto
from tests.methods._tiny_networks import arrays, one_example, tiny
from tests.methods._training import rng, trainer

CLASSES = ("no", "yes")


def build(weight: float, given: int = 3, width: int = 4, **options) -> Ditto:
    return tiny(Ditto, ditto, given, width, proximal_weight=weight, **options)


def whole_batch(steps: int):
    return trainer(steps=steps, batch_size=100, learning_rate=0.25)


def own(network):
    return {OWN + name: value for name, value in network.items()}


def network_of_bias(*bias: float):
    """Features are zero, so the logits are the head's bias, and it alone has a gradient."""
    return arrays(fc_weight=[[0]], fc_bias=[0], weight=[[0], [0]], bias=bias)


def test_a_step_by_hand():
    """v = 2, w = 1, gradient 1/2, lambda = 1, eta = 0.1: 2 - 0.1 (1/2 + 1) = 1.85.

    Equal biases give each class one half; label 1 has the gradients 1/2 and -1/2.
    """
    learner = trainer(steps=1, learning_rate=0.1)
    view = ClientView(network_of_bias(1, 1), personal=own(network_of_bias(2, 2)))
    result = build(1.0, 1, 1).client_update(view, one_example(label=1), learner, rng())
    np.testing.assert_allclose(result.personal[OWN + "head.bias"], [1.85, 1.95], atol=1e-6)
    np.testing.assert_allclose(result.update["head.bias"], [-0.05, 0.05], atol=1e-6)
    assert not result.update["extractor.fc.weight"].any()


def test_decoupled_the_personal_network_comes_last():
    network = {"network": "fasttext", "buckets": 30, "feature_width": 4}
    config = ditto.Config(**network, personal_rounds=2)
    method = ditto.build(config, Task(CLASSES, (), 2, decoupled=True))
    last = method.init_server(rng(1))
    data = Examples({"words": rng(3).integers(0, 30, (10, 6)), "labels": rng(4).integers(0, 2, 10)})
    assert method.client_update(ClientView(last), data, whole_batch(2), rng(2)).personal == {}
    learner = whole_batch(2)
    personal = method.personalise(ClientView(last), data, learner, rng(2))
    assert [report.steps for report in learner.reports] == [4]
    assert any((personal[OWN + name] != value).any() for name, value in last.items())

"""FedRep: each of its two steps is FedPer's, and the steps are shared out between them."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, fedper, fedrep
from methods.fedper import FedPer
from methods.fedrep import FedRep
from tests.methods._tiny_networks import arrays, counting, one_example, some_examples, tiny
from tests.methods._training import rng, trainer

HEAD = ("head.weight", "head.bias")
BODY = ("extractor.fc.weight", "extractor.fc.bias")


def build(**options) -> FedRep:
    return tiny(FedRep, fedrep, 3, 4, **options)


def plain() -> FedPer:
    return tiny(FedPer, fedper, 3, 4)


def begin(seed: int = 1):
    return plain().init_server(rng(seed)), plain().init_client(rng(seed), rng())


def test_a_round_by_hand():
    """Feature 1 and a zero head: rate 1 moves its weights to (1/2, -1/2), its biases likewise.

    The logits are (1, -1) then, so label 0 has probability s = 1 / (1 + e^-2), and the gradient
    for the feature is (s - 1) 1/2 - (1 - s) 1/2 = s - 1 = -0.119203.
    """
    method = tiny(FedRep, fedrep)
    body = arrays(fc_weight=[[1]], fc_bias=[0])
    head = arrays(weight=[[0], [0]], bias=[0, 0])
    learner = trainer(steps=2, batch_size=1, learning_rate=1.0)
    result = method.client_update(ClientView(body, personal=head), one_example(), learner, rng())
    np.testing.assert_allclose(result.personal["head.weight"], [[0.5], [-0.5]], atol=1e-6)
    np.testing.assert_allclose(result.personal["head.bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(result.update["extractor.fc.weight"], [[0.119203]], atol=1e-6)
    np.testing.assert_allclose(result.update["extractor.fc.bias"], [0.119203], atol=1e-6)
    assert set(result.update) == set(BODY)


@pytest.mark.parametrize(
    ("share", "plan", "on_head", "on_body"),
    [
        (10 / 11, {"local_epochs": 11}, 10, 1),
        (0.5, {"local_epochs": 2, "batch_size": 4}, 3, 3),
        (0.01, {"local_steps": 4}, 1, 3),
        (0.99, {"local_steps": 4}, 3, 1),
    ],
)
def test_steps_are_shared_out(share, plan, on_head, on_body):
    """Head first; both together take the configured amount, and each at least one."""
    body, head = begin()
    learner = counting(**plan)
    view = ClientView(body, personal=head)
    build(head_share=share).client_update(view, some_examples(10, 3), learner, rng())
    (first, before), (second, after) = learner.fits
    assert (set(first), before) == (set(HEAD), on_head)
    assert (set(second), after) == (set(BODY), on_body)

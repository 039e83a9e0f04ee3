"""FedProx: FedAvg's step, and a pull back to where the round began."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import ClientView, fedavg, fedprox
from methods.fedavg import FedAvg
from methods.fedprox import FedProx
from tests.methods._tiny_networks import moved, one_example, some_examples, tiny
from tests.methods._training import RecordingTrainer, rng, trainer


def build(mu: float, given: int = 3, width: int = 4) -> FedProx:
    return tiny(FedProx, fedprox, given, width, mu=mu)


def plain(given: int = 3, width: int = 4) -> FedAvg:
    return tiny(FedAvg, fedavg, given, width)


def whole_batch(steps: int, clipping: float | None = None):
    return trainer(steps=steps, batch_size=100, learning_rate=0.25, clipping=clipping)


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_the_second_step_is_fedavgs_from_there_and_the_pull(clipping):
    """w2 = w1 - eta g(w1) - eta mu (w1 - w0), each example's clip being of g alone."""
    mu, eta = 1.5, 0.25
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    both = build(mu).client_update(ClientView(state), data, whole_batch(2, clipping), rng(2)).update
    first = plain().client_update(ClientView(state), data, whole_batch(1, clipping), rng(2)).update
    there = ClientView(moved(state, first))
    second = plain().client_update(there, data, whole_batch(1, clipping), rng(2)).update
    for name in state:
        expected = first[name] + second[name] - eta * mu * first[name]
        np.testing.assert_allclose(both[name], expected, atol=1e-6)
        # Each layer, body and head, is pulled.
        assert np.abs(eta * mu * first[name]).max() > 1e-4


def test_the_term_by_hand():
    """mu = 1/2, differences 1, 2, -2, 1/2 and -1/2: (1 + 4 + 4 + 1/4 + 1/4) / 4 = 2.375."""
    method = tiny(FedProx, fedprox, mu=0.5)
    state = method.init_server(rng(1))
    noted = RecordingTrainer()
    method.client_update(ClientView(state), one_example(), noted, rng())
    away = {
        "extractor.fc.weight": [[1.0]],
        "extractor.fc.bias": [2.0],
        "head.weight": [[-2.0], [0.0]],
        "head.bias": [0.5, -0.5],
    }
    parameters = {name: torch.tensor(state[name]) + torch.tensor(d) for name, d in away.items()}
    assert float(noted.penalty(parameters, {})) == pytest.approx(2.375, abs=1e-5)
    still = {name: torch.tensor(value) for name, value in state.items()}
    assert float(noted.penalty(still, {})) == 0.0

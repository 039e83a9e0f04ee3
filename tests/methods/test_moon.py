"""MOON: the contrastive term by hand, and what the three networks of a round are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, moon
from methods.moon import COMMON, PREVIOUS, Moon, contrastive_losses
from tests.methods._tiny_networks import arrays, moved, one_example, some_examples, tiny
from tests.methods._training import RecordingTrainer, rng, trainer


def build(given: int = 3, width: int = 4, **options) -> Moon:
    return tiny(Moon, moon, given, width, **{"projection": "none", **options})


def rows(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_contrastive_loss_by_hand():
    """tau = 1/2; sims (1, 0), (1, -1), (0, 1), (3/5, 4/5) and twice the same."""
    z = rows([1, 0], [1, 0], [0, 2], [1, 0], [1, 1])
    near = rows([2, 0], [1, 0], [5, 0], [3, 4], [1, 2])
    far = rows([0, 3], [-1, 0], [0, 1], [4, 3], [1, 2])
    expected = [
        -math.log(math.exp(2) / (math.exp(2) + 1)),
        -math.log(math.exp(2) / (math.exp(2) + math.exp(-2))),
        -math.log(1 / (1 + math.exp(2))),
        -math.log(math.exp(1.2) / (math.exp(1.2) + math.exp(1.6))),
        math.log(2),
    ]
    got = contrastive_losses(z, near, far, 0.5)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    assert got[0].item() == pytest.approx(0.126928, abs=1e-6)


def three_networks() -> dict[str, torch.Tensor]:
    """z = (1, 0) as under the last network, and (0, 1) under the broadcast; zero heads."""
    mine = arrays(fc_weight=[[1], [0]], fc_bias=[0, 0], weight=np.zeros((2, 2)), bias=[0, 0])
    common = {**mine, **arrays(fc_weight=[[0], [1]])}
    named = {
        **mine,
        **{COMMON + name: value for name, value in common.items()},
        **{PREVIOUS + name: value for name, value in mine.items()},
    }
    return {name: torch.tensor(value) for name, value in named.items()}


def test_the_loss_by_hand():
    """log 2 for two equal classes, and mu = 2 times log(1 + e^2) = 2.126928."""
    method = build(1, 2, mu=2.0)
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([0])}
    losses = method.objective(ClientView({})).losses(three_networks(), {}, batch)
    assert losses.item() == pytest.approx(math.log(2) + 2 * 2.126928, abs=1e-5)


def test_the_representation_is_that_of_the_projection_head():
    """2 layers by hand: features (1, 0) to (1, 2), cut to (1, 2) by ReLU, to 1 - 2 = -1."""
    method = build(1, 2, projection="mlp", projection_width=1)
    parameters = {
        **arrays(fc_weight=[[1], [-1]], fc_bias=[0, 0], weight=[[3], [0]], bias=[0.5, 0]),
        "projection.fc1.weight": np.array([[1, 5], [2, 5]], np.float32),
        "projection.fc1.bias": np.array([0, 0], np.float32),
        "projection.fc2.weight": np.array([[1, -1]], np.float32),
        "projection.fc2.bias": np.array([0], np.float32),
    }
    shapes = {name: spec.shape for name, spec in method.shared_spec().items()}
    assert shapes == {name: value.shape for name, value in parameters.items()}
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    assert method.features(tensors, {"features": torch.ones(1, 1)}).item() == -1.0
    logits = method.predict(ClientView(parameters), one_example().arrays, ("no", "yes"))
    np.testing.assert_allclose(logits, [[-2.5, 0.0]])


def test_what_was_trained_is_kept_for_the_next_round():
    method, data = build(mu=5.0), some_examples(10, 3)
    state = method.init_server(rng(1))
    first = method.client_update(ClientView(state), data, trainer(), rng(2))
    for name, value in state.items():
        np.testing.assert_array_equal(first.personal[PREVIOUS + name] - value, first.update[name])
    noted = RecordingTrainer()
    later = moved(state, {name: np.float32(1) for name in state})
    method.client_update(ClientView(later, personal=first.personal), data, noted, rng(2))
    for name in state:
        assert np.array_equal(noted.parameters[name], later[name])
        assert np.array_equal(noted.parameters[COMMON + name], later[name])
        assert np.array_equal(noted.parameters[PREVIOUS + name], first.personal[PREVIOUS + name])
    # Only the client's own network moves.
    assert set(noted.groups[0].names) == set(state) == set(method.shared_spec())


def test_features_are_drawn_to_the_broadcast_and_away_from_the_last():
    """One step on the term alone: the head is zero, so cross-entropy has no say below it."""
    method = build(1, 2, mu=1.0)
    state = arrays(fc_weight=[[3], [4]], fc_bias=[0, 0], weight=np.zeros((2, 2)), bias=[0, 0])
    last = {**state, **arrays(fc_weight=[[4], [3]])}
    personal = {PREVIOUS + name: value for name, value in last.items()}
    learner = trainer(steps=1, learning_rate=1.0)
    update = method.client_update(
        ClientView(state, personal=personal), one_example(), learner, rng()
    ).update
    # z = z_glob has cosine 1 to itself; cos(z, z_prev) = 24/25 falls along (4, 3)/5's projection
    # off z: (d/dz) cos = ((4, 3)/5 - 24/25 (3, 4)/5) / 5 = (28, -21) / 625. The step is minus
    # that times sigma((24/25 - 1) / tau) / tau.
    factor = 1 / (1 + math.exp(0.08)) / 0.5
    expected = -factor * np.array([[28.0], [-21.0]]) / 625
    np.testing.assert_allclose(update["extractor.fc.weight"], expected, atol=1e-6)

"""FedProx, Ditto, MOON and SCAFFOLD: FedAvg's steps with a term or a correction, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    ClientView,
    Examples,
    Task,
    Weighting,
    ditto,
    fedavg,
    fedprox,
    moon,
    scaffold,
)
from methods.ditto import OWN
from methods.moon import COMMON, PREVIOUS, contrastive_losses
from methods.scaffold import CONTROL
from tests.methods._tiny_networks import arrays, moved, one_example, some_examples, tiny
from tests.methods._training import RecordingTrainer, rng, trainer


def whole_batch(steps: int = 1, learning_rate: float = 0.1, clipping: float | None = None):
    return trainer(steps=steps, batch_size=100, learning_rate=learning_rate, clipping=clipping)


def fedavg_of() -> fedavg.FedAvg:
    return tiny(fedavg.FedAvg, fedavg, 3, 4)


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_the_second_step_is_fedavgs_from_there_and_the_pull(clipping):
    """w2 = w1 - eta g(w1) - eta mu (w1 - w0), each example's clip being of g alone."""
    mu, eta = 1.5, 0.25
    data, state = some_examples(10, 3), fedavg_of().init_server(rng(1))
    start, one, two = ClientView(state), *(whole_batch(n, 0.25, clipping) for n in (1, 2))
    method = tiny(fedprox.FedProx, fedprox, 3, 4, mu=mu)
    both = method.client_update(start, data, two, rng(2)).update
    first = fedavg_of().client_update(start, data, one, rng(2)).update
    there = ClientView(moved(state, first))
    second = fedavg_of().client_update(there, data, one, rng(2)).update
    for name in state:
        expected = first[name] + second[name] - eta * mu * first[name]
        np.testing.assert_allclose(both[name], expected, atol=1e-6)
        # Each layer, body and head, is pulled.
        assert np.abs(eta * mu * first[name]).max() > 1e-4


def test_fedproxs_term_by_hand():
    """mu = 1/2, differences 1, 2, -2, 1/2 and -1/2: (1 + 4 + 4 + 1/4 + 1/4) / 4 = 2.375."""
    method = tiny(fedprox.FedProx, fedprox, mu=0.5)
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


def network_of_bias(*bias: float):
    """Features are zero, so the logits are the head's bias, and it alone has a gradient."""
    return arrays(fc_weight=[[0]], fc_bias=[0], weight=[[0], [0]], bias=bias)


def test_dittos_step_by_hand():
    """v = 2, w = 1, gradient 1/2, lambda = 1, eta = 0.1: 2 - 0.1 (1/2 + 1) = 1.85.

    Equal biases give each class one half; label 1 has the gradients 1/2 and -1/2.
    """
    learner = trainer(steps=1, learning_rate=0.1)
    own = {OWN + name: value for name, value in network_of_bias(2, 2).items()}
    view = ClientView(network_of_bias(1, 1), personal=own)
    method = tiny(ditto.Ditto, ditto, proximal_weight=1.0)
    result = method.client_update(view, one_example(label=1), learner, rng())
    np.testing.assert_allclose(result.personal[OWN + "head.bias"], [1.85, 1.95], atol=1e-6)
    np.testing.assert_allclose(result.update["head.bias"], [-0.05, 0.05], atol=1e-6)
    assert not result.update["extractor.fc.weight"].any()


def test_decoupled_the_personal_network_comes_last():
    network = {"network": "fasttext", "buckets": 30, "feature_width": 4}
    config = ditto.Config(**network, personal_rounds=2)
    method = ditto.build(config, Task(("no", "yes"), (), 2, decoupled=True))
    last = method.init_server(rng(1))
    data = Examples({"words": rng(3).integers(0, 30, (10, 6)), "labels": rng(4).integers(0, 2, 10)})
    assert method.client_update(ClientView(last), data, whole_batch(2, 0.25), rng(2)).personal == {}
    learner = whole_batch(2, 0.25)
    personal = method.personalise(ClientView(last), data, learner, rng(2))
    assert list(map(len, learner.fitted)) == [4]
    assert any((personal[OWN + name] != value).any() for name, value in last.items())


def moon_of(given: int = 3, width: int = 4, **options) -> moon.Moon:
    return tiny(moon.Moon, moon, given, width, **{"projection": "none", **options})


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


def test_moons_loss_by_hand():
    """log 2 for two equal classes, and mu = 2 times log(1 + e^2) = 2.126928."""
    method = moon_of(1, 2, mu=2.0)
    batch = {"features": torch.ones(1, 1), "labels": torch.tensor([0])}
    losses = method.objective(ClientView({})).losses(three_networks(), {}, batch)
    assert losses.item() == pytest.approx(math.log(2) + 2 * 2.126928, abs=1e-5)


def test_the_representation_is_that_of_the_projection_head():
    """2 layers by hand: features (1, 0) to (1, 2), cut to (1, 2) by ReLU, to 1 - 2 = -1."""
    method = moon_of(1, 2, projection="mlp", projection_width=1)
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
    method, data = moon_of(mu=5.0), some_examples(10, 3)
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
    method = moon_of(1, 2, mu=1.0)
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


LAYERS = ("extractor.fc.weight", "extractor.fc.bias", "head.weight", "head.bias")


def scaffold_of(given: int = 3, width: int = 4, **options) -> scaffold.Scaffold:
    return tiny(scaffold.Scaffold, scaffold, given, width, **options)


def controls(value: float, like) -> dict[str, np.ndarray]:
    return {CONTROL + name: np.full_like(like[name], value) for name in LAYERS}


def of_one_feature() -> dict[str, np.ndarray]:
    """w = 1, b = 0 and a zero head: the feature of 1 is 1, and both classes are as likely.

    For label 0 the gradient is (-1/2, 1/2) for the head's bias and its weight, and 0 below.
    """
    return arrays(fc_weight=[[1]], fc_bias=[0], weight=[[0], [0]], bias=[0, 0])


@pytest.mark.parametrize("option", ["first", "second"])
def test_scaffolds_step_by_hand(option):
    """With c_i = 0.3 and c = 0.1 the head's bias moves by -0.1 (-+1/2 - 0.3 + 0.1)."""
    method, model = scaffold_of(1, 1, control=option), of_one_feature()
    view = ClientView({**model, **controls(0.1, model)}, personal=controls(0.3, model))
    result = method.client_update(view, one_example(), whole_batch(), rng())
    np.testing.assert_allclose(result.update["head.bias"], [0.07, -0.03], atol=1e-7)
    np.testing.assert_allclose(result.update["head.weight"], [[0.07], [-0.03]], atol=1e-7)
    np.testing.assert_allclose(result.update["extractor.fc.weight"], [[0.02]], atol=1e-7)
    # After one step on all data both options give the gradient at x.
    np.testing.assert_allclose(result.personal[CONTROL + "head.bias"], [-0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(result.personal[CONTROL + "extractor.fc.bias"], [0.0], atol=1e-6)
    # What is sent is c_i+ - c_i.
    np.testing.assert_allclose(result.update[CONTROL + "head.bias"], [-0.8, 0.2], atol=1e-6)


@pytest.mark.parametrize(
    ("amount", "count"), [({"steps": 3}, 3), ({"steps": None, "epochs": 2}, 6)]
)
def test_the_control_is_the_mean_gradient_of_all_steps(amount, count):
    """c_i = c = 0: c_i+ = (x - y) / (K eta), K being all steps of all epochs."""
    data, model = some_examples(11, 3), fedavg_of().init_server(rng(1))
    learner = trainer(**amount, learning_rate=0.25)  # batches of 5: three an epoch
    view = ClientView({**model, **controls(0, model)}, personal=controls(0, model))
    mine = scaffold_of().client_update(view, data, learner, rng(2))
    other = fedavg_of().client_update(ClientView(model), data, learner, rng(2)).update
    for name in LAYERS:
        np.testing.assert_allclose(mine.update[name], other[name], atol=1e-7)
        expected = -other[name] / (count * 0.25)
        np.testing.assert_allclose(mine.personal[CONTROL + name], expected, atol=1e-6)


def test_option_one_is_the_gradient_of_all_data_where_the_round_began(monkeypatch):
    """Whatever the steps were, and in pieces as at once."""
    data, method = some_examples(10, 3), scaffold_of(control="first")
    state = method.init_server(rng(1))
    personal = method.init_client(rng(1), rng(2))
    seen = []
    for at_once in (256, 3):
        monkeypatch.setattr(scaffold, "ROWS", at_once)
        view = ClientView(state, personal=personal)
        seen.append(method.client_update(view, data, trainer(steps=4), rng(3)).personal)
    step = fedavg_of().client_update(ClientView(state), data, whole_batch(1, 0.5), rng()).update
    for name in LAYERS:
        for kept in seen:
            np.testing.assert_allclose(kept[CONTROL + name], -step[name] / 0.5, atol=1e-6)


def test_scaffolds_server_by_hand():
    """eta_g = 2 and a mean of 0.5 move x by 1; of four clients' 6 c takes a quarter."""
    method = scaffold_of(1, 1, server_rate=2.0)
    model = of_one_feature()
    state = {**model, **controls(1, model)}
    means = {name: np.full_like(model[name], 0.5) for name in LAYERS}
    sums = {CONTROL + name: np.full_like(model[name], 6.0) for name in LAYERS}
    after = method.server_update(state, Aggregate({**means, **sums}, 2.0, 2, 4), (), rng())
    assert set(after) == set(state)
    for name in LAYERS:
        np.testing.assert_allclose(after[name], model[name] + 1.0)
        np.testing.assert_allclose(after[CONTROL + name], 2.5)


def test_networks_are_averaged_plainly_and_controls_summed():
    rules = {name: spec.weighting for name, spec in scaffold_of().shared_spec().items()}
    assert rules == {
        **{name: Weighting.UNIFORM for name in LAYERS},
        **{CONTROL + name: Weighting.SUM for name in LAYERS},
    }

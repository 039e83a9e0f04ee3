"""SCAFFOLD: corrected steps and control variates, by numbers of Algorithm 1 worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, Weighting, fedavg, scaffold
from methods.fedavg import FedAvg
from methods.scaffold import CONTROL, Scaffold
from tests.methods._tiny_networks import arrays, one_example, some_examples, tiny
from tests.methods._training import rng, trainer

LAYERS = ("extractor.fc.weight", "extractor.fc.bias", "head.weight", "head.bias")


def build(given: int = 3, width: int = 4, **options) -> Scaffold:
    return tiny(Scaffold, scaffold, given, width, **options)


def plain(given: int = 3, width: int = 4) -> FedAvg:
    return tiny(FedAvg, fedavg, given, width)


def whole_batch(steps: int = 1, learning_rate: float = 0.1):
    return trainer(steps=steps, batch_size=100, learning_rate=learning_rate)


def controls(value: float, like) -> dict[str, np.ndarray]:
    return {CONTROL + name: np.full_like(like[name], value) for name in LAYERS}


def of_one_feature() -> dict[str, np.ndarray]:
    """w = 1, b = 0 and a zero head: the feature of 1 is 1, and both classes are as likely.

    For label 0 the gradient is (-1/2, 1/2) for the head's bias and its weight, and 0 below.
    """
    return arrays(fc_weight=[[1]], fc_bias=[0], weight=[[0], [0]], bias=[0, 0])


@pytest.mark.parametrize("option", ["first", "second"])
def test_a_step_by_hand(option):
    """With c_i = 0.3 and c = 0.1 the head's bias moves by -0.1 (-+1/2 - 0.3 + 0.1)."""
    method, model = build(1, 1, control=option), of_one_feature()
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
    data, model = some_examples(11, 3), plain().init_server(rng(1))
    learner = trainer(**amount, learning_rate=0.25)  # batches of 5: three an epoch
    view = ClientView({**model, **controls(0, model)}, personal=controls(0, model))
    mine = build().client_update(view, data, learner, rng(2))
    other = plain().client_update(ClientView(model), data, learner, rng(2)).update
    for name in LAYERS:
        np.testing.assert_allclose(mine.update[name], other[name], atol=1e-7)
        expected = -other[name] / (count * 0.25)
        np.testing.assert_allclose(mine.personal[CONTROL + name], expected, atol=1e-6)


def test_option_one_is_the_gradient_of_all_data_where_the_round_began(monkeypatch):
    """Whatever the steps were, and in pieces as at once."""
    data, method = some_examples(10, 3), build(control="first")
    state = method.init_server(rng(1))
    personal = method.init_client(rng(1), rng(2))
    seen = []
    for at_once in (256, 3):
        monkeypatch.setattr(scaffold, "AT_ONCE", at_once)
        view = ClientView(state, personal=personal)
        seen.append(method.client_update(view, data, trainer(steps=4), rng(3)).personal)
    step = plain().client_update(ClientView(state), data, whole_batch(1, 0.5), rng()).update
    for name in LAYERS:
        for kept in seen:
            np.testing.assert_allclose(kept[CONTROL + name], -step[name] / 0.5, atol=1e-6)


def test_the_server_by_hand():
    """eta_g = 2 and a mean of 0.5 move x by 1; of four clients' 6 c takes a quarter."""
    method = build(1, 1, server_rate=2.0)
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
    rules = {name: spec.weighting for name, spec in build().shared_spec().items()}
    assert rules == {
        **{name: Weighting.UNIFORM for name in LAYERS},
        **{CONTROL + name: Weighting.SUM for name in LAYERS},
    }

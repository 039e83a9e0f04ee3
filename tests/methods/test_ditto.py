"""Ditto: a step of the personal network by hand, and that the global one is FedAvg's."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, Examples, Task, ditto, fedavg
from methods.ditto import OWN, Ditto
from methods.fedavg import FedAvg
from privacy import SeededNoise
from privacy.training import DpSgd, LocalTrainer, TrainingPlan
from privacy.training.provenance import require_released
from tests.methods._tiny_networks import arrays, counting, moved, one_example, some_examples, tiny
from tests.methods._training import trainer

CLASSES = ("no", "yes")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(weight: float, given: int = 3, width: int = 4, **options) -> Ditto:
    return tiny(Ditto, ditto, given, width, proximal_weight=weight, **options)


def plain(given: int = 3, width: int = 4) -> FedAvg:
    return tiny(FedAvg, fedavg, given, width)


def whole_batch(steps: int):
    return trainer(steps=steps, batch_size=100, learning_rate=0.25)


def own(network):
    return {OWN + name: value for name, value in network.items()}


def far_from(state):
    """Another network, which no training led to."""
    drawn = rng(9)
    return {n: (v + drawn.normal(size=v.shape)).astype(np.float32) for n, v in state.items()}


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


@pytest.mark.parametrize("clipping", [None, 0.3])
@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_the_global_network_is_fedavgs_bit_for_bit(weight, clipping):
    """Whatever the personal one is."""
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    expected = plain().client_update(ClientView(state), data, trainer(clipping=clipping), rng(2))
    for personal in ({}, own(far_from(state))):
        view = ClientView(state, personal=personal)
        got = build(weight).client_update(view, data, trainer(clipping=clipping), rng(2))
        assert set(got.update) == set(expected.update)
        assert all(np.array_equal(got.update[n], v) for n, v in expected.update.items())


@pytest.mark.parametrize("clipping", [None, 0.3])
def test_without_lambda_the_personal_network_is_trained_by_the_client_alone(clipping):
    """Three rounds, in which the global network is anything: as if there were no federation."""
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    alone, personal = state, {}
    for number in range(3):
        sent = state if number == 0 else far_from(state)
        view = ClientView(sent, personal=personal)
        learner = trainer(clipping=clipping)
        personal = build(0.0).client_update(view, data, learner, rng(number)).personal
        step = plain().client_update(ClientView(alone), data, learner, rng(number)).update
        # What FedAvg trained, of which it tells the change.
        for name, value in alone.items():
            np.testing.assert_allclose(personal[OWN + name], value + step[name], atol=1e-6)
        alone = {name: personal[OWN + name] for name in state}


def test_two_steps_are_fedavgs_and_the_pull():
    """v' = v - eta (g(v) + lambda (v - w)), twice, w being what was broadcast both times."""
    weight, eta = 1.5, 0.25
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    start = now = far_from(state)
    for _ in range(2):
        step = plain().client_update(ClientView(now), data, whole_batch(1), rng(2)).update
        pull = {name: -eta * weight * (now[name] - state[name]) for name in state}
        now = {name: now[name] + step[name] + pull[name] for name in state}
    view = ClientView(state, personal=own(start))
    got = build(weight).client_update(view, data, whole_batch(2), rng(2)).personal
    for name in state:
        np.testing.assert_allclose(got[OWN + name], now[name], atol=1e-5)


def test_both_networks_see_the_same_batches():
    """From the same start a first step, where there is nothing to pull, ends at the same."""
    data, state = some_examples(20, 3), plain().init_server(rng(1))
    result = build(5.0).client_update(ClientView(state), data, trainer(steps=1), rng(2))
    for name, value in state.items():
        np.testing.assert_allclose(
            result.personal[OWN + name] - value, result.update[name], atol=1e-7
        )
        assert result.update[name].any()


def test_the_personal_network_may_take_more_steps():
    learner = counting(local_steps=3)
    method, state = build(1.0, personal_rounds=2), plain().init_server(rng(1))
    method.client_update(ClientView(state), some_examples(10, 3), learner, rng())
    assert [steps for _, steps in learner.fits] == [3, 6]


def private(norm: float, noise: float) -> LocalTrainer:
    mechanism = DpSgd(
        noise_multiplier=noise,
        clipping_norm=norm,
        sampling_probability=1.0,
        steps=3,
        expected_batch_size=10.0,
    )
    plan = TrainingPlan(local_steps=1, batch_size=1, learning_rate=0.25)
    return LocalTrainer(plan, dp_sgd=mechanism, noise=SeededNoise(rng(7)))


def test_private_steps_are_taken_together_and_are_all_that_is_kept_or_sent():
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    view = ClientView(state, personal=own(far_from(state)))
    learner = private(1.0, 1.0)
    result = build(1.0).client_update(view, data, learner, rng())
    assert [report.steps for report in learner.reports] == [3]
    known = (view.broadcast, view.personal)
    require_released(result.update, learner.released, known)
    require_released(result.personal, learner.released, known, part="personal state")


def test_under_a_bound_that_binds_nobody_one_fit_is_two():
    """Noise of next to nothing, and a norm that no gradient reaches: as without privacy."""
    data, state = some_examples(10, 3), plain().init_server(rng(1))
    view = ClientView(state, personal=own(far_from(state)))
    together = build(1.5).client_update(view, data, private(1e3, 1e-9), rng())
    apart = build(1.5).client_update(view, data, whole_batch(3), rng())
    for name in state:
        np.testing.assert_allclose(together.update[name], apart.update[name], atol=1e-5)
        mine, other = together.personal[OWN + name], apart.personal[OWN + name]
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_decoupled_the_rounds_are_fedavgs_and_the_personal_network_comes_last():
    config = ditto.Config(network="fasttext", buckets=30, feature_width=4, personal_rounds=2)
    method = ditto.build(config, Task(CLASSES, (), 2, decoupled=True))
    simple = fedavg.Config(network="fasttext", buckets=30, feature_width=4)
    whole = fedavg.build(simple, Task(CLASSES, (), 2))
    state = method.init_server(rng(1))
    words = rng(3).integers(0, 30, (10, 6))
    data = Examples({"words": words, "labels": rng(4).integers(0, 2, 10)})
    result = method.client_update(ClientView(state), data, whole_batch(2), rng(2))
    assert result.personal == {}
    expected = whole.client_update(ClientView(state), data, whole_batch(2), rng(2)).update
    assert all(np.array_equal(result.update[name], value) for name, value in expected.items())
    last = moved(state, result.update)
    learner = whole_batch(2)
    personal = method.personalise(ClientView(last), data, learner, rng(2))
    assert [report.steps for report in learner.reports] == [4]
    assert any((personal[OWN + name] != value).any() for name, value in last.items())


def test_joint_training_leaves_nothing_for_the_end():
    state = plain().init_server(rng(1))
    view = ClientView(state, personal=own(far_from(state)))
    personal = build(1.0).personalise(view, some_examples(10, 3), whole_batch(2), rng())
    assert personal is view.personal


def test_the_personal_network_predicts_and_the_global_one_where_there_is_none():
    data, state = some_examples(5, 3), plain().init_server(rng(1))
    other = far_from(state)
    for personal, network in (({}, state), (own(other), other)):
        got = build(1.0).predict(ClientView(state, personal=personal), data.arrays, CLASSES)
        expected = plain().predict(ClientView(network), data.arrays, CLASSES)
        np.testing.assert_array_equal(got, expected)

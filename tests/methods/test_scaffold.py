"""SCAFFOLD: corrected steps and control variates, by numbers of Algorithm 1 worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Aggregate, ClientView, Examples, Weighting, fedavg, scaffold
from methods.fedavg import FedAvg
from methods.scaffold import CONTROL, Scaffold
from tests.methods._tiny_networks import arrays, moved, one_example, some_examples, tiny
from tests.methods._training import trainer

NAMES = ("ada", "ben", "cyd")
LAYERS = ("extractor.fc.weight", "extractor.fc.bias", "head.weight", "head.bias")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def test_with_equal_controls_it_is_fedavg():
    data, model = some_examples(10, 3), plain().init_server(rng(1))
    view = ClientView({**model, **controls(1, model)}, personal=controls(1, model))
    mine = build().client_update(view, data, trainer(), rng(2)).update
    other = plain().client_update(ClientView(model), data, trainer(), rng(2)).update
    for name in LAYERS:
        np.testing.assert_allclose(mine[name], other[name], atol=1e-7)


def test_the_correction_points_away_from_the_others():
    """y <- y - eta (g - c_i + c): one step is eta (c_i - c) further, in every layer."""
    data, model = some_examples(10, 3), plain().init_server(rng(1))
    updates = []
    for own, common in ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0)):
        view = ClientView({**model, **controls(common, model)}, personal=controls(own, model))
        updates.append(build().client_update(view, data, whole_batch(1, 0.25), rng(2)).update)
    for name in LAYERS:
        np.testing.assert_allclose(updates[1][name] - updates[0][name], 0.5, atol=1e-6)
        np.testing.assert_allclose(updates[2][name] - updates[0][name], -0.5, atol=1e-6)


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


def play(method: Scaffold, cohorts, learner, sizes=(8, 8, 8)):
    """Rounds of Algorithm 1 with real clients; returns the server's state and the clients'."""
    state = method.init_server(rng(1))
    personal = {name: method.init_client(rng(1), rng(2)) for name in NAMES}
    for number, cohort in enumerate(cohorts):
        updates = []
        for name in cohort:
            i = NAMES.index(name)
            view = ClientView(method.broadcast(state, name), (), personal[name])
            data = some_examples(sizes[i], 3, seed=i)
            result = method.client_update(view, data, learner, rng(number))
            personal[name] = result.personal
            updates.append(result.update)
        rules = method.shared_spec()
        combined = {
            n: sum(u[n] for u in updates)
            / (1 if rules[n].weighting is Weighting.SUM else len(updates))
            for n in rules
        }
        aggregate = Aggregate(combined, 24.0, len(cohort), len(NAMES))
        state = method.server_update(state, aggregate, (), rng())
    return state, personal


@pytest.mark.parametrize("option", ["first", "second"])
@pytest.mark.parametrize("cohorts", [[NAMES] * 3, [NAMES[:1], NAMES[1:], NAMES[::2]]])
def test_the_servers_control_is_the_mean_of_all_clients(option, cohorts):
    """Also of those who stayed away: c = 1/N sum c_i after every round."""
    state, personal = play(build(control=option), cohorts, trainer(learning_rate=0.2))
    for name in LAYERS:
        mean = sum(personal[n][CONTROL + name] for n in NAMES) / 3
        np.testing.assert_allclose(state[CONTROL + name], mean, atol=1e-6)
        assert np.abs(mean).max() > 1e-3


def test_many_local_steps_do_not_drift():
    """Where FedAvg stops, off the joint optimum, SCAFFOLD's joint gradient is far smaller.

    The body is dead (its features are zero), so that the loss is convex in the head's bias: one
    client has label 0 alone but for one in ten, the other half and half.
    """
    labels = (np.array([0] * 9 + [1]), np.array([0, 1] * 5))
    model = arrays(fc_weight=[[0]], fc_bias=[-1], weight=[[0], [0]], bias=[0, 0])
    learner = whole_batch(8, 1.0)
    slopes = {}
    for name, method in (("scaffold", build(1, 1)), ("fedavg", plain(1, 1))):
        state = {**method.init_server(rng()), **model}
        personal = [method.init_client(rng(), rng()) for _ in labels]
        for _ in range(30):
            results = [
                method.client_update(ClientView(state, personal=own), biased(each), learner, rng())
                for own, each in zip(personal, labels, strict=True)
            ]
            personal = [result.personal for result in results]
            total = {n: sum(r.update[n] for r in results) for n in results[0].update}
            value = {n: v if n.startswith(CONTROL) else v / 2 for n, v in total.items()}
            state = method.server_update(state, Aggregate(value, 20.0, 2, 2), (), rng())
        slopes[name] = np.abs(joint_slope(state["head.bias"], np.concatenate(labels))).max()
    assert slopes["scaffold"] < 1e-5
    assert slopes["fedavg"] > 1e-2


def biased(labels: np.ndarray) -> Examples:
    return Examples({"features": np.ones((len(labels), 1), np.float32), "labels": labels})


def joint_slope(bias: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Gradient of the mean cross-entropy of a constant prediction, by its bias."""
    tensor = torch.tensor(bias, requires_grad=True)
    rows = tensor.expand(len(labels), 2)
    functional.cross_entropy(rows, torch.tensor(labels)).backward()
    return tensor.grad.numpy()


def test_it_starts_without_controls_and_refuses_noised_steps():
    method = build()
    state = method.init_server(rng(1))
    assert all(np.array_equal(state[n], v) for n, v in plain().init_server(rng(1)).items())
    kept = method.init_client(rng(1), rng(2))
    assert set(kept) == {CONTROL + name for name in LAYERS}
    assert not any(value.any() for value in kept.values())
    assert not any(state[name].any() for name in kept)
    assert method.units == {"client"}


def test_it_predicts_as_fedavg_from_the_same_network():
    method, data = build(), some_examples(5, 3)
    state = method.init_server(rng(1))
    got = method.predict(ClientView(state), data.arrays, ("yes", "no"))
    np.testing.assert_array_equal(
        got, plain().predict(ClientView(moved(state, {})), data.arrays, ("yes", "no"))
    )

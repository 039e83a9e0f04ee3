"""FedPer, FedRep, FedBABU and LG-FedAvg: FedAvg's network in two parts, of which one stays."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, MethodError, fedavg, fedbabu, fedper, fedrep, lg_fedavg
from tests.methods._tiny_networks import arrays, counting, one_example, some_examples, tiny
from tests.methods._training import newcomer, rng, trainer

HEAD = ("head.weight", "head.bias")
BODY = ("extractor.fc.weight", "extractor.fc.bias")


def test_a_round_of_fedrep_by_hand():
    """Feature 1 and a zero head: rate 1 moves its weights to (1/2, -1/2), its biases likewise.

    The logits are (1, -1) then, so label 0 has probability s = 1 / (1 + e^-2), and the gradient
    for the feature is (s - 1) 1/2 - (1 - s) 1/2 = s - 1 = -0.119203.
    """
    method = tiny(fedrep.FedRep, fedrep)
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
def test_fedreps_steps_are_shared_out(share, plan, on_head, on_body):
    """Head first; both together take the configured amount, and each at least one."""
    learner, method = counting(**plan), tiny(fedrep.FedRep, fedrep, 3, 4, head_share=share)
    method.client_update(newcomer(method), some_examples(10, 3), learner, rng())
    (first, before), (second, after) = learner.fits
    assert (set(first), before) == (set(HEAD), on_head)
    assert (set(second), after) == (set(BODY), on_body)


CHOICES = {"head": HEAD, "body": BODY, "all": (*BODY, *HEAD)}


def babu(**options) -> fedbabu.FedBabu:
    return tiny(fedbabu.FedBabu, fedbabu, 3, 4, **options)


def fedavg_of() -> fedavg.FedAvg:
    return tiny(fedavg.FedAvg, fedavg, 3, 4)


def test_the_head_is_drawn_once_for_all_and_never_moves_in_rounds():
    body, head = babu().init_server(rng(1)), babu().init_client(rng(1), rng())
    other = babu().init_client(rng(1), rng(99))
    assert set(head) == set(HEAD)
    assert all(np.array_equal(head[name], other[name]) for name in HEAD)
    assert all(head[name].any() for name in HEAD)
    state, personal = body, head
    for number in range(3):
        view = ClientView(state, personal=personal)
        result = babu().client_update(view, some_examples(10, 3), trainer(), rng(number))
        assert set(result.update) == set(BODY)
        assert all(result.update[name].any() for name in BODY)
        state = babu().server_update(state, Aggregate(result.update, 10.0, 1, 1), (), rng())
        personal = result.personal
        assert set(personal) == set(HEAD)
        assert all(np.array_equal(personal[name], head[name]) for name in HEAD)


def test_a_round_and_fine_tuning_of_fedbabu_by_hand():
    """Head (1, -1) without biases on feature 1: label 0 has probability s = 1 / (1 + e^-2).

    The body's gradient is 2 (s - 1) = -0.238406. Fine-tuning starts from the last broadcast, and
    the head's gradient there is (s - 1) (1, -1) = (-0.119203, 0.119203).
    """
    method = tiny(fedbabu.FedBabu, fedbabu, fine_tuning_rounds=1)
    body = arrays(fc_weight=[[1]], fc_bias=[0])
    head = arrays(weight=[[1], [-1]], bias=[0, 0])
    view = ClientView(body, personal=head)
    learner = trainer(steps=1, batch_size=1, learning_rate=1.0)
    result = method.client_update(view, one_example(), learner, rng())
    np.testing.assert_allclose(result.update["extractor.fc.weight"], [[0.238406]], atol=1e-6)
    after = method.personalise(view, one_example(), learner, rng())
    assert set(after) == set(HEAD)
    np.testing.assert_allclose(after["head.weight"], [[1.119203], [-1.119203]], atol=1e-6)
    np.testing.assert_allclose(after["head.bias"], [0.119203, -0.119203], atol=1e-6)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_fine_tuned_and_what_is_held(choice):
    """Those layers move as in FedAvg's step, the others stay; a changed body is the client's."""
    data, method = some_examples(10, 3), babu(fine_tune=choice, fine_tuning_rounds=1)
    view, learner = newcomer(method), trainer(steps=1, batch_size=100)
    body, head = view.broadcast, view.personal
    after = method.personalise(view, data, learner, rng(2))
    assert set(after) == {*HEAD, *CHOICES[choice]}
    model = {**body, **head}
    step = fedavg_of().client_update(ClientView(model), data, learner, rng(2)).update
    expected = {name: model[name] + step[name] * (name in CHOICES[choice]) for name in model}
    for name, value in after.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)
        assert (value != model[name]).any() == (name in CHOICES[choice])
    got = method.predict(ClientView(body, personal=after), data.arrays, ("yes", "no"))
    whole = fedavg_of().predict(ClientView(expected), data.arrays, ("yes", "no"))
    np.testing.assert_allclose(got, whole, atol=1e-5)


PARTS = (
    (tiny(lg_fedavg.LgFedAvg, lg_fedavg, 3, 4), HEAD),
    (tiny(fedper.FedPer, fedper, 3, 4), BODY),
)


@pytest.mark.parametrize(("method", "sent"), PARTS, ids=["lg_fedavg", "fedper"])
@pytest.mark.parametrize("clipping", [None, 0.3])
def test_one_client_trains_fedavgs_network(method, sent, clipping):
    """Both parts together, clipped together; only one part's change is sent."""
    data, model = some_examples(10, 3), fedavg_of().init_server(rng(1))
    shared = {name: model[name] for name in sent}
    own = {name: value for name, value in model.items() if name not in sent}
    with pytest.raises(MethodError, match="client: none"):
        method.predict(ClientView(shared), data.arrays, ("no", "yes"))
    for _ in range(2):
        mine = method.client_update(
            ClientView(shared, personal=own), data, trainer(clipping=clipping), rng(2)
        )
        other = fedavg_of().client_update(
            ClientView(model), data, trainer(clipping=clipping), rng(2)
        )
        assert set(mine.update) == set(sent)
        for name in shared:
            np.testing.assert_allclose(mine.update[name], other.update[name], atol=1e-6)
        for name in own:
            moved = mine.personal[name] - own[name]
            np.testing.assert_allclose(moved, other.update[name], atol=1e-6)
            assert other.update[name].any()
        aggregate = Aggregate(mine.update, 10.0, 1, 1)
        shared, own = method.server_update(shared, aggregate, (), rng()), mine.personal
        model = {**shared, **own}

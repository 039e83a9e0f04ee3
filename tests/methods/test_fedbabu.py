"""FedBABU: a head that waits until the rounds are over, and what is fine-tuned then."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, fedavg, fedbabu
from methods.fedavg import FedAvg
from methods.fedbabu import FedBabu
from tests.methods._tiny_networks import arrays, one_example, some_examples, tiny
from tests.methods._training import rng, trainer

HEAD = ("head.weight", "head.bias")
BODY = ("extractor.fc.weight", "extractor.fc.bias")
CHOICES = {"head": HEAD, "body": BODY, "all": (*BODY, *HEAD)}


def build(**options) -> FedBabu:
    return tiny(FedBabu, fedbabu, 3, 4, **options)


def plain() -> FedAvg:
    return tiny(FedAvg, fedavg, 3, 4)


def begin(seed: int = 1):
    return build().init_server(rng(seed)), build().init_client(rng(seed), rng())


def whole_batch(steps: int):
    return trainer(steps=steps, batch_size=100, learning_rate=0.5)


def test_the_head_is_drawn_once_for_all_and_never_moves_in_rounds():
    body, head = begin()
    other = build().init_client(rng(1), rng(99))
    assert set(head) == set(HEAD)
    assert all(np.array_equal(head[name], other[name]) for name in HEAD)
    assert all(head[name].any() for name in HEAD)
    state, personal = body, head
    for number in range(3):
        view = ClientView(state, personal=personal)
        result = build().client_update(view, some_examples(10, 3), trainer(), rng(number))
        assert set(result.update) == set(BODY)
        assert all(result.update[name].any() for name in BODY)
        state = build().server_update(state, Aggregate(result.update, 10.0, 1, 1), (), rng())
        personal = result.personal
        assert set(personal) == set(HEAD)
        assert all(np.array_equal(personal[name], head[name]) for name in HEAD)


def test_a_round_and_fine_tuning_by_hand():
    """Head (1, -1) without biases on feature 1: label 0 has probability s = 1 / (1 + e^-2).

    The body's gradient is 2 (s - 1) = -0.238406. Fine-tuning starts from the last broadcast, and
    the head's gradient there is (s - 1) (1, -1) = (-0.119203, 0.119203).
    """
    method = tiny(FedBabu, fedbabu, fine_tuning_rounds=1)
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
    data, (body, head) = some_examples(10, 3), begin()
    method = build(fine_tune=choice, fine_tuning_rounds=1)
    view = ClientView(body, personal=head)
    after = method.personalise(view, data, whole_batch(1), rng(2))
    assert set(after) == {*HEAD, *CHOICES[choice]}
    model = {**body, **head}
    step = plain().client_update(ClientView(model), data, whole_batch(1), rng(2)).update
    expected = {name: model[name] + step[name] * (name in CHOICES[choice]) for name in model}
    for name, value in after.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)
        assert (value != model[name]).any() == (name in CHOICES[choice])
    got = method.predict(ClientView(body, personal=after), data.arrays, ("yes", "no"))
    whole = plain().predict(ClientView(expected), data.arrays, ("yes", "no"))
    np.testing.assert_allclose(got, whole, atol=1e-5)

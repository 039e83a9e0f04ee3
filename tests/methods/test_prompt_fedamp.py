"""PromptFL with FedAMP: the messages by hand, and what is left of them alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, MethodError, prompt_fedamp, prompt_fedprox
from methods.prompt_fedamp import attentive_messages
from methods.prompts.prompt import CONTEXT
from tests.methods._training import RecordingTrainer, rng, trainer

NAMES = ("ada", "ben", "cyd")


def build(task, **options):
    return prompt_fedamp.build(prompt_fedamp.Config(**{"context_tokens": 4, **options}), task)


def shown(**prompts) -> Aggregate:
    individual = {name: {CONTEXT: value} for name, value in prompts.items()}
    mean = np.mean(list(prompts.values()), axis=0)
    return Aggregate({CONTEXT: mean}, 3.0, len(prompts), 4, individual)


def test_messages_by_hand():
    """Squared distances ln 2 and "far": A' = exp(-ln 2) = 1/2, so weights 0.2 x 1/2 = 0.1."""
    near = math.sqrt(math.log(2.0))  # 0.832555
    prompts = np.array([[0.0], [near], [50.0]])
    got = attentive_messages(prompts, sigma=1.0, alpha=0.2)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near], [50.0]], rtol=1e-9)
    # sigma = 2, squared distance 2 ln 2: A' = exp(-ln 2) / 2 = 1/4, times alpha 0.4 is 0.1.
    near = math.sqrt(2 * math.log(2.0))
    got = attentive_messages(np.array([[0.0], [near]]), sigma=2.0, alpha=0.4)
    np.testing.assert_allclose(got, [[0.1 * near], [0.9 * near]], rtol=1e-9)


def test_each_client_is_sent_its_own_message(task):
    method = build(task, sigma=1.0, alpha=0.1)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    near, far = np.full((4, 32), 0.01, np.float32), np.full((4, 32), 3.0, np.float32)
    after = method.server_update(state, shown(ada=near, ben=2 * near, cyd=far), (), rng())
    sent = {name: method.broadcast(after, name)[CONTEXT] for name in NAMES}
    # ||w_ada - w_ben||^2 = 128 x 0.01^2 = 0.0128: weight 0.1 exp(-0.0128) = 0.0987282.
    np.testing.assert_allclose(sent["ada"], 0.01 + 0.0987282 * 0.01, rtol=1e-5)
    np.testing.assert_allclose(sent["ben"], 0.02 - 0.0987282 * 0.01, rtol=1e-5)
    # The others are 128 x 2.98^2 away: nothing of them reaches it.
    np.testing.assert_array_equal(sent["cyd"], far)
    # Who never took part gets the first prompt.
    np.testing.assert_array_equal(method.broadcast(after, "dee")[CONTEXT], state[CONTEXT])


def test_updates_are_differences_to_each_clients_own_message(task):
    method = build(task, alpha=0.0)
    state = {CONTEXT: np.zeros((4, 32), np.float32)}
    one = np.ones((4, 32), np.float32)
    state = method.server_update(state, shown(ada=one, ben=5 * one), (), rng())
    after = method.server_update(state, shown(ada=one), (), rng())
    np.testing.assert_array_equal(method.broadcast(after, "ada")[CONTEXT], 2 * one)
    # Ben was not in that round: his message stays.
    np.testing.assert_array_equal(method.broadcast(after, "ben")[CONTEXT], 5 * one)


def rounds_alone(method, examples, count=3):
    """One client's own rounds; returns its last state, as the server keeps it."""
    state, personal, batches = method.init_server(rng(1)), {}, rng(3)
    for _ in range(count):
        result = method.client_update(
            ClientView(method.broadcast(state, "ada"), (), personal), examples, trainer(), batches
        )
        seen = {"ada": result.update}
        aggregate = Aggregate(result.update, 10.0, 1, 1, seen)
        state, personal = method.server_update(state, aggregate, (), rng()), result.personal
    return method.broadcast(state, "ada")[CONTEXT]


def test_one_client_is_fedprox(task, examples):
    """Its message is its own prompt, so lambda / alpha_k is FedProx's mu."""
    method = build(task, proximal_weight=0.7)
    prox = prompt_fedprox.build(prompt_fedprox.Config(context_tokens=4, mu=0.7), task)
    free = build(task, proximal_weight=0.0)
    got = rounds_alone(method, examples)
    assert np.array_equal(got, rounds_alone(prox, examples))
    assert np.abs(got - rounds_alone(free, examples)).max() > 1e-4


@pytest.mark.parametrize(
    # 128 differences of 0.5: the square is 32, the norm sqrt(32) = 5.656854; weight 2, half of it.
    ("proximal", "value"),
    [("squared", 32.0), ("norm", 5.656854)],
)
def test_the_penalty_by_hand(task, examples, proximal, value):
    method, recorder = build(task, proximal=proximal, proximal_weight=2.0), RecordingTrainer()
    message = {CONTEXT: np.full((4, 32), 0.25, np.float32)}
    method.client_update(ClientView(message), examples, recorder, rng())
    there = {CONTEXT: torch.full((4, 32), 0.75)}
    assert float(recorder.penalty(there, {})) == pytest.approx(value, rel=1e-6)


def test_a_step_that_is_too_large_is_refused(task):
    with pytest.raises(MethodError, match=r"method\.alpha: 0\.34 .*clients = 4: 0 to 0\.333333"):
        build(task, alpha=0.34)

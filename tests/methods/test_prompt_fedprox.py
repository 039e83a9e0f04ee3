"""PromptFL with FedProx: the proximal term, and what is left when there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, coop, prompt_fedprox, promptfl
from methods.prompts.prompt import CONTEXT
from tests.methods._double import numeric_gradient
from tests.methods._training import RecordingTrainer, trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return prompt_fedprox.build(prompt_fedprox.Config(**{"context_tokens": 4, **options}), task)


def plain(task):
    return promptfl.build(promptfl.Config(context_tokens=4), task)


def update(method, start, examples, learner, seed=3):
    broadcast = {CONTEXT: start}
    return method.client_update(ClientView(broadcast), examples, learner, rng(seed)).update[CONTEXT]


def penalty_of(method, examples, start):
    recorder = RecordingTrainer()
    method.client_update(ClientView({CONTEXT: start}), examples, recorder, rng())
    return recorder.penalty


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_without_mu_it_is_promptfl_bit_for_bit(task, examples, clipping):
    method, other = build(task, mu=0.0), plain(task)
    start = method.init_server(rng(1))[CONTEXT]
    assert np.array_equal(start, other.init_server(rng(1))[CONTEXT])
    mine = update(method, start, examples, trainer(clipping=clipping))
    assert np.array_equal(mine, update(other, start, examples, trainer(clipping=clipping)))
    assert mine.any()


def test_the_penalty_by_hand(task, examples):
    """mu = 2 and a difference of 0.5 in each of 4 x 32 places: 2 / 2 x 128 x 0.25 = 32."""
    start = np.full((4, 32), 0.25, np.float32)
    penalty = penalty_of(build(task, mu=2.0), examples, start)
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.75)}, {})) == pytest.approx(32.0)
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.25)}, {})) == 0.0


def test_the_penalty_s_gradient_by_finite_differences(task, examples):
    start = rng(1).normal(size=(4, 32)).astype(np.float32)
    penalty = penalty_of(build(task, mu=0.7), examples, start)
    here = {CONTEXT: rng(2).normal(size=(4, 32))}

    def loss(values):
        return penalty({CONTEXT: torch.as_tensor(values[CONTEXT])}, {})

    leaf = torch.tensor(here[CONTEXT], requires_grad=True)
    loss({CONTEXT: leaf}).backward()
    places = [(0, 0), (1, 9), (3, 31)]
    slopes = numeric_gradient(loss, here, CONTEXT, places)
    np.testing.assert_allclose([float(leaf.grad[p]) for p in places], slopes, rtol=1e-6)


def test_the_second_step_by_hand(task, examples):
    """w2 = w1 - eta (g(w1) + mu (w1 - w0)); w1 and w1 - eta g(w1) are steps of PromptFL."""
    rate, mu = 0.5, 0.6
    start = build(task).init_server(rng(1))[CONTEXT]
    one = trainer(steps=1, batch_size=10, learning_rate=rate)
    first = start + update(plain(task), start, examples, one)
    free = first + update(plain(task), first, examples, one)
    two = trainer(steps=2, batch_size=10, learning_rate=rate)
    got = start + update(build(task, mu=mu), start, examples, two)
    np.testing.assert_allclose(got, free - rate * mu * (first - start), atol=1e-6)
    assert np.abs(got - free).max() > 1e-3


def test_a_larger_mu_stays_nearer(task, examples):
    start = build(task).init_server(rng(1))[CONTEXT]
    moved = [
        np.linalg.norm(update(build(task, mu=mu), start, examples, trainer(steps=6)))
        for mu in (0.0, 0.3, 1.0)
    ]
    assert moved == sorted(moved, reverse=True)


def test_one_client_with_one_step_a_round_is_centralised_training(task, examples):
    """At the round's prompt the term has no slope, so any mu gives plain training there."""
    method = build(task, mu=0.9)
    state = method.init_server(rng(1))
    start, whole = {CONTEXT: state[CONTEXT]}, trainer(steps=1, batch_size=10)
    for _ in range(3):
        result = method.client_update(ClientView(state), examples, whole, rng())
        state = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    central = coop.build(coop.Config(context_tokens=4), task)
    learner = trainer(steps=3, batch_size=10)
    alone = central.client_update(ClientView({}, personal=start), examples, learner, rng())
    np.testing.assert_allclose(state[CONTEXT], alone.personal[CONTEXT], atol=1e-5)


def test_it_keeps_nothing_and_predicts_with_the_global_prompt(task, examples):
    method = build(task)
    state = method.init_server(rng(1))
    assert not method.has_personal_state
    np.testing.assert_array_equal(
        method.predict(ClientView(state), examples.arrays, task.classes),
        plain(task).predict(ClientView(state), examples.arrays, task.classes),
    )

"""PromptFL with FedProx: the proximal term, and what is left when there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods import ClientView, prompt_fedprox, promptfl
from methods.prompts.prompt import CONTEXT
from tests.methods._training import RecordingTrainer, rng, trainer


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


def test_the_penalty_by_hand(task, examples):
    """mu = 2 and a difference of 0.5 in each of 4 x 32 places: 2 / 2 x 128 x 0.25 = 32."""
    start = np.full((4, 32), 0.25, np.float32)
    penalty = penalty_of(build(task, mu=2.0), examples, start)
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.75)}, {})) == pytest.approx(32.0)
    assert float(penalty({CONTEXT: torch.full((4, 32), 0.25)}, {})) == 0.0


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

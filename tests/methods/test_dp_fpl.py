"""DP-FPL: Eq. 4 by hand, its steps against plain ones, and what its stated noise is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, dp_fpl, promptfl
from methods.dp_fpl import LOCAL, local_gradient, stated_deviation
from methods.prompts.prompt import CONTEXT
from privacy.accounting.gaussian import epsilon_at
from tests.methods._training import rng, trainer

DELTA = 1e-5


def build(task, **options):
    return dp_fpl.build(dp_fpl.Config(**{"context_tokens": 4, "rank": 2, **options}), task)


def started(method):
    personal = method.init_client(rng(2), rng(3))
    return ClientView(method.init_server(rng(1)), personal=personal)


def gradients():
    """u = (1, 0)^T, v = (0, 1) and G = ((3, 4), (5, 6)): G v^T and u^T G."""
    left, right = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    whole = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    return left, right, (whole @ right.T, left.T @ whole)


def test_equation_4_by_hand():
    left, right, (by_left, by_right) = gradients()
    np.testing.assert_array_equal(by_left, [[4.0], [6.0]])
    np.testing.assert_array_equal(by_right, [[3.0, 4.0]])
    got = local_gradient(left, right, (by_left, by_right), "paper")
    np.testing.assert_array_equal(got, [[3.0, 4.0], [0.0, 6.0]])


def test_the_published_code_by_hand():
    """((3, 12), (0, 6)) before it is divided by ten."""
    left, right, by = gradients()
    got = local_gradient(left, right, by, "published")
    np.testing.assert_allclose(got, [[0.3, 1.2], [0.0, 0.6]], rtol=1e-6)


def test_the_shared_prompt_sees_the_sum_of_both(task, examples):
    """Whatever the factors, its step is PromptFL's from p_G + p_L."""
    method = build(task)
    view = started(method)
    learner = trainer(steps=1, batch_size=10)
    got = method.client_update(view, examples, learner, rng()).update[CONTEXT]
    other = promptfl.build(promptfl.Config(context_tokens=4), task)
    both = ClientView({CONTEXT: view.broadcast[CONTEXT] + view.personal[LOCAL]})
    expected = other.client_update(both, examples, learner, rng()).update[CONTEXT]
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("sign", ["paper", "published"])
def test_with_all_factors_the_personal_prompt_takes_the_whole_step(task, examples, sign):
    """k = l = 4: u u^T is one, so Eq. 4 is u nabla_v = G, and as published (2 G v^T v + G) / 10."""
    method = build(task, rank=4, sign=sign)
    view = started(method)
    result = method.client_update(view, examples, trainer(steps=1, batch_size=10), rng())
    change = result.personal[LOCAL] - view.personal[LOCAL]
    step = result.update[CONTEXT]
    if sign == "paper":
        np.testing.assert_allclose(change, step, rtol=2e-3, atol=1e-5)
        return
    right = np.linalg.svd(view.personal[LOCAL], full_matrices=False)[2]
    np.testing.assert_allclose(change, 0.1 * (step + 2 * step @ right.T @ right), atol=1e-4)


@pytest.mark.parametrize(
    ("stated", "rounds", "sensitivity", "worth"),
    [
        # One tensor, and three clipped together, by the paper's own sensitivity.
        (0.4, 1, 1.0, 0.408),
        (0.4, 1, math.sqrt(3), 0.742),
        # A batch of 32, of which one example may change the whole clipped gradient: 2C = 20.
        (0.4, 1, 64.0, 59.8),
        # Ten batches in each of 100 rounds.
        (0.4, 10, 64.0, 385.0),
    ],
)
def test_what_the_stated_noise_is_worth(stated, rounds, sensitivity, worth):
    """By the exact profile of Gaussian noise, which knows nothing of the formula."""
    deviation = stated_deviation(stated, DELTA, rounds=100, batch=32)
    assert stated_deviation(0.4, DELTA, rounds=100, batch=32) == pytest.approx(26.51, abs=0.01)
    mu = sensitivity * (10.0 / 32) * math.sqrt(100 * rounds) / deviation
    assert epsilon_at(mu, DELTA) == pytest.approx(worth, rel=0.005)

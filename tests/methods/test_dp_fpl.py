"""DP-FPL: Eq. 4 by hand, its steps against plain ones, and what its stated noise is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, MethodError, Weighting, dp_fpl, promptfl
from methods.dp_fpl import LOCAL, factors, local_gradient, stated_deviation
from methods.prompts.prompt import CONTEXT
from privacy.accounting.gaussian import epsilon_at
from tests.methods._training import trainer

DELTA = 1e-5


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def test_the_gradient_is_projected_on_what_the_factors_span():
    """Eq. 4 of orthonormal factors is G less what neither factor reaches."""
    prompt, whole = (
        torch.tensor(rng(1).normal(size=(6, 9))),
        torch.tensor(rng(2).normal(size=(6, 9))),
    )
    left, right = factors(prompt, torch.tensor(rng(3).normal(size=(9, 2))))
    got = local_gradient(left, right, (whole @ right.T, left.T @ whole), "paper")
    off_left = torch.eye(6, dtype=torch.float64) - left @ left.T
    off_right = torch.eye(9, dtype=torch.float64) - right.T @ right
    np.testing.assert_allclose(got, whole - off_left @ whole @ off_right, atol=1e-12)


def test_factors_are_orthonormal_and_span_a_prompt_of_their_rank():
    prompt = torch.tensor(rng(1).normal(size=(6, 2)) @ rng(2).normal(size=(2, 9)))
    left, right = factors(prompt, torch.tensor(rng(3).normal(size=(9, 2))))
    np.testing.assert_allclose(left.T @ left, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(right @ right.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(left @ left.T @ prompt @ right.T @ right, prompt, atol=1e-12)


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


def test_several_steps_go_on_from_each_other(task, examples):
    """Two steps in one round are two rounds of one step, p_G being moved on in between."""
    method = build(task, rank=4)
    view = started(method)
    both = method.client_update(view, examples, trainer(steps=2, batch_size=10), rng())
    one = method.client_update(view, examples, trainer(steps=1, batch_size=10), rng())
    shared = view.broadcast[CONTEXT] + one.update[CONTEXT]
    second = method.client_update(
        ClientView({CONTEXT: shared}, personal=one.personal),
        examples,
        trainer(steps=1, batch_size=10),
        rng(7),
    )
    np.testing.assert_allclose(both.personal[LOCAL], second.personal[LOCAL], atol=1e-5)


def test_a_client_predicts_with_both(task, examples):
    method = build(task)
    view = started(method)
    whole = ClientView({CONTEXT: view.broadcast[CONTEXT] + view.personal[LOCAL]})
    got = method.predict(view, examples.arrays, task.classes)
    np.testing.assert_array_equal(got, method.predict(whole, examples.arrays, task.classes))
    assert method.shared_spec()[CONTEXT].weighting is Weighting.UNIFORM


@pytest.mark.parametrize(
    ("stated", "rounds", "sensitivity", "worth"),
    [
        # One tensor, and three clipped together, by the paper's own sensitivity.
        (0.4, 1, 1.0, 0.408),
        (0.4, 1, math.sqrt(3), 0.742),
        # A batch of 32, of which one example may change the whole clipped gradient: 2C = 20.
        (0.4, 1, 64.0, 59.8),
        (0.1, 1, 64.0, 9.30),
        # Ten batches in each of 100 rounds.
        (0.4, 10, 64.0, 385.0),
        (0.1, 10, 64.0, 42.5),
    ],
)
def test_what_the_stated_noise_is_worth(stated, rounds, sensitivity, worth):
    """By the exact profile of Gaussian noise, which knows nothing of the formula."""
    deviation = stated_deviation(stated, DELTA, rounds=100, batch=32)
    assert stated_deviation(0.4, DELTA, rounds=100, batch=32) == pytest.approx(26.51, abs=0.01)
    mu = sensitivity * (10.0 / 32) * math.sqrt(100 * rounds) / deviation
    assert epsilon_at(mu, DELTA) == pytest.approx(worth, rel=0.005)


def test_more_factors_than_tokens(task):
    with pytest.raises(MethodError, match=r"method\.rank: 5 .* 4 x 32 has; valid: 1 to 4"):
        build(task, rank=5)

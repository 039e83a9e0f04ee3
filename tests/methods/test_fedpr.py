"""FedPR: the projection by hand and by eigenvectors, steps that keep away, and its reductions."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, fedpr, promptfl
from methods.fedpr import LEARNED, projection
from methods.prompts.prompt import CONTEXT
from tests.methods._training import rng, trainer


def build(task, **options):
    return fedpr.build(fedpr.Config(**{"context_tokens": 4, **options}), task)


def sent(start, learned):
    return ClientView({CONTEXT: start, LEARNED: np.full(1, learned, np.float32)})


def update(method, start, examples, *, learned=1.0, seed=3, **options):
    view = sent(start, learned)
    return method.client_update(view, examples, trainer(**options), rng(seed)).update[CONTEXT]


def plain(task, start, examples, **options):
    method = promptfl.build(promptfl.Config(context_tokens=4), task)
    view = ClientView({CONTEXT: start})
    return method.client_update(view, examples, trainer(**options), rng(3)).update[CONTEXT]


def test_one_direction_by_hand():
    """d = 6 and rho = 0.8: int(1.2) = 1 direction goes, T = diag(0, 1, 1, 1, 1, 1) / sqrt 5."""
    matrix = projection(np.array([[1.0, 0, 0, 0, 0, 0]]), 0.8)
    step = np.array([1.0, 2, 2, 2, 2, 2]) @ matrix
    np.testing.assert_allclose(step, [0.0] + [0.894427] * 5, atol=1e-6)


def test_it_is_the_eigenvectors_of_the_square():
    """Oracle: eigenvectors of p^T p, the largest left out, as the published code has it."""
    prompt = rng().normal(size=(6, 12))
    _, vectors = np.linalg.eigh(prompt.T @ prompt)
    kept = vectors[:, : 12 - 3]
    expected = kept @ kept.T / np.linalg.norm(kept @ kept.T)
    np.testing.assert_allclose(projection(prompt, 0.75), expected, atol=1e-10)
    assert np.linalg.norm(projection(prompt, 0.75)) == pytest.approx(1.0)


def test_one_step_is_the_plain_one_projected(task, examples):
    method = build(task, share=0.9)
    start = method.init_server(rng(1))[CONTEXT]
    once = plain(task, start, examples, steps=1)
    expected = once @ projection(start, 0.9)
    np.testing.assert_allclose(
        update(method, start, examples, steps=1), expected, rtol=1e-3, atol=1e-7
    )


def test_many_steps_leave_what_is_spanned(task, examples):
    """4 tokens of width 32 span 4 directions; 0.8 lets 6 go, so the change is off all of them."""
    method = build(task, normalise=False)
    start = method.init_server(rng(1))[CONTEXT]
    change = update(method, start, examples, steps=5)
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(start @ change.T, 0.0, atol=1e-6)


def test_the_server_says_that_something_is_learned(task):
    method = build(task)
    state = method.init_server(rng(1))
    assert not state[LEARNED].any()
    change = {CONTEXT: np.ones((4, 32), np.float32)}
    after = method.server_update(state, Aggregate(change, 1.0, 1, 1), (), rng())
    np.testing.assert_array_equal(after[CONTEXT], state[CONTEXT] + 1.0)
    assert after[LEARNED].all()

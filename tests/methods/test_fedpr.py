"""FedPR: the projection by hand and by eigenvectors, steps that keep away, and its reductions."""

from __future__ import annotations

import numpy as np
import pytest

from methods import Aggregate, ClientView, fedpr, promptfl
from methods.fedpr import LEARNED, projection
from methods.prompts.prompt import CONTEXT
from tests.methods._training import trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


def test_a_fifth_of_five_is_one():
    """int(5 (1 - 0.8)) is 0 in binary; one direction of five goes, and two of ten."""
    for width, count in ((5, 1), (10, 2)):
        prompt = np.diag(np.arange(width, 0.0, -1.0))[:3]
        allowed = projection(prompt, 0.8, normalise=False)
        expected = np.diag([0.0] * count + [1.0] * (width - count))
        np.testing.assert_allclose(allowed, expected, atol=1e-12)


def test_it_is_the_eigenvectors_of_the_square():
    """Oracle: eigenvectors of p^T p, the largest left out, as the published code has it."""
    prompt = rng().normal(size=(6, 12))
    _, vectors = np.linalg.eigh(prompt.T @ prompt)
    kept = vectors[:, : 12 - 3]
    expected = kept @ kept.T / np.linalg.norm(kept @ kept.T)
    np.testing.assert_allclose(projection(prompt, 0.75), expected, atol=1e-10)
    assert np.linalg.norm(projection(prompt, 0.75)) == pytest.approx(1.0)


def test_no_more_goes_than_the_prompt_spans():
    """Two of eight directions are spanned; which of the others come next, nobody could say."""
    prompt = rng().normal(size=(2, 8))
    allowed = projection(prompt, 0.25, normalise=False)
    assert np.trace(allowed) == pytest.approx(6.0)
    np.testing.assert_allclose(prompt @ allowed, 0.0, atol=1e-12)
    np.testing.assert_array_equal(projection(np.zeros((2, 8)), 0.25, normalise=False), np.eye(8))


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_round_one_is_promptfl_bit_for_bit(task, examples, clipping):
    method = build(task)
    start = method.init_server(rng(1))[CONTEXT]
    mine = update(method, start, examples, learned=0.0, clipping=clipping)
    assert np.array_equal(mine, plain(task, start, examples, clipping=clipping))


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


def test_with_all_directions_it_is_promptfl_again(task, examples):
    method = build(task, share=1.0, normalise=False)
    start = method.init_server(rng(1))[CONTEXT]
    np.testing.assert_allclose(
        update(method, start, examples), plain(task, start, examples), atol=1e-6
    )


def test_the_server_says_that_something_is_learned(task):
    method = build(task)
    state = method.init_server(rng(1))
    assert not state[LEARNED].any()
    change = {CONTEXT: np.ones((4, 32), np.float32)}
    after = method.server_update(state, Aggregate(change, 1.0, 1, 1), (), rng())
    np.testing.assert_array_equal(after[CONTEXT], state[CONTEXT] + 1.0)
    assert after[LEARNED].all()

"""CoOp: local prompt learning that carries on from round to round."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, coop, zero_shot
from methods.prompts.prompt import CONTEXT
from tests.methods._training import rng, trainer


def build(task, **options):
    return coop.build(coop.Config(**{"context_tokens": 4, **options}), task)


def test_rounds_carry_on(task, examples):
    """Three rounds of one epoch are one training of three epochs, to the bit."""
    method = build(task)
    start = method.init_client(rng(1), rng(2))
    batches, personal = rng(3), start
    for _ in range(3):
        result = method.client_update(
            ClientView({}, personal=personal), examples, trainer(epochs=1), batches
        )
        personal = result.personal
    at_once = method.client_update(
        ClientView({}, personal=start), examples, trainer(epochs=3), rng(3)
    )
    assert np.array_equal(personal[CONTEXT], at_once.personal[CONTEXT])
    assert np.abs(personal[CONTEXT] - start[CONTEXT]).max() > 1e-4


def test_the_random_context_has_the_spread_of_the_paper(task):
    context = build(task, context_tokens=16).init_client(rng(1), rng(2))[CONTEXT]
    assert context.shape == (16, 32)
    # 512 draws: the sample's deviation is within 15% of 0.02 at any reasonable odds.
    assert context.std() == pytest.approx(0.02, rel=0.15)
    assert abs(context.mean()) < 0.005


def test_a_context_of_words_predicts_as_those_words(task, examples):
    """With the words of a template as context, CoOp before training is zero-shot CLIP."""
    method = build(task, context_init="a photo of a")
    personal = method.init_client(rng(1), rng(2))
    words = zero_shot.build(zero_shot.Config("a photo of a {}."), task)
    np.testing.assert_allclose(
        method.predict(ClientView({}, personal=personal), examples.arrays, task.classes),
        words.predict(ClientView({}), examples.arrays, task.classes),
        atol=1e-4,
    )

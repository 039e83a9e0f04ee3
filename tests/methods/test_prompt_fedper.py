"""PromptFL with FedPer: a prompt in two parts is one prompt, of which one part is averaged."""

from __future__ import annotations

import numpy as np
import pytest

from methods import ClientView, prompt_fedper, promptfl
from methods.prompt_fedper import PERSONAL
from methods.prompts.prompt import CONTEXT
from tests.methods._training import rng


def build(task, **options):
    return prompt_fedper.build(prompt_fedper.Config(**{"context_tokens": 4, **options}), task)


def parts(method, seed: int = 1):
    return method.init_server(rng(seed)), method.init_client(rng(seed + 1), rng(seed + 2))


@pytest.mark.parametrize(
    ("tokens", "shared", "base"), [(4, None, 2), (5, None, 3), (1, None, 1), (4, 1, 1), (4, 4, 4)]
)
def test_the_split(task, tokens, shared, base):
    method = build(task, context_tokens=tokens, shared_tokens=shared)
    state, personal = parts(method)
    assert method.shared_spec()[CONTEXT].shape == state[CONTEXT].shape == (base, 32)
    assert personal[PERSONAL].shape == (tokens - base, 32)


def test_it_predicts_as_the_whole_prompt(task, examples):
    """Base first, personal part next to the class name."""
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    state, personal = parts(method)
    whole = {CONTEXT: np.concatenate((state[CONTEXT], personal[PERSONAL]))}
    turned = {CONTEXT: np.concatenate((personal[PERSONAL], state[CONTEXT]))}
    got = method.predict(ClientView(state, personal=personal), examples.arrays, ("circle", "moon"))
    expected, other = (
        plain.predict(ClientView(w), examples.arrays, ("circle", "moon")) for w in (whole, turned)
    )
    np.testing.assert_array_equal(got, expected)
    assert np.abs(got - other).max() > 1e-4

"""FedAPT: keys and their mixture by hand, its losses one by one, and its laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Aggregate, ClientView, Examples, Task, fedapt, promptfl
from methods.fedapt import KEYS, QUERY, Config, mixture, unlock
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._training import rng, trainer


@pytest.fixture
def three(task) -> Task:
    return dataclasses.replace(task, domains=("ink", "chalk", "neon"))


@pytest.fixture
def mixed(examples) -> Examples:
    """Examples of all three domains."""
    return Examples({**examples.arrays, "domains": rng(7).integers(0, 3, 10)})


def build(task: Task, **options):
    return fedapt.build(Config(**{"context_tokens": 4, **options}), task)


def draw_state(method, seed: int = 1, spread: float = 1.0) -> dict[str, np.ndarray]:
    """As at the start, but for a context of visible size."""
    context = rng(seed).normal(0, spread, (4, 32)).astype(np.float32)
    return {**method.init_server(rng(seed)), CONTEXT: context}


def test_unlocking_by_hand():
    prompts = unlock(torch.tensor([[2.0, -1.0]]), torch.tensor([[[0.5, 0.25]], [[0.0, 1.0]]]))
    np.testing.assert_allclose(prompts, [[[3.0, -1.25]], [[2.0, -2.0]]])


def test_the_mixture_by_hand():
    """Answers (3, 1): mean 2, unbiased variance 2, hence +-1/sqrt2; over sqrt2/ln3: +-ln3/2."""
    weights = mixture(torch.tensor([[3.0, 1.0]]), math.sqrt(2) / math.log(3.0))
    np.testing.assert_allclose(weights, [[0.75, 0.25]], rtol=1e-6)


def test_each_example_is_trained_under_its_own_domains_key(three, mixed):
    """Example by example: the prompt of its domain alone, and the domain's name."""
    method = build(three, domain_weight=0.7)
    state = {name: torch.tensor(value) for name, value in draw_state(method).items()}
    objective = method.training_objective()
    batch = {name: torch.tensor(value) for name, value in mixed.arrays.items()}
    with torch.no_grad():
        losses = objective.losses(state, objective.encode(state), batch)
        for row in range(10):
            image, domain = batch["features"][row], int(batch["domains"][row])
            prompt = state[CONTEXT] + state[CONTEXT] * state[KEYS][domain]
            text = method.encoder.text_features(prompt, three.classes)
            named = functional.cross_entropy(state[QUERY] @ image, batch["domains"][row])
            known = functional.cross_entropy(
                three.backbone.logit_scale * text @ image, batch["labels"][row]
            )
            torch.testing.assert_close(losses[row], known + 0.7 * named, rtol=1e-4, atol=1e-5)


def test_without_keys_it_is_promptfl(three, mixed):
    """k = 0 unlocks the meta prompt itself, and without its loss the query takes no part."""
    method = build(three, domain_weight=0.0)
    plain = promptfl.build(promptfl.Config(context_tokens=4), three)
    state = draw_state(method, spread=0.1)
    state[KEYS] = np.zeros_like(state[KEYS])
    mine = method.client_update(ClientView(state), mixed, trainer(), rng(3))
    other = plain.client_update(ClientView(state), mixed, trainer(), rng(3))
    np.testing.assert_allclose(mine.update[CONTEXT], other.update[CONTEXT], atol=1e-5)
    assert not mine.update[QUERY].any()
    np.testing.assert_allclose(
        method.predict(ClientView(state), mixed.arrays, three.classes),
        plain.predict(ClientView(state), mixed.arrays, three.classes),
        atol=1e-4,
    )


def test_the_keys_are_sent_but_stay_as_they_are(three, mixed):
    method = build(three)
    state = method.init_server(rng(1))
    result = method.client_update(ClientView(method.broadcast(state)), mixed, trainer(), rng())
    assert set(result.update) == set(method.shared_spec()) == {CONTEXT, QUERY}
    after = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    assert np.array_equal(after[KEYS], state[KEYS])


@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("classes", [("circle", "ring", "red square", "star"), ("house", "drop")])
def test_prediction_image_by_image(three, mixed, temperature, classes):
    method = build(three, temperature=temperature)
    state = draw_state(method)
    got = method.predict(ClientView(state), mixed.arrays, classes)
    for row, image in enumerate(mixed.arrays["features"].astype(np.float64)):
        answers = state[QUERY].astype(np.float64) @ image
        scores = (answers - answers.mean()) / answers.std(ddof=1) / temperature
        weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        key = sum(w * k for w, k in zip(weights, state[KEYS].astype(np.float64), strict=True))
        prompt = as_tensor((state[CONTEXT] * (1 + key)).astype(np.float32), three.backbone)
        with torch.no_grad():
            text = method.encoder.text_features(prompt, classes).numpy()
        np.testing.assert_allclose(got[row], three.backbone.logit_scale * text @ image, atol=2e-3)

"""FedAPT: keys and their mixture by hand, its losses one by one, and its laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import (
    Aggregate,
    ClientView,
    Examples,
    MethodError,
    Registry,
    Task,
    Weighting,
    fedapt,
    promptfl,
)
from methods.fedapt import (
    CONTEXTS_AT_ONCE,
    KEYS,
    QUERY,
    Config,
    mixture,
    unlock,
)
from methods.prompts.prompt import CONTEXT, as_tensor
from platform.config import MethodConfig
from platform.errors import ConfigError
from platform.experiment.method_building import validate_options
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

LOG3 = math.log(3.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


# --- keys ---------------------------------------------------------------------------------------


def test_unlocking_by_hand():
    prompts = unlock(torch.tensor([[2.0, -1.0]]), torch.tensor([[[0.5, 0.25]], [[0.0, 1.0]]]))
    np.testing.assert_allclose(prompts, [[[3.0, -1.25]], [[2.0, -2.0]]])


def test_the_mixture_by_hand():
    """Answers (3, 1): mean 2, unbiased variance 2, hence +-1/sqrt2; over sqrt2/ln3: +-ln3/2."""
    weights = mixture(torch.tensor([[3.0, 1.0]]), math.sqrt(2) / LOG3)
    np.testing.assert_allclose(weights, [[0.75, 0.25]], rtol=1e-6)


def test_the_mixture_against_numpy():
    answers = rng(2).normal(3.0, 5.0, (6, 4))
    centred = answers - answers.mean(axis=1, keepdims=True)
    scores = np.exp(centred / answers.std(axis=1, ddof=1, keepdims=True) / 0.7)
    expected = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(mixture(torch.tensor(answers), 0.7), expected, rtol=1e-10)


@pytest.mark.parametrize("answers", [[[5.0]], [[-0.1]], [[2.0, 2.0, 2.0]]])
def test_answers_that_are_all_alike_weigh_all_keys_alike(answers):
    size = len(answers[0])
    np.testing.assert_allclose(mixture(torch.tensor(answers), 0.01), [[1 / size] * size], rtol=1e-6)


def test_the_size_of_answers_does_not_matter():
    answers = torch.tensor(rng(2).normal(size=(6, 3)))
    torch.testing.assert_close(mixture(answers, 0.1), mixture(100 * answers, 0.1))


# --- losses -------------------------------------------------------------------------------------


def test_each_example_is_trained_under_its_own_domains_key(three, mixed):
    """Example by example: the prompt of its domain alone, and the domain's name."""
    method = build(three, domain_weight=0.7)
    state = {name: torch.tensor(value) for name, value in draw_state(method).items()}
    objective = method._objective(three.classes)
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


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_gradients_by_finite_differences(three, mixed, weight):
    precise = dataclasses.replace(three, backbone=double_backbone(three.backbone))
    method = build(precise, domain_weight=weight)
    objective = method._objective(three.classes)
    parameters = {n: v.astype(np.float64) for n, v in draw_state(method, spread=0.5).items()}
    leaves = {n: torch.tensor(value, requires_grad=True) for n, value in parameters.items()}
    mean_loss(objective, leaves, mixed).backward()
    places = {CONTEXT: [(0, 0), (2, 17), (3, 31)], QUERY: [(0, 0), (2, 99)]}
    for name, coordinates in places.items():
        slopes = numeric_gradient(
            lambda values: mean_loss(objective, values, mixed), parameters, name, coordinates
        )
        exact = [float(leaves[name].grad[place]) for place in coordinates]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-8)
    assert bool(leaves[QUERY].grad.any()) == (weight > 0)
    assert leaves[CONTEXT].grad.abs().max() > 1e-4


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_without_keys_it_is_promptfl(three, mixed, clipping):
    """k = 0 unlocks the meta prompt itself, and without its loss the query takes no part."""
    method, plain = build(three, domain_weight=0.0), promptfl.build(_plain(), three)
    state = draw_state(method, spread=0.1)
    state[KEYS] = np.zeros_like(state[KEYS])
    mine = method.client_update(ClientView(state), mixed, trainer(clipping=clipping), rng(3))
    other = plain.client_update(ClientView(state), mixed, trainer(clipping=clipping), rng(3))
    np.testing.assert_allclose(mine.update[CONTEXT], other.update[CONTEXT], atol=1e-5)
    assert not mine.update[QUERY].any()
    np.testing.assert_allclose(
        method.predict(ClientView(state), mixed.arrays, three.classes),
        plain.predict(ClientView(state), mixed.arrays, three.classes),
        atol=1e-4,
    )


def _plain() -> promptfl.Config:
    return promptfl.Config(context_tokens=4)


def test_one_client_is_its_own_centralised_training(three, mixed):
    method, batches = build(three), rng(3)
    state = start = draw_state(method, spread=0.1)
    for _ in range(3):
        result = method.client_update(ClientView(state), mixed, trainer(epochs=1), batches)
        state = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    whole = method.client_update(ClientView(start), mixed, trainer(epochs=3), rng(3))
    for name in (CONTEXT, QUERY):
        np.testing.assert_allclose(state[name], start[name] + whole.update[name], atol=1e-5)
        assert np.abs(whole.update[name]).max() > 1e-4


def test_the_keys_are_sent_but_stay_as_they_are(three, mixed):
    method = build(three)
    state = method.init_server(rng(1))
    result = method.client_update(ClientView(method.broadcast(state)), mixed, trainer(), rng())
    assert set(result.update) == set(method.shared_spec()) == {CONTEXT, QUERY}
    after = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    assert np.array_equal(after[KEYS], state[KEYS])
    assert state[KEYS].shape == (3, 4, 32)
    assert 0 <= state[KEYS].min() < 0.1
    assert 0.9 < state[KEYS].max() < 1


# --- prediction ---------------------------------------------------------------------------------


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


def test_more_images_than_are_encoded_together(three):
    """At a high temperature every image has a prompt of its own."""
    method = build(three, temperature=1.0)
    state, count = draw_state(method), 2 * CONTEXTS_AT_ONCE + 3
    features = rng(3).normal(size=(count, 128)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    together = method.predict(ClientView(state), {"features": features}, three.classes)
    for row in (0, CONTEXTS_AT_ONCE - 1, CONTEXTS_AT_ONCE, count - 1):
        alone = {"features": features[row : row + 1]}
        got = method.predict(ClientView(state), alone, three.classes)
        np.testing.assert_allclose(got[0], together[row], atol=1e-3)


def test_equal_mixtures_are_encoded_once(three, mixed, monkeypatch):
    """Towards temperature 0 there are as many prompts as domains, whatever the number of images."""
    method = build(three, temperature=1e-6)
    state, seen = draw_state(method), []
    encode = type(method.encoder).text_features_each
    monkeypatch.setattr(
        type(method.encoder),
        "text_features_each",
        lambda self, contexts, classes: (
            seen.append(len(contexts)) or encode(self, contexts, classes)
        ),
    )
    method.predict(ClientView(state), mixed.arrays, three.classes)
    assert sum(seen) <= 3


def test_the_query_learns_which_domain_is_which(three):
    """Three domains around three directions: after training each gets its own key."""
    centres = functional.normalize(torch.tensor(rng(1).normal(size=(3, 128))), dim=1).numpy()
    domains = np.repeat(np.arange(3), 8)
    features = centres[domains] + rng(2).normal(0, 0.02, (24, 128))
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    arrays = {"features": features, "labels": rng(3).integers(0, 4, 24), "domains": domains}
    method = build(three, query_learning_rate=5.0)
    state = method.init_server(rng(1))
    learner = trainer(steps=30, learning_rate=1e-3)
    result = method.client_update(ClientView(state), Examples(arrays), learner, rng())
    answers = torch.tensor(features @ (state[QUERY] + result.update[QUERY]).T)
    assert np.array_equal(mixture(answers, 0.01).argmax(dim=1), domains)


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 0.07])
def test_prompt_and_query_have_their_own_learning_rates(three, mixed, rate):
    method, recorder = build(three, query_learning_rate=rate), RecordingTrainer()
    method.client_update(ClientView(method.init_server(rng(1))), mixed, recorder, rng())
    rates = {name: group.learning_rate for group in recorder.groups for name in group.names}
    assert rates == {CONTEXT: None, QUERY: rate}


def test_a_task_without_domains_is_refused(task):
    with pytest.raises(MethodError, match=r"^task\.domains: fedapt needs a key"):
        build(dataclasses.replace(task, domains=()))


def test_one_domain_is_enough(task, examples):
    method = build(task)
    state = method.init_server(rng(1))
    logits = method.predict(ClientView(state), examples.arrays, task.classes)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.0), ("domain_weight", -1.0), ("query_learning_rate", -1)]
)
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^method\.{name}: "):
        validate_options(Registry(), MethodConfig(name="fedapt", **{name: value}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Weighting.EXAMPLES),
        ({"weighting": "examples"}, Weighting.EXAMPLES),
        ({"weighting": "uniform"}, Weighting.UNIFORM),
    ],
)
def test_the_weighting_of_clients(three, options, expected):
    specs = build(three, **options).shared_spec()
    assert {name: spec.weighting for name, spec in specs.items()} == {
        CONTEXT: expected,
        QUERY: expected,
    }

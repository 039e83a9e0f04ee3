"""TRIP: its routers, instance prompts and loss, by hand, by loops and by brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, Examples, Task, promptfl, trip, trip_lite
from methods.networks.routing import (
    BIAS,
    ROUTING,
    ROUTING_INFERENCE,
    WEIGHT,
    Clusters,
    LearnedRouter,
    RandomRouter,
    Rules,
    assigned_shares,
    cluster,
    draw_keys,
)
from methods.prompts.prompt import CONTEXT, as_tensor
from methods.trip import AVERAGE, EXPERTS, Config, divergence, mixed
from platform.contract.examples import draw_examples
from tests.methods._training import rng, tensors, trainer

ROUTERS = ("static", "learnable", "image", "random")
CLASSES = ("circle", "ring", "red square", "star")


def build(task: Task, **options):
    return trip.build(Config(**{"context_tokens": 4, "experts": 3, **options}), task)


def draw_state(method):
    draws = rng(8)
    return {
        name: draws.normal(0, 0.5, spec.shape).astype(np.float32)
        for name, spec in method.shared_spec().items()
    }


def test_an_instance_prompt_by_hand():
    """Eq. 8: a quarter of (4, 8) and three quarters of (0, 4) is (1, 5)."""
    experts = torch.tensor([[[4.0, 8.0]], [[0.0, 4.0]]])
    shares = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    np.testing.assert_allclose(mixed(shares, experts), [[[1.0, 5.0]], [[4.0, 8.0]]])


def test_the_divergence_by_hand():
    """Eq. 11 of (3/4, 1/4) from halves: 3/4 ln 3/2 + 1/4 ln 1/2 = 0.130812; of itself, zero."""
    target = torch.tensor([[math.log(3.0), 0.0], [2.0, 2.0]])
    np.testing.assert_allclose(divergence(target, torch.zeros(2, 2)), [0.130812, 0.0], atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_the_loss_image_by_image(task, beta):
    """Eqs. 8-12 in numpy with loops over images; text features from PromptFL's encoder."""
    method = build(task, beta=beta)
    data, state, backbone = draw_examples(method, 5, 10), draw_state(method), task.backbone
    captions = [f"a photo of a {name}." for name in CLASSES]
    teacher = backbone.encode_texts(captions).numpy().astype(np.float64)

    def softmax(values):
        return np.exp(values) / np.exp(values).sum()

    expected = []
    for i, label in enumerate(data.arrays["labels"]):
        share = data.arrays[ROUTING][i]
        prompt = sum(w * expert for w, expert in zip(share, state[EXPERTS], strict=True))
        text = method.encoder.text_features(as_tensor(prompt, backbone), CLASSES).numpy()
        image = data.arrays["features"][i].astype(np.float64)
        here, there = (softmax(backbone.logit_scale * t @ image) for t in (text, teacher))
        kl = sum(q * math.log(q / p) for p, q in zip(here, there, strict=True))
        expected.append(-math.log(here[label]) + beta * kl)
    batch = {name: torch.tensor(value) for name, value in data.arrays.items()}
    parameters = {EXPERTS: torch.tensor(state[EXPERTS])}
    losses = method.training_objective().losses(parameters, {}, batch)
    np.testing.assert_allclose(losses, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("clipping", [None, 0.5])
@pytest.mark.parametrize("router", ROUTERS)
def test_one_expert_without_divergence_is_promptfl(task, router, clipping):
    """The very same numbers: start, training and prediction."""
    method = build(task, experts=1, beta=0.0, router=router, balance_weight=0.0)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state, other = method.init_server(rng(1)), plain.init_server(rng(1))
    assert np.array_equal(state[EXPERTS][0], other[CONTEXT])
    data = draw_examples(method, 5, 10)
    mine = method.client_update(ClientView(state), data, trainer(clipping=clipping), rng(4))
    short = Examples({name: data.arrays[name] for name in ("features", "labels")})
    theirs = plain.client_update(ClientView(other), short, trainer(clipping=clipping), rng(4))
    if router in ("static", "random") and clipping is None:
        assert np.array_equal(mine.update[EXPERTS][0], theirs.update[CONTEXT])
    else:
        # One sum in another order: a prompt for each row, or one example's gradient at a time.
        np.testing.assert_allclose(mine.update[EXPERTS][0], theirs.update[CONTEXT], atol=1e-5)
    logits = method.predict(ClientView(state), data.arrays, CLASSES)
    again = plain.predict(ClientView({CONTEXT: state[EXPERTS][0]}), data.arrays, CLASSES)
    np.testing.assert_array_equal(logits, again)


@pytest.mark.parametrize("router", ROUTERS)
def test_weights_of_experts_are_the_shares_of_prediction(task, router):
    """Oracle: each image's logits are PromptFL's under the prompts' mean with these weights."""
    method = build(task, router=router)
    data, state = draw_examples(method, 5, 10).arrays, draw_state(method)
    weights = method.expert_weights(ClientView(state), data, CLASSES)
    if router == "static":
        assert np.array_equal(weights, data[ROUTING_INFERENCE])
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    logits = method.predict(ClientView(state), data, CLASSES)
    for i, row in enumerate(weights):
        prompt = sum(w * expert for w, expert in zip(row, state[EXPERTS], strict=True))
        one = {"features": data["features"][i : i + 1]}
        alone = plain.predict(ClientView({CONTEXT: prompt}), one, CLASSES)
        np.testing.assert_allclose(logits[i : i + 1], alone, atol=2e-3)


def test_the_published_average_by_hand(task):
    """R = 1: rounds 0 and 1 lie at 1/4 and 3/4, which weigh alike; then nothing does.

    Start 0 and server prompts 2, 4, 6: (0 + 2)/2 = 1; (0 + 2 + 4)/3 = 2; still 2.
    """
    method = build(task, average_rounds=1)
    state = method.init_server(rng(1))
    state = {**state, **{name: np.zeros_like(state[name]) for name in (EXPERTS, AVERAGE)}}
    step = {EXPERTS: np.full_like(state[EXPERTS], 2.0)}
    for newest, average in ((2.0, 1.0), (4.0, 2.0), (6.0, 2.0)):
        state = method.server_update(state, Aggregate(step, 1.0, 1, 4), (), rng())
        assert (state[EXPERTS] == newest).all()
        np.testing.assert_allclose(state[AVERAGE], average, rtol=1e-6)
    assert set(method.broadcast(state)) == {EXPERTS, AVERAGE}


def test_the_published_average_weighs_by_the_density_of_beta(task):
    """Beta(0.2, 0.2) at 1/6 against 1/2 (R = 2): (5/36)^-0.8 / (1/4)^-0.8 = 1.6004."""
    method = build(task, average_rounds=2)
    assert method._round_weight(0) / method._round_weight(1) == pytest.approx(1.6004, rel=1e-3)
    assert method._round_weight(0) == pytest.approx(method._round_weight(2))


def test_lite_is_trip_with_two_experts_of_one_token(task):
    lite = trip_lite.build(trip_lite.Config(), task)
    same = trip.build(Config(experts=2, context_tokens=1), task)
    data, state = draw_examples(lite, 5, 10), lite.init_server(rng(1))
    assert np.array_equal(state[EXPERTS], same.init_server(rng(1))[EXPERTS])
    assert state[EXPERTS].shape == (2, 1, 32)
    results = [m.client_update(ClientView(state), data, trainer(), rng()) for m in (lite, same)]
    assert np.array_equal(results[0].update[EXPERTS], results[1].update[EXPERTS])


def draw_images(count, tokens=14, width=8):
    draws = rng()
    return {
        "features": draws.normal(size=(count, 5)).astype(np.float32),
        "tokens": draws.normal(size=(count, tokens, width)).astype(np.float32),
    }


def test_orthogonal_keys_have_orthonormal_rows():
    keys = draw_keys("orthogonal", (7, 20), 3)
    np.testing.assert_allclose(keys @ keys.T, np.eye(7), atol=1e-6)


def test_shares_by_hand():
    """Clusters of 3 and 1 tokens at (0, 2) and (5, 0), keys along the axes: shares 1/4 and 3/4."""
    eye, tokens = np.eye(2, dtype=np.float32), np.array([[[0, 2], [5, 0]]], np.float32)
    clusters = Clusters(np.array([[0, 1]]), eye[None], np.array([[3, 1]]), np.ones(1, int))
    shares = assigned_shares(clusters, tokens, eye)
    np.testing.assert_allclose(shares, [[0.25, 0.75]])


@pytest.mark.parametrize("kind", ["orthogonal", "uniform", "normal", "binary"])
@pytest.mark.parametrize("experts", [1, 2, 3, 4])
def test_the_matching_by_brute_force(experts, kind):
    """All M! matchings, costs by plain loops."""
    images = draw_images(20)["tokens"]
    keys = draw_keys(kind, (experts, 8), 2)
    found = cluster(images @ images.transpose(0, 2, 1), np.arange(experts), Rules(1.0, 0.0))
    shares = assigned_shares(found, images, keys)
    for i, image in enumerate(images):
        sizes = found.sizes[i]
        means = [image[found.labels[i] == m].mean(axis=0) for m in range(experts)]

        def cost(order, means=means):
            pairs = zip(means, keys[list(order)], strict=True)
            return sum(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs)

        best = min(itertools.permutations(range(experts)), key=cost)
        expected = np.zeros(experts)
        expected[list(best)] = sizes / sizes.sum()
        np.testing.assert_allclose(shares[i], expected, rtol=1e-6)


LN3 = float(np.log(3.0))


def test_shares_of_tokens_by_hand():
    """Token (ln 3) has logits (ln 3, 0), shares 3/4 and 1/4; token (0) has halves: 5/8, 3/8."""
    learned = LearnedRouter(2, 1, "tokens", 1.0)
    parameters = tensors({WEIGHT: [[1.0], [0.0]], BIAS: [0.0, 0.0]})
    batch = tensors({"tokens": [[[LN3], [0.0]]], "features": [[1.0]]})
    shares = learned.shares(parameters, batch, training=True)
    np.testing.assert_allclose(shares, [[0.625, 0.375]], rtol=1e-6)


def test_balance_by_hand():
    """Both tokens prefer expert 1 by 3/4 to 1/4: f = (1, 0), P = (3/4, 1/4), 2 x 3/4 = 1.5."""
    learned = LearnedRouter(2, 1, "tokens", 0.1)
    parameters = tensors({WEIGHT: [[1.0], [0.0]], BIAS: [0.0, 0.0]})
    tokens = [[[LN3], [LN3]], [[LN3], [-LN3]]]
    batch = tensors({"tokens": tokens, "features": [[1.0], [1.0]]})
    # The second image's tokens disagree: f = P = (1/2, 1/2), which is the least, 1.
    np.testing.assert_allclose(learned.balance(parameters, batch), [0.15, 0.1], rtol=1e-6)
    off = LearnedRouter(2, 1, "tokens", 0.0)
    assert off.balance(parameters, batch).tolist() == [0.0, 0.0]


def test_random_shares_are_those_of_fair_dice():
    """Counts of 20 tokens over 4 experts are multinomial: mean 1/4, variance 3/16/20 each.

    So over 4,000 images the mean is known to 0.0015 and the variance to 2.5 %; two experts of one
    image go together with covariance -1/16/20.
    """
    images = draw_images(4000, tokens=20, width=16)
    shares = RandomRouter(4, 0).prepare(images)[ROUTING]
    assert shares.dtype == np.float32
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / 4, atol=0.006)
    spread = np.cov(shares.T) * 20
    np.testing.assert_allclose(spread, np.full((4, 4), -1 / 16) + np.eye(4) / 4, atol=0.015)

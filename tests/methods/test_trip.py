"""TRIP: instance prompts and their loss by hand and by loops, and what becomes of its parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import (
    Aggregate,
    BackboneError,
    ClientView,
    Examples,
    MethodError,
    Task,
    promptfl,
    trip,
    trip_lite,
)
from methods.networks.routing import BIAS, ROUTING, ROUTING_INFERENCE, WEIGHT
from methods.prompts.prompt import CONTEXT, as_tensor
from methods.trip import AVERAGE, EXPERTS, Config, divergence, mixed
from platform.contract.examples import EMBED_DIM
from privacy.training import per_sample
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

ROUTERS = ("static", "learnable", "image", "random")
CLASSES = ("circle", "ring", "red square", "star")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task: Task, **options):
    return trip.build(Config(**{"context_tokens": 4, "experts": 3, **options}), task)


def draw_raw(count: int = 10, seed: int = 5):
    draws = rng(seed)
    features = draws.normal(size=(count, EMBED_DIM)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    tokens = draws.normal(size=(count, 7, 32)).astype(np.float32)
    return {"features": features, "tokens": tokens}


def draw_examples(method, count: int = 10) -> Examples:
    raw = {name: value for name, value in draw_raw(count).items() if name in method.needs}
    labels = rng(6).integers(0, len(CLASSES), count)
    return Examples({**method.prepare(raw), "labels": labels})


def draw_state(method, spread: float = 0.5):
    draws = rng(8)
    return {
        name: draws.normal(0, spread, spec.shape).astype(np.float32)
        for name, spec in method.shared_spec().items()
    }


# --- by hand ------------------------------------------------------------------------------------


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
    data, state, backbone = draw_examples(method), draw_state(method), task.backbone
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


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [None, 0.5])
@pytest.mark.parametrize("router", ROUTERS)
def test_one_expert_without_divergence_is_promptfl(task, router, clipping):
    """The very same numbers: start, training, server and prediction."""
    method = build(task, experts=1, beta=0.0, router=router, balance_weight=0.0)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state, other = method.init_server(rng(1)), plain.init_server(rng(1))
    assert np.array_equal(state[EXPERTS][0], other[CONTEXT])
    data = draw_examples(method)
    mine = method.client_update(ClientView(state), data, trainer(clipping=clipping), rng(4))
    short = Examples({name: data.arrays[name] for name in ("features", "labels")})
    theirs = plain.client_update(ClientView(other), short, trainer(clipping=clipping), rng(4))
    if router in ("static", "random") and clipping is None:
        assert np.array_equal(mine.update[EXPERTS][0], theirs.update[CONTEXT])
    else:
        # One sum in another order: a prompt for each row, or one example's gradient at a time.
        np.testing.assert_allclose(mine.update[EXPERTS][0], theirs.update[CONTEXT], atol=1e-5)
    state = method.server_update(state, Aggregate(mine.update, 10.0, 1, 4), (), rng())
    start = {EXPERTS: theirs.update[CONTEXT][None] + other[CONTEXT]}
    np.testing.assert_allclose(state[EXPERTS], start[EXPERTS], atol=1e-5)
    logits = method.predict(ClientView(state), data.arrays, CLASSES)
    again = plain.predict(ClientView({CONTEXT: state[EXPERTS][0]}), data.arrays, CLASSES)
    np.testing.assert_array_equal(logits, again)


def test_equal_experts_are_one_prompt_wherever_tokens_go(task):
    method = build(task, expert_init="equal")
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    state, data = method.init_server(rng(1)), draw_examples(method)
    logits = method.predict(ClientView(state), data.arrays, CLASSES)
    alone = plain.predict(ClientView({CONTEXT: state[EXPERTS][0]}), data.arrays, CLASSES)
    np.testing.assert_allclose(logits, alone, atol=1e-3)


@pytest.mark.parametrize("router", ROUTERS)
def test_prompts_are_encoded_once_for_equal_shares_and_nothing_changes(task, router, monkeypatch):
    """Ten images, each twice: as losses and gradients of twenty single images."""
    method, encoded = build(task, router=router), []
    data, state = draw_examples(method), draw_state(method)
    batch = {n: torch.tensor(np.concatenate([v, v])) for n, v in data.arrays.items()}
    leaves = {n: torch.tensor(v, requires_grad=True) for n, v in state.items()}
    objective = method.training_objective()
    each = method.encoder.text_features_each

    def count(contexts, classes):
        encoded.append(len(contexts))
        return each(contexts, classes)

    monkeypatch.setattr(method.encoder, "text_features_each", count)
    together = objective.losses(leaves, {}, batch)
    is_routed = router in ("static", "random")
    distinct = len(np.unique(data.arrays[ROUTING], axis=0)) if is_routed else 20
    assert encoded == [distinct]
    assert distinct < (10 if router == "static" else 21)
    single = [
        objective.losses(leaves, {}, {n: v[i : i + 1] for n, v in batch.items()}) for i in range(20)
    ]
    np.testing.assert_allclose(together.detach(), torch.cat(single).detach(), rtol=1e-4, atol=1e-4)
    gradients = [
        torch.autograd.grad(total, list(leaves.values()))
        for total in (together.sum(), torch.cat(single).sum())
    ]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


@pytest.mark.parametrize("router", ROUTERS)
def test_gradients_of_single_examples(task, router):
    """Under `vmap`, as DP-SGD takes them: their mean is the gradient of the mean."""
    method = build(task, router=router)
    data, state = draw_examples(method), draw_state(method)
    batch = {n: torch.tensor(v) for n, v in data.arrays.items()}
    tensors = {n: torch.tensor(v) for n, v in state.items()}
    objective = method.training_objective()
    single = per_sample.per_sample_gradients(objective, tensors, batch, trained=tuple(tensors))
    leaves = {n: v.clone().requires_grad_() for n, v in tensors.items()}
    losses = objective.losses(leaves, {}, batch)
    np.testing.assert_allclose(single.losses, losses.detach(), rtol=1e-4, atol=1e-4)
    whole = torch.autograd.grad(losses.mean(), list(leaves.values()))
    for name, gradient in zip(leaves, whole, strict=True):
        scale = float(gradient.abs().max())
        np.testing.assert_allclose(single.gradients[name].mean(0), gradient, atol=1e-3 * scale)


@pytest.mark.parametrize("beta", [0.0, 0.8])
@pytest.mark.parametrize("router", ROUTERS)
def test_gradients_by_finite_differences(task, router, beta):
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    # The balancing loss holds the tokens' first choices fixed, so it is differentiated apart.
    method = build(precise, router=router, beta=beta, balance_weight=0.0)
    data, state, objective = draw_examples(method), draw_state(method), method.training_objective()

    def loss(values):
        return mean_loss(objective, values, data)

    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in state.items()
    }
    loss(leaves).backward()
    places = {
        EXPERTS: [(0, 0, 0), (1, 2, 17), (2, 3, 31)],
        WEIGHT: [(0, 0), (2, 30)],
        BIAS: [(1,)],
    }
    for name, leaf in leaves.items():
        slopes = numeric_gradient(loss, state, name, places[name])
        exact = [float(leaf.grad[place]) for place in places[name]]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-8)
        assert leaf.grad.abs().max() > 1e-5


def test_one_step_follows_that_gradient(task):
    method = build(task)
    precise = build(Task(task.classes, task.domains, 4, double_backbone(task.backbone)))
    data, state = draw_examples(method), draw_state(method)
    learner = trainer(steps=1, batch_size=10, learning_rate=0.5)
    result = method.client_update(ClientView(state), data, learner, rng())
    leaf = torch.tensor(state[EXPERTS], dtype=torch.float64, requires_grad=True)
    mean_loss(precise.training_objective(), {EXPERTS: leaf}, data).backward()
    np.testing.assert_allclose(result.update[EXPERTS], -0.5 * leaf.grad, atol=2e-5)


def test_one_client_is_its_own_centralised_training(task):
    method = build(task)
    data, state, batches = draw_examples(method), method.init_server(rng(1)), rng(3)
    start = {n: v.copy() for n, v in state.items()}
    for _ in range(3):
        result = method.client_update(ClientView(state), data, trainer(epochs=1), batches)
        state = method.server_update(state, Aggregate(result.update, 10.0, 1, 4), (), rng())
    alone = method.client_update(ClientView(start), data, trainer(epochs=3), rng(3))
    np.testing.assert_allclose(state[EXPERTS], start[EXPERTS] + alone.update[EXPERTS], atol=1e-5)
    assert np.abs(alone.update[EXPERTS]).max() > 1e-4


# --- parts and options --------------------------------------------------------------------------


def test_training_and_prediction_have_their_own_shares(task):
    method = build(task)
    data, state = draw_examples(method).arrays, draw_state(method)
    assert not np.array_equal(data[ROUTING], data[ROUTING_INFERENCE])
    other = {**data, ROUTING: data[ROUTING][::-1].copy()}
    np.testing.assert_array_equal(
        method.predict(ClientView(state), data, CLASSES),
        method.predict(ClientView(state), other, CLASSES),
    )
    first = method.client_update(ClientView(state), Examples(data), trainer(), rng())
    moved = {**data, ROUTING_INFERENCE: data[ROUTING_INFERENCE][::-1].copy()}
    again = method.client_update(ClientView(state), Examples(moved), trainer(), rng())
    assert np.array_equal(first.update[EXPERTS], again.update[EXPERTS])


@pytest.mark.parametrize("sequences", [1, 9, 100])
@pytest.mark.parametrize("router", ROUTERS)
def test_prediction_in_pieces_is_prediction(task, router, sequences, monkeypatch):
    method = build(task, router=router)
    data, state = draw_examples(method).arrays, draw_state(method)
    whole = method.predict(ClientView(state), data, CLASSES)
    monkeypatch.setattr(trip, "SEQUENCES", sequences)
    pieces = method.predict(ClientView(state), data, CLASSES)
    np.testing.assert_allclose(pieces, whole, atol=1e-3)
    none = {name: value[:0] for name, value in data.items()}
    assert method.predict(ClientView(state), none, CLASSES).shape == (0, 4)


@pytest.mark.parametrize("router", ROUTERS)
def test_weights_of_experts_are_the_shares_of_prediction(task, router):
    """Oracle: each image's logits are PromptFL's under the prompts' mean with these weights."""
    method = build(task, router=router)
    data, state = draw_examples(method).arrays, draw_state(method)
    weights = method.expert_weights(ClientView(state), data, CLASSES)
    assert (weights.shape, weights.dtype) == ((10, 3), np.float32)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
    assert len(np.unique(weights, axis=0)) > 1
    if router == "static":
        assert np.array_equal(weights, data[ROUTING_INFERENCE])
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    logits = method.predict(ClientView(state), data, CLASSES)
    for i, row in enumerate(weights):
        prompt = sum(w * expert for w, expert in zip(row, state[EXPERTS], strict=True))
        one = {"features": data["features"][i : i + 1]}
        alone = plain.predict(ClientView({CONTEXT: prompt}), one, CLASSES)
        np.testing.assert_allclose(logits[i : i + 1], alone, atol=2e-3)


@pytest.mark.parametrize(
    ("router", "needs", "shared"),
    [
        ("static", {"features", "tokens"}, {EXPERTS}),
        ("learnable", {"features", "tokens"}, {EXPERTS, WEIGHT, BIAS}),
        ("image", {"features"}, {EXPERTS, WEIGHT, BIAS}),
        ("random", {"features", "tokens"}, {EXPERTS}),
    ],
)
def test_what_is_needed_shared_and_trained(task, router, needs, shared):
    method, recorder = build(task, router=router), RecordingTrainer()
    assert method.needs == needs
    assert set(method.shared_spec()) == shared
    state = method.init_server(rng(1))
    result = method.client_update(ClientView(state), draw_examples(method), recorder, rng())
    assert set(recorder.parameters) == {n for g in recorder.groups for n in g.names} == shared
    assert set(result.update) == shared
    assert (result.pool_entry, result.personal) == (None, {})


@pytest.mark.parametrize("router", ["learnable", "image"])
def test_a_learned_router_learns(task, router):
    method = build(task, router=router)
    state = method.init_server(rng(1))
    result = method.client_update(ClientView(state), draw_examples(method), trainer(), rng())
    assert np.abs(result.update[WEIGHT]).max() > 1e-6
    other = build(task, router=router, balance_weight=5.0)
    moved = other.client_update(ClientView(state), draw_examples(method), trainer(), rng())
    changed = not np.array_equal(moved.update[WEIGHT], result.update[WEIGHT])
    assert changed == (router == "learnable")


def test_experts_start_apart_or_alike(task):
    apart = build(task).init_server(rng(1))[EXPERTS]
    alike = build(task, expert_init="equal").init_server(rng(1))[EXPERTS]
    assert np.abs(apart[0] - apart[1]).max() > 0.01
    assert np.array_equal(alike[0], alike[2])
    assert np.array_equal(alike[0], apart[0])
    named = build(task, context_init="a photo of a").init_server(rng(1))[EXPERTS]
    assert np.array_equal(named[0], named[1])


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


def test_predictions_are_the_averages_where_there_is_one(task):
    method, plain = build(task, average_rounds=3), build(task)
    data = draw_examples(method)
    state = method.init_server(rng(1))
    moved = {EXPERTS: rng().normal(size=state[EXPERTS].shape).astype(np.float32)}
    state = method.server_update(state, Aggregate(moved, 1.0, 1, 4), (), rng())
    sent = method.broadcast(state)
    average = plain.predict(ClientView({EXPERTS: state[AVERAGE]}), data.arrays, CLASSES)
    np.testing.assert_array_equal(method.predict(ClientView(sent), data.arrays, CLASSES), average)
    # Training goes on from the newest.
    recorder = RecordingTrainer()
    method.client_update(ClientView(sent), data, recorder, rng())
    np.testing.assert_array_equal(recorder.parameters[EXPERTS], state[EXPERTS])


def test_the_teacher_is_the_template_and_costs_nothing_without_beta(task, monkeypatch):
    one, other = (build(task, template=text) for text in ("a photo of a {}.", "{} drawn in ink"))
    assert (
        one.training_objective().teacher - other.training_objective().teacher
    ).abs().max() > 1e-3
    calls = []
    monkeypatch.setattr(type(task.backbone), "encode_texts", lambda *args: calls.append(args))
    assert build(task, beta=0.0).training_objective().teacher is None
    assert calls == []


def test_the_paper_is_the_default():
    config = Config()
    assert (config.experts, config.beta, config.router) == (4, 0.8, "static")
    assert (config.capacity_factor, config.inference_capacity_factor) == (1.0, 2.0)
    assert (config.key_init, config.clustering) == ("orthogonal", "paper")
    assert config.average_rounds == 0


def test_a_template_without_a_place_is_refused(task):
    with pytest.raises(MethodError, match=r"method\.template: 'a photo' .*exactly once"):
        build(task, template="a photo")


def test_more_experts_than_the_tokens_have_directions_are_refused(task):
    with pytest.raises(MethodError, match=r"method\.experts: 33 .*width 32"):
        build(task, experts=33)
    assert build(task, experts=33, key_init="normal").config.experts == 33


def test_no_backbone_is_no_trip():
    with pytest.raises(BackboneError, match="CLIP model"):
        build(Task(CLASSES, ("ink",), 4, None))


def test_lite_is_trip_with_two_experts_of_one_token(task):
    lite = trip_lite.build(trip_lite.Config(), task)
    same = trip.build(Config(experts=2, context_tokens=1), task)
    data, state = draw_examples(lite), lite.init_server(rng(1))
    assert np.array_equal(state[EXPERTS], same.init_server(rng(1))[EXPERTS])
    assert state[EXPERTS].shape == (2, 1, 32)
    results = [m.client_update(ClientView(state), data, trainer(), rng()) for m in (lite, same)]
    assert np.array_equal(results[0].update[EXPERTS], results[1].update[EXPERTS])

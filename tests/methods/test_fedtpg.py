"""FedTPG: its net against torch's layers and by hand, whose names a client trains with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from methods import ClientView, Examples, MethodError, Weighting, fedtpg
from methods.fedtpg import QUERIES, Config, generated, normed, shapes_of
from methods.prompts.prompt import PromptConfig, build_encoder
from tests.methods._training import RecordingTrainer, trainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(task, **options):
    return fedtpg.build(Config(**options), task)


def drawn(width: int = 8, features: int = 6, tokens: int = 3) -> dict[str, torch.Tensor]:
    shapes = shapes_of(Config(context_tokens=tokens), width, features)
    return {n: torch.tensor(rng(i).normal(size=s)) for i, (n, s) in enumerate(shapes.items())}


def test_the_published_size():
    """Width and features of 512, four tokens: 4,206,080 numbers."""
    assert sum(map(math.prod, shapes_of(Config(), 512, 512).values())) == 4_206_080


def test_the_attention_is_torchs():
    """Oracle: torch's multi-head attention, then the layers as they are written down."""
    net, names = drawn(), torch.tensor(rng(50).normal(size=(5, 6)))
    oracle = nn.MultiheadAttention(8, 4, kdim=6, vdim=6, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(oracle, f"{name[0]}_proj_weight").copy_(net[f"{name}.weight"])
        parts = [net[f"{name}.bias"] for name in ("query", "key", "value")]
        oracle.in_proj_bias.copy_(torch.cat(parts))
        oracle.out_proj.weight.copy_(net["out.weight"])
        oracle.out_proj.bias.copy_(net["out.bias"])
        seen = normed(net, "name_norm", names)[None]
        query = normed(net, "query_norm", net[QUERIES])[None]
        found = oracle(query, seen, seen)[0][0]
        layer = functional.layer_norm(
            found, (8,), net["forward_norm.weight"], net["forward_norm.bias"]
        )
        hidden = layer @ net["inner.weight"].T + net["inner.bias"]
        a, b = hidden[:, :32], hidden[:, 32:]
        gated = a * b * 0.5 * (1 + torch.erf(b / math.sqrt(2)))
        expected = found + gated @ net["outer.weight"].T + net["outer.bias"]
        np.testing.assert_allclose(generated(net, names, 4), expected, rtol=1e-9)


def test_over_one_name_attention_is_one():
    """With the last layer zero every row is W_O (W_V LN(t) + b_V) + b_O, whatever the queries."""
    net = drawn()
    net |= {name: torch.zeros_like(net[name]) for name in ("outer.weight", "outer.bias")}
    name = torch.tensor(rng(51).normal(size=(1, 6)))
    value = normed(net, "name_norm", name) @ net["value.weight"].T + net["value.bias"]
    row = value @ net["out.weight"].T + net["out.bias"]
    np.testing.assert_allclose(generated(net, name, 2), row.expand(3, -1), rtol=1e-9)


def test_layer_norm_by_hand():
    """(1, 3): mean 2, deviation 1; times 2 plus 0.5."""
    net = {"name_norm.weight": torch.full((2,), 2.0), "name_norm.bias": torch.full((2,), 0.5)}
    got = normed(net, "name_norm", torch.tensor([[1.0, 3.0]]))
    np.testing.assert_allclose(got, [[-1.5, 2.5]], atol=1e-4)


def test_the_order_of_names_says_nothing(task, examples):
    """Attention sums over names, so columns change places with the names, and nothing else does."""
    method = build(task)
    view = ClientView(method.init_server(rng(1)))
    there = method.predict(view, examples.arrays, task.classes)
    back = method.predict(view, examples.arrays, task.classes[::-1])
    np.testing.assert_allclose(back[:, ::-1], there, atol=1e-3)


def test_the_prompt_follows_from_the_names_that_are_asked_about(task, examples):
    method = build(task)
    view = ClientView(method.init_server(rng(1)))
    whole = method.predict(view, examples.arrays, task.classes)
    two = method.predict(view, examples.arrays, task.classes[:2])
    assert np.abs(whole[:, :2] - two).max() > 1e-3


def held(labels) -> Examples:
    features = rng(5).normal(size=(len(labels), 128)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Examples({"features": features, "labels": np.array(labels)})


@pytest.mark.parametrize(("names", "count"), [("own", 2), ("all", 4)])
def test_whose_names(task, names, count):
    """Labels 1 and 3 alone: a softmax over two classes, or over the four of the task."""
    method, data = build(task, names=names), held([1, 3, 3])
    recorder = RecordingTrainer()
    method.client_update(ClientView(method.init_server(rng(1))), data, recorder, rng())
    net = {name: torch.tensor(value) for name, value in recorder.parameters.items()}
    batch = {name: torch.tensor(value) for name, value in data.arrays.items()}
    encoded = recorder.objective.encode(net)
    assert encoded["text"].shape == (count, 128)
    losses = recorder.objective.losses(net, encoded, batch)
    asked = (1, 3) if names == "own" else (0, 1, 2, 3)
    context = generated(net, method.captions.features([task.classes[i] for i in asked]), 4)
    encoder = build_encoder(PromptConfig(context_tokens=4), task)
    text = encoder.text_features(context, [task.classes[i] for i in asked])
    logits = method.logit_scale * batch["features"] @ text.T
    chances = logits.softmax(dim=1)
    wanted = [-math.log(chances[row, asked.index(label)]) for row, label in enumerate((1, 3, 3))]
    np.testing.assert_allclose(losses.detach(), wanted, rtol=1e-4)


def test_training_lowers_the_loss_and_clients_count_alike(task, examples):
    method = build(task, names="all")
    state = method.init_server(rng(1))
    learner = trainer(steps=20, learning_rate=0.01, batch_size=10)
    update = method.client_update(ClientView(state), examples, learner, rng()).update
    after = {name: state[name] + change for name, change in update.items()}

    def loss(net):
        logits = torch.tensor(method.predict(ClientView(net), examples.arrays, task.classes))
        return float(functional.cross_entropy(logits, torch.tensor(examples.arrays["labels"])))

    assert loss(after) < loss(state) - 0.05
    assert {spec.weighting for spec in method.shared_spec().values()} == {Weighting.UNIFORM}


def test_it_starts_as_published(task):
    state = build(task).init_server(rng(1))
    assert state[QUERIES].std() == pytest.approx(0.02, rel=0.2)
    assert (state["query_norm.weight"] == 1).all()
    assert not state["value.bias"].any()
    # Of width 32 and features 128: sqrt(6 / (128 + 96)) and 1 / sqrt(32).
    assert 0.95 * 0.163663 < np.abs(state["key.weight"]).max() <= 0.163663
    assert 0.95 * 0.176777 < np.abs(state["inner.bias"]).max() <= 0.176777
    assert 0.95 * 0.088388 < np.abs(state["outer.weight"]).max() <= 0.088388


def test_heads_that_do_not_divide(task):
    with pytest.raises(MethodError, match=r"method\.heads: 5 do not divide .* width of 32"):
        build(task, heads=5)

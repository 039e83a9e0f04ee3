"""FedTPG: its net against torch's layers and by hand, whose names a client trains with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from methods import ClientView, Examples, fedtpg
from methods.fedtpg import QUERIES, Config, generated, shapes_of
from methods.networks.layers import norm
from methods.prompts.prompt import PromptConfig, build_encoder
from tests.methods._training import RecordingTrainer, rng


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
        seen = norm(net, "name_norm", names)[None]
        query = norm(net, "query_norm", net[QUERIES])[None]
        found = oracle(query, seen, seen)[0][0]
        layer = functional.layer_norm(
            found, (8,), net["forward_norm.weight"], net["forward_norm.bias"]
        )
        hidden = layer @ net["inner.weight"].T + net["inner.bias"]
        a, b = hidden[:, :32], hidden[:, 32:]
        gated = a * b * 0.5 * (1 + torch.erf(b / math.sqrt(2)))
        expected = found + gated @ net["outer.weight"].T + net["outer.bias"]
        np.testing.assert_allclose(generated(net, names, 4), expected, rtol=1e-9)


def test_layer_norm_by_hand():
    """(1, 3): mean 2, deviation 1; times 2 plus 0.5."""
    net = {"name_norm.weight": torch.full((2,), 2.0), "name_norm.bias": torch.full((2,), 0.5)}
    got = norm(net, "name_norm", torch.tensor([[1.0, 3.0]]))
    np.testing.assert_allclose(got, [[-1.5, 2.5]], atol=1e-4)


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
    logits = task.backbone.logit_scale * batch["features"] @ text.T
    chances = logits.softmax(dim=1)
    wanted = [-math.log(chances[row, asked.index(label)]) for row, label in enumerate((1, 3, 3))]
    np.testing.assert_allclose(losses.detach(), wanted, rtol=1e-4)

"""pFedMoAP: its gate against numbers worked by hand and other people's attention, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Task, pfedmoap
from methods.pfedmoap import PROJECTIONS, AttentionGate, Config, LinearGate
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._double import double_backbone, mean_loss
from tests.methods._training import rng, trainer

HAND = {"gate_dim": 2, "gate_heads": 1}
LOG3 = math.log(3.0)


def build(task: Task, **options):
    chosen = {"context_tokens": 4, "experts": 2, "gate_dim": 32, "gate_heads": 4, **options}
    return pfedmoap.build(Config(**chosen), task)


def attention(config: Config) -> AttentionGate:
    return AttentionGate(
        config.gate_dim,
        config.gate_pool,
        config.moe_similarity,
        config.gate_heads,
        config.gate_scale,
    )


def identity(size: int) -> dict[str, torch.Tensor]:
    gate = {f"gate.{name}.weight": torch.eye(size) for name in PROJECTIONS}
    return gate | {f"gate.{name}.bias": torch.zeros(size) for name in PROJECTIONS}


def draw_contexts(count: int, seed: int = 8, spread: float = 1.0):
    draws = rng(seed)
    return tuple(
        {CONTEXT: draws.normal(0, spread, (4, 32)).astype(np.float32)} for _ in range(count)
    )


def test_the_gate_by_hand():
    """Query (1, 0); keys (sqrt2 ln3, 0) and (0, 1): scores ln3 and 0, hence shares 3/4 and 1/4."""
    image = torch.tensor([[1.0, 0.0]])
    experts = torch.tensor([[[math.sqrt(2) * LOG3, 0.0]], [[0.0, 1.0]]])
    mixed = attention(Config(**HAND)).mix(identity(2), image, experts)
    first = 0.75 * math.sqrt(2) * LOG3  # 1.165251
    np.testing.assert_allclose(mixed, [[[1.165251, 0.25]]], rtol=1e-5)
    cosine = attention(Config(**HAND)).logits(identity(2), image, experts)
    np.testing.assert_allclose(cosine, [[first / math.hypot(first, 0.25)]], rtol=1e-5)
    dot = attention(Config(**HAND, moe_similarity="dot")).logits(identity(2), image, experts)
    np.testing.assert_allclose(dot, [[first]], rtol=1e-5)
    # As published scores are 10 q.k in place of q.k / sqrt(2).
    experts[0, 0, 0] = LOG3 / 10
    mixed = attention(Config(**HAND, gate_scale="10")).mix(identity(2), image, experts)
    np.testing.assert_allclose(mixed, [[[0.075 * LOG3, 0.25]]], rtol=1e-5)


@pytest.mark.parametrize(
    ("pool", "expected"), [("mean", [1.5, 3.5, 5.5]), ("stride", [1.0, 3.0, 5.0])]
)
def test_pooling_by_hand(pool, expected):
    gate = attention(Config(gate_dim=3, gate_heads=1, gate_pool=pool))
    features = torch.arange(1.0, 7.0)
    np.testing.assert_allclose(gate.pool(features), expected)
    np.testing.assert_allclose(gate.pool(features.repeat(2, 5, 1)), [[expected] * 5] * 2)


def test_the_gate_is_torchs_attention():
    """Oracle: `torch.nn.MultiheadAttention` with the same weights, one sequence per (image, class).

    Its scale is 1/sqrt(head size), as Vaswani et al. 2017 have it.
    """
    size, heads, images, classes, experts = 32, 4, 5, 3, 6
    gate = attention(Config(gate_dim=size, gate_heads=heads))
    drawn = {name: torch.tensor(value) for name, value in gate.init(rng(1)).items()}
    torchs = torch.nn.MultiheadAttention(size, heads, bias=True)
    with torch.no_grad():
        packed = [drawn[f"gate.{name}.weight"] for name in ("query", "key", "value")]
        torchs.in_proj_weight.copy_(torch.cat(packed))
        biases = [drawn[f"gate.{name}.bias"] for name in ("query", "key", "value")]
        torchs.in_proj_bias.copy_(torch.cat(biases))
        torchs.out_proj.weight.copy_(drawn["gate.output.weight"])
        torchs.out_proj.bias.copy_(drawn["gate.output.bias"])
    draws = torch.Generator().manual_seed(3)
    image = torch.randn(images, size, generator=draws)
    text = torch.randn(experts, classes, size, generator=draws)
    query = image[:, None].expand(images, classes, size).reshape(1, -1, size)
    source = text[:, None].expand(experts, images, classes, size).reshape(experts, -1, size)
    with torch.no_grad():
        expected, _ = torchs(query, source, source, need_weights=False)
        _, weights = torchs(query, source, source, average_attn_weights=True)
        got, weighed = gate.mix(drawn, image, text), gate.weights(drawn, image, text)
    np.testing.assert_allclose(got, expected.reshape(images, classes, size), atol=1e-5)
    wanted = weights.reshape(images, classes, experts).mean(1)
    np.testing.assert_allclose(weighed, wanted, atol=1e-6)
    assert weighed.std(1).min() > 1e-3


def test_the_linear_gate_by_hand():
    """Scores ln3 and 0 for the image (1, 0): shares 3/4 and 1/4 of (4, 0) and (0, 8)."""
    parameters = {
        "gate.linear.weight": torch.tensor([[LOG3, 0.0], [0.0, 5.0], [7.0, 7.0]]),
        "gate.linear.bias": torch.zeros(3),
    }
    image = torch.tensor([[1.0, 0.0]])
    experts = torch.tensor([[[4.0, 0.0]], [[0.0, 8.0]]])
    # The third row is for an expert that is not at hand.
    mixed = LinearGate(2, "mean", "cosine", 3).mix(parameters, image, experts)
    np.testing.assert_allclose(mixed, [[[3.0, 2.0]]], rtol=1e-6)


def test_the_gate_has_the_papers_66_thousand_parameters():
    assert sum(v.size for v in attention(Config()).init(rng(1)).values()) == 66_048


@pytest.mark.parametrize("gate_pool", ["mean", "stride"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equation_10_against_numpy(task, examples, gate_pool, similarity):
    """The gate's mixture is torch's attention, as above."""
    method = build(task, gate_pool=gate_pool, moe_similarity=similarity, local_weight=0.3)
    experts, (local,) = draw_contexts(2), draw_contexts(1, seed=9)
    personal = {**method.init_client(rng(1), rng(2)), **local}
    backbone, image = task.backbone, examples.arrays["features"].astype(np.float64)

    def text(context):
        with torch.no_grad():
            features = method.encoder.text_features(as_tensor(context, backbone), task.classes)
        return features.numpy().astype(np.float64)

    def pool(features):
        if gate_pool == "stride":
            return features[..., ::4]
        return sum(features[..., i::4] for i in range(4)) / 4

    prompts = np.stack([text(p[CONTEXT]) for p in (local, *experts)])
    gate = {n: torch.tensor(v, dtype=torch.float64) for n, v in personal.items() if n != CONTEXT}
    mixed = method.gate.mix(gate, *map(torch.tensor, (pool(image), pool(prompts)))).numpy()
    if similarity == "cosine":
        norms = np.linalg.norm(pool(image), axis=1)[:, None] * np.linalg.norm(mixed, axis=2)
    else:
        norms = 1.0
    expected = np.einsum("bd,bcd->bc", pool(image), mixed) / norms + 0.3 * image @ prompts[0].T
    got = method.predict(
        ClientView({CONTEXT: np.zeros((4, 32))}, experts, personal), examples.arrays, task.classes
    )
    np.testing.assert_allclose(got, backbone.logit_scale * expected, atol=2e-4)


def test_one_step_follows_that_gradient(task, examples):
    """The trained prompt is the start minus rate times the gradient of the mean loss."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method, experts, (start,) = build(task), draw_contexts(2), draw_contexts(1, seed=9)
    gate = method.init_client(rng(1), rng(2))
    learner = trainer(steps=1, batch_size=10, learning_rate=0.5)
    result = method.client_update(ClientView(start, experts, gate), examples, learner, rng())
    objective = build(precise)._objective(experts, task.classes)
    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in {**gate, **start}.items()
    }
    mean_loss(objective, leaves, examples).backward()
    rates = {CONTEXT: 0.5} | dict.fromkeys(gate, 0.01)
    for name, leaf in leaves.items():
        expected = leaf.detach() - rates[name] * leaf.grad
        np.testing.assert_allclose(result.personal[name], expected, atol=2e-5)


def test_the_pool_policy_is_the_papers(task):
    policy = build(task, experts=3).pool_policy()
    assert (policy.k, policy.select, policy.exclude_self) == (3, "nearest", True)
    assert (policy.minimum, policy.fixed) == (None, False)
    assert build(task, select="random").pool_policy().select == "random"

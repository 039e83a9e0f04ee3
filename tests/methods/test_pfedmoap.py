"""pFedMoAP: its gate against numbers worked by hand and other people's attention, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import Aggregate, ClientView, MethodError, Task, pfedmoap, promptfl
from methods.pfedmoap import PROJECTIONS, AttentionGate, Config, LinearGate
from methods.prompts.prompt import CONTEXT, as_tensor
from tests.methods._double import double_backbone, mean_loss, numeric_gradient
from tests.methods._training import RecordingTrainer, trainer

HAND = {"gate_dim": 2, "gate_heads": 1}
LOG3 = math.log(3.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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


# --- the gate alone -----------------------------------------------------------------------------


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


def test_the_published_scale_by_hand():
    """Scores 10 q.k in place of q.k/sqrt(2): keys (ln3/10, 0) and (0, 1) give 3/4 and 1/4."""
    image = torch.tensor([[1.0, 0.0]])
    experts = torch.tensor([[[LOG3 / 10, 0.0]], [[0.0, 1.0]]])
    mixed = attention(Config(**HAND, gate_scale="10")).mix(identity(2), image, experts)
    np.testing.assert_allclose(mixed, [[[0.075 * LOG3, 0.25]]], rtol=1e-5)


def test_heads_attend_on_their_own():
    """Two heads of one coordinate: head 1 sees scores (ln3, 0), head 2 (0, ln3)."""
    image = torch.tensor([[1.0, 1.0]])
    experts = torch.tensor([[[LOG3, 0.0]], [[0.0, LOG3]]])
    mixed = attention(Config(gate_dim=2, gate_heads=2)).mix(identity(2), image, experts)
    np.testing.assert_allclose(mixed, [[[0.75 * LOG3, 0.75 * LOG3]]], rtol=1e-5)


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


def test_attention_to_experts_by_hand():
    """Heads see scores (ln3, 0) and (0, 0) in class 0, (0, 0) and (0, ln3) in class 1.

    Shares of the first expert: 3/4, 1/2; 1/2, 1/4: their mean is 1/2. Without class 1 it is 5/8.
    """
    image = torch.tensor([[1.0, 1.0]])
    experts = torch.tensor([[[LOG3, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, LOG3]]])
    gate = attention(Config(gate_dim=2, gate_heads=2))
    np.testing.assert_allclose(gate.weights(identity(2), image, experts), [[0.5, 0.5]], rtol=1e-5)
    first = gate.weights(identity(2), image, experts[:, :1])
    np.testing.assert_allclose(first, [[0.625, 0.375]], rtol=1e-5)


def test_attention_to_experts_pools_the_image_first():
    """Pooled by the mean (4, 0, 2, 0) is (2, 1): scores 2 ln3/2 and 0, as in the first test."""
    gate = attention(Config(gate_dim=2, gate_heads=2))
    image = torch.tensor([[4.0, 0.0, 2.0, 0.0]])
    experts = torch.tensor([[[LOG3 / 2, 0.0]], [[0.0, 0.0]]])
    weights = gate.weights(identity(2), image, experts)
    np.testing.assert_allclose(weights, [[0.625, 0.375]], rtol=1e-5)


def test_the_linear_gate_weighs_by_hand():
    """Scores ln3 and 0 of two experts at hand; a third that is not at hand has none."""
    parameters = {
        "gate.linear.weight": torch.tensor([[LOG3, 0.0], [0.0, 5.0], [7.0, 7.0]]),
        "gate.linear.bias": torch.zeros(3),
    }
    gate = LinearGate(2, "mean", "cosine", 3)
    image = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    weights = gate.weights(parameters, image, torch.ones(2, 5, 2))
    np.testing.assert_allclose(weights, [[0.75, 0.25]], rtol=1e-6)


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


def test_a_linear_gate_of_one_expert_is_that_expert():
    gate = LinearGate(4, "mean", "dot", 3)
    parameters = {n: torch.tensor(v) for n, v in gate.init(rng(1)).items()}
    image = torch.tensor(rng(2).normal(size=(5, 4)), dtype=torch.float32)
    experts = torch.tensor(rng(3).normal(size=(1, 6, 4)), dtype=torch.float32)
    torch.testing.assert_close(
        gate.mix(parameters, image, experts), experts.expand(5, -1, -1), rtol=1e-6, atol=1e-6
    )


def test_the_gate_starts_as_linear_layers_do():
    arrays = attention(Config(gate_dim=64, gate_heads=8)).init(rng(1))
    assert sum(value.size for value in arrays.values()) == 4 * (64 * 64 + 64)
    for value in arrays.values():
        assert np.abs(value).max() <= 1 / 8
        assert np.abs(value).max() > 0.9 / 8
    # The paper's "66.0K" parameters at d_gating = 128.
    assert sum(v.size for v in attention(Config()).init(rng(1)).values()) == 66_048


# --- the whole prediction -----------------------------------------------------------------------


def attention_in_numpy(gate, image, experts, *, heads: int, scale: float):
    """Eq. 11 with loops: heads, images and classes one by one."""

    def project(name, value):
        return value @ gate[f"gate.{name}.weight"].T + gate[f"gate.{name}.bias"]

    width = image.shape[1] // heads
    out = np.zeros((len(image), experts.shape[1], image.shape[1]))
    for b, c in np.ndindex(*out.shape[:2]):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            query = project("query", image[b])[part]
            keys = project("key", experts[:, c])[:, part]
            values = project("value", experts[:, c])[:, part]
            scores = np.exp(keys @ query * scale)
            out[b, c, part] = scores / scores.sum() @ values
    return project("output", out)


@pytest.mark.parametrize("gate_scale", ["sqrt", "10"])
@pytest.mark.parametrize("gate_pool", ["mean", "stride"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equation_10_against_numpy(task, examples, gate_scale, gate_pool, similarity):
    method = build(
        task,
        gate_scale=gate_scale,
        gate_pool=gate_pool,
        moe_similarity=similarity,
        local_weight=0.3,
    )
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
    scale = 10.0 if gate_scale == "10" else 1 / math.sqrt(32 // 4)
    mixed = attention_in_numpy(personal, pool(image), pool(prompts), heads=4, scale=scale)
    if similarity == "cosine":
        norms = np.linalg.norm(pool(image), axis=1)[:, None] * np.linalg.norm(mixed, axis=2)
    else:
        norms = 1.0
    expected = np.einsum("bd,bcd->bc", pool(image), mixed) / norms + 0.3 * image @ prompts[0].T
    got = method.predict(
        ClientView({CONTEXT: np.zeros((4, 32))}, experts, personal), examples.arrays, task.classes
    )
    np.testing.assert_allclose(got, backbone.logit_scale * expected, atol=2e-4)


def test_a_large_lambda_leaves_the_plain_prompt(task, examples):
    """Eq. 10 over lambda tends to PromptFL's logits at the same prompt, as 1/lambda."""
    (local,) = draw_contexts(1, seed=9)
    plain = promptfl.build(promptfl.Config(context_tokens=4), task)
    target = plain.predict(ClientView(local), examples.arrays, task.classes)
    distances = []
    for weight in (1.0, 10.0, 100.0, 1e4):
        method = build(task, local_weight=weight)
        personal = {**method.init_client(rng(1), rng(2)), **local}
        got = method.predict(
            ClientView(local, draw_contexts(2), personal), examples.arrays, task.classes
        )
        distances.append(np.abs(got / weight - target).max())
    assert distances == sorted(distances, reverse=True)
    np.testing.assert_allclose(distances[1:3], [distances[0] / 10, distances[0] / 100], rtol=0.05)
    assert distances[3] < 2e-3


def test_without_lambda_the_local_prompt_still_counts(task, examples):
    method = build(task, local_weight=0.0)
    gate = method.init_client(rng(1), rng(2))
    one, other = (
        method.predict(
            ClientView({CONTEXT: np.zeros((4, 32))}, draw_contexts(2), {**gate, **local}),
            examples.arrays,
            task.classes,
        )
        for local in draw_contexts(2, seed=9)
    )
    assert np.abs(one - other).max() > 1e-3


def test_the_order_of_experts_does_not_matter(task, examples):
    """Appendix A.3: the gate is agnostic to the experts' order, in prediction and training."""
    method, experts = build(task, experts=3), draw_contexts(3)
    start, personal = method.init_server(rng(1)), method.init_client(rng(1), rng(2))
    turned = (experts[2], experts[0], experts[1])
    logits = [
        method.predict(ClientView(start, order, personal), examples.arrays, task.classes)
        for order in (experts, turned)
    ]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
    results = [
        method.client_update(ClientView(start, order, personal), examples, trainer(), rng())
        for order in (experts, turned)
    ]
    for name in results[0].personal:
        np.testing.assert_allclose(results[0].personal[name], results[1].personal[name], atol=1e-5)


def test_a_client_that_never_took_part_predicts_with_the_global_prompt(task, examples):
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    broadcast, gate = method.init_server(rng(1)), method.init_client(rng(1), rng(2))
    assert CONTEXT not in gate
    np.testing.assert_array_equal(
        method.predict(ClientView(broadcast, personal=gate), examples.arrays, task.classes),
        plain.predict(ClientView(broadcast), examples.arrays, task.classes),
    )


# --- what experts count -------------------------------------------------------------------------


def weigh(method, examples, experts, personal, broadcast=None):
    view = ClientView(broadcast or {CONTEXT: np.zeros((4, 32), np.float32)}, experts, personal)
    return method.expert_weights(view, {"features": examples.arrays["features"]}, CLASSES)


CLASSES = ("circle", "ring", "red square", "star")


@pytest.mark.parametrize("gate", ["attention", "linear"])
def test_weights_of_experts_add_up_to_one_and_differ_by_image(task, examples, gate):
    method, (local,) = build(task, gate=gate), draw_contexts(1, seed=9)
    weights = weigh(method, examples, draw_contexts(2), {**method.gate.init(rng(3)), **local})
    assert (weights.shape, weights.dtype) == ((10, 3), np.float32)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
    assert weights.min() > 0
    assert weights.std(0).min() > 1e-5


def test_weights_follow_their_experts(task, examples):
    """Another order of non-local experts is another order of their weights; the own stays first."""
    method, experts = build(task, experts=3), draw_contexts(3)
    (local,) = draw_contexts(1, seed=9)
    personal = {**method.gate.init(rng(3)), **local}
    one = weigh(method, examples, experts, personal)
    other = weigh(method, examples, (experts[2], experts[0], experts[1]), personal)
    np.testing.assert_allclose(other[:, [0, 2, 3, 1]], one, atol=1e-6)
    assert np.abs(other - one).max() > 1e-5


def test_weights_are_of_the_own_prompt_where_there_is_one(task, examples):
    """An own prompt that is one of the others' counts as much as that one."""
    method, experts = build(task), draw_contexts(2)
    gate = method.gate.init(rng(3))
    weights = weigh(method, examples, experts, {**gate, **experts[1]})
    np.testing.assert_allclose(weights[:, 0], weights[:, 2], atol=1e-7)
    shared = weigh(method, examples, experts, gate, broadcast=experts[0])
    np.testing.assert_allclose(shared[:, 0], shared[:, 1], atol=1e-7)


def test_without_experts_or_gate_there_are_no_weights(task, examples):
    method, (local,) = build(task), draw_contexts(1)
    assert weigh(method, examples, (), {**method.gate.init(rng(3)), **local}) is None
    assert weigh(method, examples, draw_contexts(2), local) is None
    sent = build(task, gate_sharing="aggregated")
    state = sent.init_server(rng(1))
    assert weigh(sent, examples, draw_contexts(2), {}, broadcast=state).shape == (10, 3)


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", [None, 0.5])
def test_a_first_time_participant_trains_the_plain_prompt(task, examples, clipping):
    """Footnote 1: no entry, no experts: the very same numbers as PromptFL; the gate stays."""
    method, plain = build(task), promptfl.build(promptfl.Config(context_tokens=4), task)
    broadcast, gate = method.init_server(rng(1)), method.init_client(rng(1), rng(2))
    mine = method.client_update(
        ClientView(broadcast, personal=gate), examples, trainer(clipping=clipping), rng(4)
    )
    other = plain.client_update(ClientView(broadcast), examples, trainer(clipping=clipping), rng(4))
    assert np.array_equal(mine.update[CONTEXT], other.update[CONTEXT])
    assert all(np.array_equal(mine.personal[name], gate[name]) for name in gate)


@pytest.mark.parametrize("experts", [0, 2])
def test_training_starts_from_the_broadcast(task, examples, experts):
    """ClientUpdate, line 1: not from the client's own prompt of an earlier round."""
    method, recorder = build(task), RecordingTrainer()
    broadcast = {CONTEXT: np.full((4, 32), 0.25, np.float32)}
    personal = {**method.init_client(rng(1), rng(2)), CONTEXT: np.ones((4, 32), np.float32)}
    result = method.client_update(
        ClientView(broadcast, draw_contexts(experts), personal), examples, recorder, rng()
    )
    np.testing.assert_array_equal(recorder.parameters[CONTEXT], broadcast[CONTEXT])
    assert not result.update[CONTEXT].any()
    np.testing.assert_array_equal(result.personal[CONTEXT], broadcast[CONTEXT])


def test_prompt_and_gate_have_their_own_learning_rates(task, examples):
    method, recorder = build(task, gate_learning_rate=0.07), RecordingTrainer()
    gate = method.init_client(rng(1), rng(2))
    start = method.init_server(rng(1))
    method.client_update(ClientView(start, draw_contexts(2), gate), examples, recorder, rng())
    rates = {name: group.learning_rate for group in recorder.groups for name in group.names}
    assert rates == {CONTEXT: None} | dict.fromkeys(gate, 0.07)
    # Experts are constants: nothing of them is among what is trained.
    assert set(recorder.parameters) == {CONTEXT, *gate}


@pytest.mark.parametrize("experts", [0, 2])
def test_the_gate_never_leaves_the_client(task, examples, experts):
    method = build(task)
    result = method.client_update(
        ClientView(
            method.init_server(rng(1)), draw_contexts(experts), method.init_client(rng(1), rng(2))
        ),
        examples,
        trainer(),
        rng(),
    )
    assert set(result.update) == set(result.pool_entry) == {CONTEXT}
    assert set(method.shared_spec()) == set(method.pool_policy().spec) == {CONTEXT}
    assert {name.partition(".")[0] for name in result.personal} == {CONTEXT, "gate"}
    assert np.array_equal(result.pool_entry[CONTEXT], result.personal[CONTEXT])


def test_the_gate_learns_where_there_are_experts(task, examples):
    method = build(task)
    start, gate = method.init_server(rng(1)), method.init_client(rng(1), rng(2))
    result = method.client_update(
        ClientView(start, draw_contexts(2), gate), examples, trainer(), rng()
    )
    for name in PROJECTIONS:
        key = f"gate.{name}.weight"
        assert np.abs(result.personal[key] - gate[key]).max() > 1e-7


@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_gradients_by_finite_differences(task, examples, weight, similarity):
    """The local prompt is reached through keys and values too: with lambda = 0 only by them."""
    precise = Task(task.classes, task.domains, 4, double_backbone(task.backbone))
    method = build(precise, local_weight=weight, moe_similarity=similarity)
    experts, (local,) = draw_contexts(2), draw_contexts(1, seed=9, spread=0.5)
    parameters = {**method.init_client(rng(1), rng(2)), **local}
    objective = method._objective(experts, task.classes)

    def loss(values):
        return mean_loss(objective, values, examples)

    leaves = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in parameters.items()
    }
    loss(leaves).backward()
    places = {
        CONTEXT: [(0, 0), (2, 17), (3, 31)],
        "gate.query.weight": [(0, 0), (31, 2)],
        "gate.key.weight": [(5, 9)],
        "gate.value.bias": [(4,)],
        "gate.output.weight": [(1, 30)],
    }
    for name, coordinates in places.items():
        slopes = numeric_gradient(loss, parameters, name, coordinates)
        exact = [float(leaves[name].grad[place]) for place in coordinates]
        np.testing.assert_allclose(exact, slopes, rtol=1e-4, atol=1e-8)
    assert leaves[CONTEXT].grad.abs().max() > 1e-5


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


# --- pool and options ---------------------------------------------------------------------------


def test_an_aggregated_gate_is_sent_and_summed_with_the_prompt(task, examples):
    method = build(task, gate_sharing="aggregated")
    state = method.init_server(rng(1))
    assert set(method.shared_spec()) == set(state) > {CONTEXT}
    assert method.init_client(rng(1), rng(2)) == {}
    result = method.client_update(
        ClientView(state, draw_contexts(2), {}), examples, trainer(), rng(3)
    )
    assert set(result.personal) == {CONTEXT}
    weights = [name for name in state if name.endswith("weight")]
    assert all(np.abs(result.update[name]).max() > 0 for name in (CONTEXT, *weights))
    two = Aggregate({n: 2 * v for n, v in result.update.items()}, 2.0, 2, 4)
    after = method.server_update(state, two, (), rng())
    for name, value in state.items():
        np.testing.assert_allclose(after[name], value + 2 * result.update[name], atol=1e-6)


def test_an_aggregated_gate_is_used_as_broadcast(task, examples):
    """Same arrays, once kept by the client and once sent by the server: same predictions."""
    personal, shared = build(task), build(task, gate_sharing="aggregated")
    gate, experts = personal.gate.init(rng(7)), draw_contexts(2)
    context = {CONTEXT: draw_contexts(1, seed=4)[0][CONTEXT]}
    batch = {"features": examples.arrays["features"]}
    own = personal.predict(ClientView(context, experts, {**context, **gate}), batch, task.classes)
    sent = shared.predict(ClientView({**context, **gate}, experts, context), batch, task.classes)
    np.testing.assert_array_equal(own, sent)


def test_an_aggregated_gate_cannot_be_trained_after_the_last_release(task):
    assert build(task).decouples
    assert not build(task, gate_sharing="aggregated").decouples


def test_a_linear_gate_learns_weights_of_the_experts(task, examples):
    method = build(task, gate="linear")
    personal = method.init_client(rng(1), rng(2))
    assert {n: v.shape for n, v in personal.items()} == {
        "gate.linear.weight": (3, 32),
        "gate.linear.bias": (3,),
    }
    state = method.init_server(rng(1))
    result = method.client_update(
        ClientView(state, draw_contexts(2), personal), examples, trainer(), rng(3)
    )
    assert np.abs(result.personal["gate.linear.weight"] - personal["gate.linear.weight"]).max() > 0
    assert set(result.update) == {CONTEXT}


def test_the_pool_policy_is_the_papers(task):
    policy = build(task, experts=3).pool_policy()
    assert (policy.k, policy.select, policy.exclude_self) == (3, "nearest", True)
    assert (policy.minimum, policy.fixed) == (None, False)
    assert build(task, select="random").pool_policy().select == "random"


def test_the_paper_is_the_default():
    config = Config()
    assert (config.gate_scale, config.gate_pool, config.moe_similarity) == (
        "sqrt",
        "mean",
        "cosine",
    )
    assert (config.experts, config.local_weight) == (9, 0.5)
    assert (config.gate_dim, config.gate_heads) == (128, 8)


@pytest.mark.parametrize("experts", [4, 5, 100])
def test_more_experts_than_other_clients_are_refused(task, experts):
    with pytest.raises(MethodError, match=rf"method\.experts: {experts} .*valid: 1 to 3"):
        build(task, experts=experts)


def test_as_many_experts_as_other_clients_are_fine(task):
    assert build(task, experts=3).pool_policy().k == 3


@pytest.mark.parametrize("size", [3, 100, 256])
def test_a_gate_that_does_not_divide_the_features_is_refused(task, size):
    with pytest.raises(MethodError, match=rf"method\.gate_dim: {size} .*divide .*128"):
        build(task, gate_dim=size, gate_heads=1)


def test_heads_that_do_not_divide_the_gate_are_refused(task):
    with pytest.raises(MethodError, match=r"method\.gate_heads: 5 .*gate_dim = 32"):
        build(task, gate_heads=5)


def test_a_federation_of_one_has_no_experts(task):
    alone = Task(task.classes, task.domains, 1, task.backbone)
    with pytest.raises(MethodError, match=r"task\.clients: 1 has nobody"):
        build(alone, experts=1)

"""PM-MoE's gate: the paper's widths, and starts that are what they are called."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from methods.interface.method import ParameterGroup
from methods.networks.method import BatchObjective
from methods.networks.mixture import Gate, GateConfig, shares
from tests.methods._training import trainer

ACTIVATIONS = ("relu", "leaky_relu", "prelu", "elu", "selu", "silu", "mish")
STARTS = ("uniform", "normal", "xavier", "kaiming", "orthogonal", "spectral")
TORCHS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensors(arrays):
    return {name: torch.from_numpy(np.array(a)) for name, a in arrays.items()}


def weights_of(start: str, inputs: int = 300, experts: int = 40) -> list[np.ndarray]:
    arrays = Gate(inputs, experts, GateConfig(initialisation=start)).start(rng())
    return [a for name, a in arrays.items() if name.endswith(".weight")]


@pytest.mark.parametrize(
    ("layers", "widths"),
    [
        (1, (512, 20)),
        (2, (512, 128, 20)),
        (3, (512, 128, 256, 20)),
        (4, (512, 128, 256, 128, 20)),
    ],
)
def test_the_widths_are_the_papers(layers, widths):
    gate = Gate(512, 20, GateConfig(gate_layers=layers))
    assert gate.widths == widths
    sizes = [a.shape for n, a in gate.start(rng()).items() if n.endswith(".weight")]
    assert sizes == [(b, a) for a, b in itertools.pairwise(widths)]


def test_a_gate_of_512_features_and_20_experts_has_134164_parameters():
    """512x128+128 + 128x256+256 + 256x128+128 + 128x20+20, as in the published code."""
    assert sum(a.size for a in Gate(512, 20, GateConfig()).start(rng()).values()) == 134_164


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_scores_are_those_of_torchs_own_layers(activation, layers):
    gate = Gate(9, 5, GateConfig(gate_layers=layers, activation=activation))
    arrays = gate.start(rng())
    modules: list[nn.Module] = []
    for number in range(1, layers + 1):
        weight = arrays[f"moe.{number}.weight"]
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict(
            {k: torch.from_numpy(arrays[f"moe.{number}.{k}"]) for k in ("weight", "bias")}
        )
        modules += [linear, TORCHS[activation]()]
    rows = torch.from_numpy(3 * rng(1).normal(size=(6, 9)).astype(np.float32))
    with torch.no_grad():
        expected = nn.Sequential(*modules[:-1])(rows)
        got = gate.scores(tensors(arrays), rows)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_gate_learns(activation, start):
    """All arrays move, PReLU's slopes among them, and the loss of two separable groups falls."""
    gate = Gate(6, 2, GateConfig(gate_layers=3, activation=activation, initialisation=start))
    begin = gate.start(rng())
    labels = np.arange(10) % 2
    rows = rng(1).normal(size=(10, 6)).astype(np.float32)
    rows[:, 0] = 2.0 * labels - 1.0

    def loss(parameters, batch):
        scores = gate.scores(parameters, batch["rows"])
        return torch.nn.functional.cross_entropy(scores, batch["labels"], reduction="none")

    def mean_loss(arrays) -> float:
        batch = tensors({"rows": rows, "labels": labels})
        return float(loss(tensors(arrays), batch).detach().mean())

    after = trainer(steps=25, learning_rate=0.1, batch_size=10).fit(
        BatchObjective(loss),
        begin,
        {"rows": rows, "labels": labels},
        groups=(_Group(tuple(begin)),),
        rng=rng(),
    )
    assert all(np.abs(after[name] - begin[name]).max() > 0 for name in begin)
    assert mean_loss(after) < 0.9 * mean_loss(begin)


class _Group:
    learning_rate = None

    def __init__(self, names):
        self.names = names


def test_the_orthogonal_start_is_orthonormal_on_the_shorter_side():
    for weight in weights_of("orthogonal"):
        product = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)


def test_the_orthogonal_start_is_drawn_from_all_orthogonal_matrices():
    """Uniform over the group: entries of either sign have mean zero, here over 400 draws of 2x2."""
    draws = np.array(
        [
            Gate(2, 2, GateConfig(gate_layers=1)).start(rng(seed))["moe.1.weight"]
            for seed in range(400)
        ]
    )
    assert np.abs(draws.mean(axis=0)).max() < 5 * math.sqrt(0.5 / 400)
    assert (np.linalg.det(draws) > 0).mean() == pytest.approx(0.5, abs=0.125)


def test_the_spectral_start_has_largest_singular_value_one():
    for weight in weights_of("spectral"):
        values = np.linalg.svd(weight, compute_uv=False)
        assert values[0] == pytest.approx(1.0, abs=1e-5)
        assert values[-1] < 0.9


@pytest.mark.parametrize(
    ("start", "variance"),
    [
        ("uniform", lambda i, o: 1 / (3 * i)),
        ("normal", lambda i, o: 1 / i),
        ("xavier", lambda i, o: 2 / (i + o)),
        ("kaiming", lambda i, o: 2 / i),
    ],
)
def test_random_starts_have_their_variance(start, variance):
    for weight in weights_of(start):
        outputs, inputs = weight.shape
        assert weight.var() == pytest.approx(variance(inputs, outputs), rel=0.08)
        assert abs(weight.mean()) < 5 * weight.std() / math.sqrt(weight.size)
        is_bounded = np.abs(weight).max() < 1.8 * weight.std()
        assert is_bounded == (start in ("uniform", "xavier"))


@pytest.mark.parametrize("start", STARTS)
def test_biases_start_as_torchs(start):
    arrays = Gate(300, 40, GateConfig(initialisation=start)).start(rng())
    for number, inputs in enumerate((300, 128, 256, 128), 1):
        bias = arrays[f"moe.{number}.bias"]
        assert 0.7 * inputs**-0.5 < np.abs(bias).max() <= inputs**-0.5


def test_slopes_are_prelus_alone_and_one_a_hidden_layer():
    slopes = {
        a: [n for n in Gate(5, 3, GateConfig(activation=a)).start(rng()) if n.endswith("slope")]
        for a in ACTIVATIONS
    }
    assert slopes.pop("prelu") == ["moe.1.slope", "moe.2.slope", "moe.3.slope"]
    assert not any(slopes.values())


SCORES = torch.log(torch.tensor([[1.0, 4.0, 2.0, 3.0]]))
"""Whose softmax is 0.1, 0.4, 0.2, 0.3."""
ALL = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("top_k", "renormalise", "expected"),
    [
        (None, False, [0.1, 0.4, 0.2, 0.3]),
        (None, True, [0.1, 0.4, 0.2, 0.3]),
        (4, False, [0.1, 0.4, 0.2, 0.3]),
        (9, False, [0.1, 0.4, 0.2, 0.3]),
        (2, False, [0.0, 0.4, 0.0, 0.3]),
        (2, True, [0.0, 4 / 7, 0.0, 3 / 7]),
        (1, False, [0.0, 0.4, 0.0, 0.0]),
        (1, True, [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_the_largest_weights_count_as_they_are_unless_scaled(top_k, renormalise, expected):
    got = shares(SCORES, ALL, top_k, renormalise=renormalise)
    np.testing.assert_allclose(got, [expected], atol=1e-6)


@pytest.mark.parametrize(
    ("top_k", "renormalise", "expected"),
    [
        (None, False, [1 / 6, 0.0, 2 / 6, 3 / 6]),
        (2, False, [0.0, 0.0, 2 / 6, 3 / 6]),
        (2, True, [0.0, 0.0, 0.4, 0.6]),
        (4, False, [1 / 6, 0.0, 2 / 6, 3 / 6]),
    ],
)
def test_what_denoising_drops_has_no_weight_and_the_others_share_it(top_k, renormalise, expected):
    kept = torch.tensor([[True, False, True, True]])
    got = shares(SCORES, kept, top_k, renormalise=renormalise)
    np.testing.assert_allclose(got, [expected], atol=1e-6)


def test_untrained_top_k_weights_add_up_to_little():
    """Four of twenty at nearly equal scores: about a fifth is left of an output."""
    scores = torch.from_numpy(0.1 * rng().normal(size=(200, 20)))
    weights = shares(scores, torch.ones_like(scores, dtype=torch.bool), 4, renormalise=False)
    assert 0.2 < float(weights.sum(1).mean()) < 0.27
    assert (weights > 0).sum(1).unique().tolist() == [4]


# --- as published -------------------------------------------------------------------------------


def test_published_relu_is_behind_the_first_layer_alone():
    """Against torch's own layers: ReLU, then LeakyReLU twice."""
    gate = Gate(9, 5, GateConfig(first_relu=True))
    arrays = gate.start(rng())
    rows = torch.from_numpy(3 * rng(1).normal(size=(6, 9)).astype(np.float32))
    hidden = rows
    for number, activation in ((1, nn.ReLU()), (2, nn.LeakyReLU()), (3, nn.LeakyReLU())):
        weight, bias = (torch.from_numpy(arrays[f"moe.{number}.{k}"]) for k in ("weight", "bias"))
        hidden = activation(hidden @ weight.T + bias)
    weight, bias = (torch.from_numpy(arrays[f"moe.4.{k}"]) for k in ("weight", "bias"))
    expected = hidden @ weight.T + bias
    torch.testing.assert_close(gate.scores(tensors(arrays), rows), expected, rtol=1e-4, atol=1e-5)
    plain = Gate(9, 5, GateConfig()).scores(tensors(arrays), rows)
    assert (plain - expected).abs().max() > 1e-3


def test_published_relu_has_no_slope():
    layers = Gate(9, 5, GateConfig(first_relu=True, activation="prelu")).layers
    assert [name for name in layers if name.endswith(".slope")] == ["moe.2.slope", "moe.3.slope"]


def test_dropout_leaves_out_a_share_and_keeps_the_mean():
    drop = Gate(9, 5, GateConfig(dropout=0.2)).drop(rng())
    assert drop is not None
    left = drop(torch.ones(400, 500))
    # 200,000 draws: one deviation of the share is 0.0009, of the mean 0.0011.
    assert sorted(set(left.flatten().tolist())) == [0.0, 1.25]
    assert float((left == 0.0).float().mean()) == pytest.approx(0.2, abs=0.005)
    assert float(left.mean()) == pytest.approx(1.0, abs=0.006)
    assert not torch.equal(left, drop(torch.ones(400, 500)))


def test_dropout_is_behind_each_hidden_layer_and_never_at_the_end():
    """Scores of a gate whose hidden layers are all left out are its last biases."""
    gate = Gate(9, 5, GateConfig())
    arrays = gate.start(rng())
    rows, seen = torch.ones(2, 9), []

    def nothing(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.shape[-1])
        return hidden * 0.0

    scores = gate.scores(tensors(arrays), rows, nothing)
    assert seen == [128, 256, 128]
    np.testing.assert_allclose(scores, np.stack([arrays["moe.4.bias"]] * 2), atol=1e-7)


def test_without_dropout_no_generator_is_touched():
    untouched, given = rng(), rng()
    assert Gate(9, 5, GateConfig()).drop(given) is None
    assert given.random() == untouched.random()


@pytest.mark.parametrize("clipping", [None, 1.0])
def test_a_gate_with_dropout_learns(clipping):
    """Also example by example, where all examples of a step lose the same outputs."""
    gate = Gate(6, 2, GateConfig(gate_layers=3, dropout=0.1, first_relu=True))
    labels = np.arange(40) % 2
    rows = (2.0 * labels[:, None] - 1.0 + 0.1 * rng(1).normal(size=(40, 6))).astype(np.float32)
    drop = gate.drop(rng(2))

    def losses(parameters, batch):
        scores = gate.scores(parameters, batch["rows"], drop)
        return nn.functional.cross_entropy(scores, batch["labels"], reduction="none")

    learner = trainer(steps=60, batch_size=10, learning_rate=0.1, clipping=clipping)
    trained = learner.fit(
        BatchObjective(losses),
        gate.start(rng()),
        {"rows": rows, "labels": labels},
        groups=(ParameterGroup(tuple(gate.layers)),),
        rng=rng(),
    )
    found = gate.scores(tensors(trained), torch.from_numpy(rows)).argmax(1)
    assert (found.numpy() == labels).mean() > 0.95

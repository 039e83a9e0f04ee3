"""PM-MoE's mixture: its gate, the free energy that drops experts, Theorem 1; and Fed-Syn-MoE."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from methods import Arrays, ClientView, Task, fed_syn_moe, fedavg
from methods.fed_syn_moe import LOCAL
from methods.networks.mixture import (
    Gate,
    GateConfig,
    confidence,
    kept_experts,
    number_dropped,
    shares,
)
from platform.contract.examples import draw_batch, draw_examples
from tests.methods._training import RecordingTrainer, newcomer, rng, tensors

TORCHS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
}


def weights_of(start: str) -> list[np.ndarray]:
    arrays = Gate(300, 40, GateConfig(initialisation=start)).start(rng(3))
    return [a for name, a in arrays.items() if name.endswith(".weight")]


def test_a_gate_of_512_features_and_20_experts_has_134164_parameters():
    """512x128+128 + 128x256+256 + 256x128+128 + 128x20+20, as in the published code."""
    assert Gate(512, 20, GateConfig(gate_layers=2)).widths == (512, 128, 20)
    assert Gate(512, 20, GateConfig(gate_layers=3)).widths == (512, 128, 256, 20)
    assert sum(a.size for a in Gate(512, 20, GateConfig()).start(rng(3)).values()) == 134_164


@torch.no_grad()
def by_torch(arrays: Arrays, rows: torch.Tensor, between: Sequence[nn.Module]) -> torch.Tensor:
    """Scores by torch's own layers, with these activations between them."""
    for number, activation in enumerate((*between, nn.Identity()), start=1):
        weight, bias = (torch.from_numpy(arrays[f"moe.{number}.{k}"]) for k in ("weight", "bias"))
        rows = activation(nn.functional.linear(rows, weight, bias))
    return rows


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("activation", TORCHS)
def test_scores_are_those_of_torchs_own_layers(activation, layers):
    options = {"activation": activation, "initialisation": "normal"}
    gate = Gate(9, 5, GateConfig(gate_layers=layers, **options))
    arrays = gate.start(rng(3))
    rows = torch.from_numpy(3 * rng(1).normal(size=(6, 9)).astype(np.float32))
    expected = by_torch(arrays, rows, [TORCHS[activation]()] * (layers - 1))
    got = gate.scores(tensors(arrays), rows)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_the_orthogonal_start_is_orthonormal_on_the_shorter_side():
    for weight in weights_of("orthogonal"):
        product = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)


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


SCORES = torch.log(torch.tensor([[1.0, 4.0, 2.0, 3.0]]))
"""Whose softmax is 0.1, 0.4, 0.2, 0.3."""
ALL = torch.ones(1, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("top_k", "renormalise", "expected"),
    [
        (None, False, [0.1, 0.4, 0.2, 0.3]),
        (9, False, [0.1, 0.4, 0.2, 0.3]),
        (2, False, [0.0, 0.4, 0.0, 0.3]),
        (2, True, [0.0, 4 / 7, 0.0, 3 / 7]),
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
    ],
)
def test_what_denoising_drops_has_no_weight_and_the_others_share_it(top_k, renormalise, expected):
    kept = torch.tensor([[True, False, True, True]])
    got = shares(SCORES, kept, top_k, renormalise=renormalise)
    np.testing.assert_allclose(got, [expected], atol=1e-6)


def test_published_relu_is_behind_the_first_layer_alone():
    """Against torch's own layers: ReLU, then LeakyReLU twice."""
    gate = Gate(9, 5, GateConfig(first_relu=True))
    arrays = gate.start(rng(3))
    rows = torch.from_numpy(3 * rng(1).normal(size=(6, 9)).astype(np.float32))
    expected = by_torch(arrays, rows, (nn.ReLU(), nn.LeakyReLU(), nn.LeakyReLU()))
    torch.testing.assert_close(gate.scores(tensors(arrays), rows), expected, rtol=1e-4, atol=1e-5)
    plain = Gate(9, 5, GateConfig()).scores(tensors(arrays), rows)
    assert (plain - expected).abs().max() > 1e-3


def test_dropout_leaves_out_a_share_and_keeps_the_mean():
    drop = Gate(9, 5, GateConfig(dropout=0.2)).drop(rng(3))
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
    arrays = gate.start(rng(3))
    rows, seen = torch.ones(2, 9), []

    def nothing(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.shape[-1])
        return hidden * 0.0

    scores = gate.scores(tensors(arrays), rows, nothing)
    assert seen == [128, 256, 128]
    np.testing.assert_allclose(scores, np.stack([arrays["moe.4.bias"]] * 2), atol=1e-7)


def score(own, other, temperature: float = 1.0) -> float:
    values = confidence(torch.tensor([own]), torch.tensor([[other]]), temperature)
    return float(values[0, 0])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        # Beside h^j = (3, 4): v = (h_1 3, h_2 4) / (5 |h|).
        ([3.0, 4.0], math.log(math.exp(0.36) + math.exp(0.64))),
        ([-3.0, -4.0], math.log(math.exp(-0.36) + math.exp(-0.64))),
        ([1.0, 0.0], math.log(math.exp(0.6) + 1.0)),
        ([0.0, 0.0], math.log(2.0)),
    ],
)
def test_the_score_by_hand(other, expected):
    assert score([3.0, 4.0], other) == pytest.approx(expected, abs=1e-6)
    assert score([0.3, 0.4], other) == pytest.approx(expected, abs=1e-6)


def test_the_temperature_by_hand():
    """T = 1/2 and v = (0.36, 0.64): log(e^0.72 + e^1.28) / 2; T to 0: the largest coordinate."""
    assert score([3.0, 4.0], [3.0, 4.0], 0.5) == pytest.approx(
        0.5 * math.log(math.exp(0.72) + math.exp(1.28)), abs=1e-6
    )
    assert score([3.0, 4.0], [3.0, 4.0], 1e-3) == pytest.approx(0.64, abs=1e-6)
    # T large: T log D plus the mean coordinate, so half of the cosine ranks experts.
    high = score([3.0, 4.0], [4.0, 3.0], 100.0) - score([3.0, 4.0], [1.0, 0.0], 100.0)
    assert high == pytest.approx((0.96 - 0.6) / 2, abs=1e-3)


@pytest.mark.parametrize(
    ("gamma", "experts", "expected"),
    [
        (0.0, 20, 0),
        (0.2, 20, 3),
        (0.2, 6, 1),
        (0.2, 5, 0),
        (0.99, 11, 9),
        (0.29, 101, 29),  # 0.29 * 100 is 28.999999999999996
    ],
)
def test_how_many_are_dropped(gamma, experts, expected):
    assert number_dropped(gamma, experts) == expected


def test_the_least_like_the_own_are_dropped_example_by_example():
    """Own output (1, 0) for both; the others' cosines are 1, 0, -1 in another order each time."""
    near, across, away = [2.0, 0.0], [0.0, 2.0], [-2.0, 0.0]
    own = [1.0, 0.0]
    outputs = torch.tensor([[near, own, across, away], [away, own, near, across]])
    assert kept_experts(outputs, 1, 0.0, 1.0).all()
    # One of three.
    assert kept_experts(outputs, 1, 0.34, 1.0).tolist() == [
        [True, True, True, False],
        [False, True, True, True],
    ]
    # Two of three.
    assert kept_experts(outputs, 1, 0.67, 1.0).tolist() == [
        [True, True, False, False],
        [False, True, True, False],
    ]


def test_the_odds_by_hand():
    """As in Theorem 1: three of four right at 1 + a = 3: 9 of 10; none right: never."""
    right = np.array([[True, True, False, True], [False] * 4, [True] * 4])
    scores = torch.from_numpy(np.where(right, math.log(3.0), 0.0))
    weights = shares(scores, torch.ones(right.shape, dtype=torch.bool), None, renormalise=False)
    np.testing.assert_allclose((weights.numpy() * right).sum(axis=1), [0.9, 0.0, 1.0])


CLASSES = ("ant", "bee", "cow", "dog")
TASK = Task(CLASSES, ("one",), 6)
SMALL = {"image_size": 16, "channels": (2, 3), "feature_width": 5}


def syn(**options):
    return fed_syn_moe.build(fed_syn_moe.Config(**{**SMALL, **options}), TASK)


def saying(view: ClientView, local: float, shared: float) -> ClientView:
    """The view with a gate of these scores for every example."""
    gate = {n: np.zeros_like(v) for n, v in view.personal.items() if n.startswith("moe.")}
    gate["moe.4.bias"] = np.array([local, shared], np.float32)
    return dataclasses.replace(view, personal={**view.personal, **gate})


def quarters(view: ClientView, batch, head: Arrays | None = None) -> np.ndarray:
    """Three of the local network's logits and one of the shared one's, both as FedAvg's own.

    With a head: of their extractors below it.
    """
    plain = fedavg.build(fedavg.Config(**SMALL), TASK)
    local = {n.removeprefix(LOCAL): v for n, v in view.personal.items() if LOCAL in n}
    one, other = (
        plain.predict(ClientView({**network, **(head or {})}), batch, CLASSES)
        for network in (local, view.broadcast)
    )
    return 0.75 * one + 0.25 * other


def test_fed_syn_moes_mixture_by_hand():
    """Scores log 3 and 0: three quarters of the local logits, a quarter of the shared ones."""
    method = syn()
    view, batch = newcomer(method), draw_batch(method, 4)
    view = saying(view, np.log(3.0), 0.0)
    logits = method.predict(view, batch, CLASSES)
    np.testing.assert_allclose(logits, quarters(view, batch), atol=1e-5)
    np.testing.assert_allclose(
        method.expert_weights(view, batch, CLASSES), [[0.75, 0.25]] * 5, atol=1e-6
    )


def test_everything_is_trained_in_one_fit():
    """So one clipping bound and one charge hold for both networks and the gate."""
    method = syn(gate_rate=0.3)
    view, noted = newcomer(method), RecordingTrainer()
    method.client_update(view, draw_examples(method, 0), noted, rng(3))
    assert noted.fits == 1
    networks, gate = noted.groups
    assert (networks.learning_rate, gate.learning_rate) == (None, 0.3)
    assert set(networks.names) | set(gate.names) == {*view.broadcast, *view.personal}
    assert all(name.startswith("moe.") for name in gate.names)
    assert syn().units == {"client", "record"}


def test_published_the_mixture_is_of_features_before_one_head():
    """Scores log 3 and 0 again: a linear head of a mixture is the mixture of its outputs."""
    method = syn(wiring="published")
    view, batch = newcomer(method), draw_batch(method, 4)
    view = saying(view, np.log(3.0), 0.0)
    head = {n: v for n, v in view.personal.items() if n.startswith("head.")}
    logits = method.predict(view, batch, CLASSES)
    np.testing.assert_allclose(logits, quarters(view, batch, head), atol=1e-5)
    # Not those of whole networks: the head's bias counts once, whatever the weights add up to.
    weights = method.expert_weights(view, batch, CLASSES)
    np.testing.assert_allclose(weights, [[0.75, 0.25]] * 5, atol=1e-6)

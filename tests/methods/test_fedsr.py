"""FedSR: its loss and a prediction by hand, FedAvg without noise, and what stays with a client."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, fedsr
from methods.fedsr import CENTRE, SCALE, SPREAD, FedSR, divergences
from methods.networks.draws import Draws
from tests.methods._tiny_networks import tiny
from tests.methods._training import rng

RAW_HALF = math.log(math.exp(0.5) - 1.0)
"""softplus of it is 0.5."""


def build(given: int = 1, width: int = 1, **options) -> FedSR:
    return tiny(FedSR, fedsr, given, width, **options)


def test_the_divergence_by_hand():
    """mu 1, sigma 1/2 against r 0 and s = softplus(1) = 1.313262, or s = 1."""

    def of(mean, deviation, spread):
        values = (torch.tensor([v], dtype=torch.float64) for v in (mean, deviation, [0.0], spread))
        return divergences(*values).item()

    soft = math.log(1.0 + math.e)
    assert of([1.0], [0.5], [soft]) == pytest.approx(0.828052, abs=1e-6)
    assert of([1.0], [0.5], [1.0]) == pytest.approx(0.818147, abs=1e-6)
    assert of([0.0], [1.0], [1.0]) == 0.0


def tensors(*, mean, raw, head=None, **reference) -> dict[str, torch.Tensor]:
    """One feature that is 1; what mu, rho and the head make of it, as biases."""
    width = len(mean)
    arrays = {
        "extractor.fc.weight": [[1.0]],
        "extractor.fc.bias": [0.0],
        "representation.weight": np.zeros((2 * width, 1)),
        "representation.bias": [*mean, *raw],
        "head.weight": np.zeros((2, width)) if head is None else head,
        "head.bias": [0.0, 0.0],
        CENTRE: np.zeros((2, width)),
        SPREAD: np.ones((2, width)),
        SCALE: [1.0],
        **{f"reference.{name}": value for name, value in reference.items()},
    }
    return {name: torch.tensor(np.array(value, np.float32)) for name, value in arrays.items()}


def batch(label: int = 0, mark: int = 3) -> dict[str, torch.Tensor]:
    return {
        "features": torch.ones(1, 1),
        "labels": torch.tensor([label]),
        "mark": torch.tensor([mark]),
    }


def loss(method: FedSR, parameters: dict[str, torch.Tensor], label: int = 0) -> float:
    return method.simple_losses(Draws(rng()), parameters, batch(label)).item()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, math.log(2.0) + 0.01 * 5.0),
        ({"norm": "squared"}, math.log(2.0) + 0.01 * 25.0),
        ({"norm_weight": 2.0}, math.log(2.0) + 2.0 * 5.0),
        ({"norm_weight": 0.0}, math.log(2.0)),
    ],
)
def test_the_loss_of_a_certain_representation_by_hand(options, expected):
    """z = (3, 4) without noise, between two equal classes."""
    method = build(representation_width=2, information_weight=0.0, **options)
    parameters = tensors(mean=[3.0, 4.0], raw=[-200.0, -200.0])
    assert loss(method, parameters) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "reference", "label", "expected"),
    [
        ({}, {}, 0, 0.828052),
        # c = -2: mean -2, deviation 1; log s + 5 / (2 s^2) - 1/2.
        ({}, {"scale": [-2.0]}, 0, 0.272514 + 5.0 / 3.449314 - 0.5),
        ({"scale": "none"}, {"scale": [-2.0]}, 0, 0.828052),
        # The other class's reference is right on it: r = 1, s = 1/2.
        ({}, {"centre": [[0.0], [1.0]], "spread": [[1.0], [RAW_HALF]]}, 1, 0.0),
    ],
)
def test_the_loss_against_the_reference_by_hand(options, reference, label, expected):
    method = build(norm_weight=0.0, information_weight=2.0, **options)
    parameters = tensors(mean=[1.0], raw=[RAW_HALF], **reference)
    got = loss(method, parameters, label)
    assert got == pytest.approx(math.log(2.0) + 2.0 * expected, abs=1e-5)


def test_a_prediction_is_a_mean_of_softmax():
    """One logit is z ~ N(1, 1), the other 0: the mean of the sigmoid by Gauss-Hermite."""
    method = build(samples=4000)
    one = math.log(math.e - 1.0)
    model = tensors(mean=[1.0], raw=[one], head=[[0.0], [1.0]])
    view = ClientView({n: t.numpy() for n, t in model.items()})
    images = {"features": np.ones((1, 1), np.float32), "mark": np.array([7])}
    got = np.exp(method.predict(view, images, ("no", "yes")))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    mean = (weights / (1.0 + np.exp(-(1.0 + nodes)))).sum() / weights.sum()
    # The sigmoid's deviation is 0.18, that of the mean of 4000 below 0.003.
    assert got[0, 1] == pytest.approx(mean, abs=0.012)
    assert got.sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("reference", ["personal", "shared"])
def test_references_stay_unless_they_are_shared(reference):
    method = build(2, 3, information_weight=0.1, reference=reference)
    references = {CENTRE, SPREAD, SCALE}
    assert references <= {**method.init_client(rng(), rng()), **method.init_server(rng())}.keys()
    assert references & method.shared_spec().keys() == (
        references if reference == "shared" else set()
    )

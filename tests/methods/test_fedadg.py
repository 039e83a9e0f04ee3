"""FedADG: its losses and nets by hand, the three fits of a step one by one, and what stays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods import ClientView, Examples, fedadg
from methods.fedadg import FedADG, mixed_losses, smoothed_losses, telling_apart
from methods.networks.draws import Draws, uniforms
from tests.methods._tiny_networks import CountingTrainer, some_examples, tiny
from tests.methods._training import rng, trainer


def build(given: int = 2, width: int = 4, **options) -> FedADG:
    return tiny(FedADG, fedadg, given, width, **options)


def one(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_losses_by_hand():
    """D says 0.8 of what is generated and 0.3 of what is not: 0.04 + 0.09, and so on."""
    assert telling_apart(one(0.8), one(0.3)).item() == pytest.approx(0.13)
    # The network's term alone, then beside a cross-entropy of 1: 0.85 + 0.15 * 0.49.
    assert mixed_losses(one(1.0), one(0.3), 0.0).item() == pytest.approx(0.49)
    assert mixed_losses(one(1.0), one(0.3), 0.85).item() == pytest.approx(0.9235)


def test_smoothed_labels_by_hand():
    """Probabilities 1/2, 1/4, 1/4: 0.8 log 2 + 0.1 log 4 + 0.1 log 4 = 1.2 log 2."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64))
    got = smoothed_losses(logits, torch.tensor([0]), 0.2)
    assert got.item() == pytest.approx(1.2 * math.log(2.0))


def tensors(**values) -> dict[str, torch.Tensor]:
    """Of a network of width 4 on one feature; what is not given is zero."""
    method = build(1)
    layers = {**method.shared_layers, **method.personal_layers}
    found = {name: torch.zeros(layer.shape) for name, layer in layers.items()}
    for name, value in values.items():
        key = name.replace("__", ".")
        found[key] = torch.tensor(value, dtype=torch.float32).expand(found[key].shape).clone()
    return found


def batch(label: int = 1) -> dict[str, torch.Tensor]:
    return {
        "features": torch.ones(1, 1),
        "labels": torch.tensor([label]),
        "mark": torch.tensor([5]),
    }


def test_a_verdict_by_hand():
    """Projection 2 (1+1+1+1) = 8; hidden 0.5 * 8 + 3 * 0.7 - 7 = -0.9, leaking 0.009."""
    parameters = tensors(
        discriminator__projection=[[2.0]],
        discriminator__hidden__weight=[[0.5, 0.0, 3.0]],
        discriminator__hidden__bias=[-7.0],
        discriminator__output__weight=[[100.0]],
    )
    got = build(1).verdict(parameters, torch.ones(1, 4), batch(1))
    assert got.item() == pytest.approx(1.0 / (1.0 + math.exp(0.9)), rel=1e-5)
    # The other label has no weight: 4 - 7 = -3, leaking 0.03.
    got = build(1).verdict(parameters, torch.ones(1, 4), batch(0))
    assert got.item() == pytest.approx(1.0 / (1.0 + math.exp(3.0)), rel=1e-5)


@pytest.mark.parametrize(
    ("output", "last"), [("relu", 0.0), ("linear", -1.0), ("unit", -1.0 / math.sqrt(5.0))]
)
def test_a_generated_feature_by_hand(output, last):
    """Hidden: the first of two noise numbers; out: twice it, 0, 0 and minus it."""
    method = build(1, generator_output=output)
    assert method.noise_width == 2
    parameters = tensors()
    parameters["generator.hidden.weight"][0, 0] = 1.0
    parameters["generator.output.weight"][:, 0] = torch.tensor([2.0, 0.0, 0.0, -1.0])
    draws = Draws(rng())
    noise = uniforms(torch.tensor([5]), draws.key, 2)[0, 0].item()
    got = method.generated(draws, parameters, batch())[0]
    scale = 1.0 if output == "unit" else noise
    first = 2.0 / math.sqrt(5.0) if output == "unit" else 2.0
    np.testing.assert_allclose(got.numpy(), [first * scale, 0, 0, last * scale], atol=1e-6)


def prepared(method: FedADG, count: int = 8) -> Examples:
    data = some_examples(count, 2)
    images = {"features": data.arrays["features"]}
    return Examples({**method.prepare(images), "labels": data.arrays["labels"]})


def view_of(method: FedADG, seed: int = 0) -> ClientView:
    personal = method.init_client(rng(seed + 1), rng())
    return ClientView(method.init_server(rng(seed)), personal=personal)


def test_one_step_is_three_fits_one_after_the_other():
    """By torch's own gradients on all of the data, D first, then the network, then G."""
    method, rate = build(first_share=0.0, adversary_rate=0.5), 0.3
    data, view = prepared(method), view_of(method)
    used = trainer(steps=1, learning_rate=rate, batch_size=8)
    got = method.client_update(view, data, used, rng(9))
    model = {n: torch.tensor(v) for n, v in {**view.broadcast, **view.personal}.items()}
    rows = {n: torch.from_numpy(np.array(v)) for n, v in data.arrays.items()}
    draws = Draws(rng(9))
    for names, length, losses in (
        (method.personal_layers, 0.5 * rate, method.discriminator_losses),
        (method.network_layers, rate, None),
        (method.generator_layers, 0.5 * rate, method.generator_losses),
    ):
        leaves = {n: model[n].clone().requires_grad_() for n in names}
        whole = {**model, **leaves}
        each = method.network_losses(whole, rows) if losses is None else losses(draws, whole, rows)
        slopes = torch.autograd.grad(each.mean(), tuple(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            model[name] = model[name] - length * slope
    for name in method.shared_layers:
        moved = model[name].numpy() - view.broadcast[name]
        np.testing.assert_allclose(got.update[name], moved, atol=1e-6)
    for name in method.personal_layers:
        np.testing.assert_allclose(got.personal[name], model[name].numpy(), atol=1e-6)
    assert all(got.update[n].any() for n in ("extractor.fc.weight", "generator.hidden.weight"))


def test_three_tenths_of_the_steps_are_cross_entropy_alone():
    method = build()
    used = CountingTrainer(trainer(steps=10, batch_size=3).plan)
    method.client_update(view_of(method), prepared(method), used, rng())
    network, made = tuple(method.network_layers), tuple(method.generator_layers)
    judge = tuple(method.personal_layers)
    assert used.fits[0] == (network, 3)
    assert used.fits[1:] == [(judge, 1), (network, 1), (made, 1)] * 7

"""Numbers of an example and a step, and FedADG and FedSR, which draw them, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.func import vmap

from methods import ClientView, Examples, fedadg, fedsr
from methods.fedadg import FedADG, mixed_losses, smoothed_losses, telling_apart
from methods.fedsr import CENTRE, SCALE, SPREAD, FedSR, divergences
from methods.networks.draws import MARK, Draws, marked, mixed, normals, uniforms
from tests.methods._tiny_networks import CountingTrainer, some_examples, tiny
from tests.methods._training import newcomer, rng, tensors, trainer


def test_the_mixer_is_the_published_generator():
    """SplitMix64 from the seed 1234567, as its test vectors are published."""
    states = [(1234567 + k * 0x9E3779B97F4A7C15) % 2**64 for k in (1, 2, 3)]
    signed = torch.tensor([s - 2**64 if s >= 2**63 else s for s in states])
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(word) % 2**64 for word in mixed(signed)] == expected


@pytest.fixture(scope="module")
def marks() -> torch.Tensor:
    return torch.from_numpy(rng().integers(-(2**63), 2**63, 2_000))


def test_the_law_of_the_numbers(marks: torch.Tensor):
    """200,000 of them: a share of p is off by 0.0006 for p = 0.025 at most seven times in 10^14."""
    drawn = normals(marks, 5, 100).numpy()
    assert drawn.mean() == pytest.approx(0.0, abs=7 / 200_000**0.5)
    assert drawn.std() == pytest.approx(1.0, abs=7 / 400_000**0.5)
    for quantile, share in ((-1.959964, 0.025), (-0.674490, 0.25), (0.0, 0.5), (1.281552, 0.9)):
        deviation = (share * (1 - share) / 200_000) ** 0.5
        assert np.mean(drawn < quantile) == pytest.approx(share, abs=7 * deviation)
    flat = uniforms(marks, 5, 100)
    assert 0.0 < flat.min() < 1e-4
    assert 1.0 - 1e-4 < flat.max() < 1.0


def test_an_example_has_its_own_numbers_in_any_company(marks: torch.Tensor):
    whole = normals(marks[:8], 5, 3)
    assert torch.equal(normals(marks[2:3], 5, 3)[0], whole[2])
    assert torch.equal(vmap(lambda mark: normals(mark[None], 5, 3)[0])(marks[:8]), whole)


def test_a_mark_is_of_the_content():
    arrays = {"a": np.array([[1.0], [1.0], [2.0]]), "b": np.array([[3], [3], [3]])}
    first, second, third = marked(arrays)[MARK]
    assert first == second != third
    assert marked({n: v[2:] for n, v in arrays.items()})[MARK] == [third]


def test_keys_go_step_by_step_and_leave_the_batches_alone():
    mine, plain = rng(1), rng(1)
    draws = Draws(mine)
    first = draws.key
    assert draws.key == first
    draws.advance({})
    second = draws.key
    assert second != first
    assert mine.random() == plain.random()
    # Two trainings in a row, as one: the second begins where the first has ended.
    again = rng(1)
    one, other = Draws(again), Draws(again)
    assert [one.key, other.key] == [first, second]


def adg(given: int = 2, width: int = 4, **options) -> FedADG:
    return tiny(FedADG, fedadg, given, width, **options)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_losses_by_hand():
    """D says 0.8 of what is generated and 0.3 of what is not: 0.04 + 0.09, and so on."""
    assert telling_apart(double(0.8), double(0.3)).item() == pytest.approx(0.13)
    # The network's term alone, then beside a cross-entropy of 1: 0.85 + 0.15 * 0.49.
    assert mixed_losses(double(1.0), double(0.3), 0.0).item() == pytest.approx(0.49)
    assert mixed_losses(double(1.0), double(0.3), 0.85).item() == pytest.approx(0.9235)


def test_smoothed_labels_by_hand():
    """Probabilities 1/2, 1/4, 1/4: 0.8 log 2 + 0.1 log 4 + 0.1 log 4 = 1.2 log 2."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64))
    got = smoothed_losses(logits, torch.tensor([0]), 0.2)
    assert got.item() == pytest.approx(1.2 * math.log(2.0))


def zeros_but(**values) -> dict[str, torch.Tensor]:
    """Of a network of width 4 on one feature; what is not given is zero."""
    method = adg(1)
    layers = {**method.shared_layers, **method.personal_layers}
    found = {name: torch.zeros(layer.shape) for name, layer in layers.items()}
    for name, value in values.items():
        key = name.replace("__", ".")
        found[key] = torch.tensor(value, dtype=torch.float32).expand(found[key].shape).clone()
    return found


def batch_of(label: int) -> dict[str, torch.Tensor]:
    return tensors({"features": np.ones((1, 1), np.float32), "labels": [label], "mark": [5]})


def test_a_verdict_by_hand():
    """Projection 2 (1+1+1+1) = 8; hidden 0.5 * 8 + 3 * 0.7 - 7 = -0.9, leaking 0.009."""
    parameters = zeros_but(
        discriminator__projection=[[2.0]],
        discriminator__hidden__weight=[[0.5, 0.0, 3.0]],
        discriminator__hidden__bias=[-7.0],
        discriminator__output__weight=[[100.0]],
    )
    got = adg(1).verdict(parameters, torch.ones(1, 4), batch_of(1))
    assert got.item() == pytest.approx(1.0 / (1.0 + math.exp(0.9)), rel=1e-5)
    # The other label has no weight: 4 - 7 = -3, leaking 0.03.
    got = adg(1).verdict(parameters, torch.ones(1, 4), batch_of(0))
    assert got.item() == pytest.approx(1.0 / (1.0 + math.exp(3.0)), rel=1e-5)


@pytest.mark.parametrize(
    ("output", "last"), [("relu", 0.0), ("linear", -1.0), ("unit", -1.0 / math.sqrt(5.0))]
)
def test_a_generated_feature_by_hand(output, last):
    """Hidden: the first of two noise numbers; out: twice it, 0, 0 and minus it."""
    method = adg(1, generator_output=output)
    assert method.noise_width == 2
    parameters = zeros_but()
    parameters["generator.hidden.weight"][0, 0] = 1.0
    parameters["generator.output.weight"][:, 0] = torch.tensor([2.0, 0.0, 0.0, -1.0])
    draws = Draws(rng())
    noise = uniforms(torch.tensor([5]), draws.key, 2)[0, 0].item()
    got = method.generated(draws, parameters, batch_of(1))[0]
    scale = 1.0 if output == "unit" else noise
    first = 2.0 / math.sqrt(5.0) if output == "unit" else 2.0
    np.testing.assert_allclose(got.numpy(), [first * scale, 0, 0, last * scale], atol=1e-6)


def prepared(method: FedADG) -> Examples:
    data = some_examples(8, 2).arrays
    return Examples({**method.prepare({"features": data["features"]}), "labels": data["labels"]})


def test_one_step_is_three_fits_one_after_the_other():
    """By torch's own gradients on all of the data, D first, then the network, then G."""
    method, rate = adg(first_share=0.0, adversary_rate=0.5), 0.3
    data, view = prepared(method), newcomer(method)
    used = trainer(steps=1, learning_rate=rate, batch_size=8)
    got = method.client_update(view, data, used, rng(9))
    model, rows = tensors({**view.broadcast, **view.personal}), tensors(data.arrays)
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
    method = adg()
    used = CountingTrainer(trainer(steps=10, batch_size=3).plan)
    method.client_update(newcomer(method), prepared(method), used, rng())
    network, made = tuple(method.network_layers), tuple(method.generator_layers)
    judge = tuple(method.personal_layers)
    assert used.fits[0] == (network, 3)
    assert used.fits[1:] == [(judge, 1), (network, 1), (made, 1)] * 7


RAW_HALF = math.log(math.exp(0.5) - 1.0)
"""softplus of it is 0.5."""


def sr(given: int = 1, width: int = 1, **options) -> FedSR:
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


def known(*, mean, raw, head=None, **reference) -> dict[str, torch.Tensor]:
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
    return tensors({name: np.array(value, np.float32) for name, value in arrays.items()})


def loss(method: FedSR, parameters: dict[str, torch.Tensor], label: int = 0) -> float:
    return method.simple_losses(Draws(rng()), parameters, batch_of(label)).item()


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
    method = sr(representation_width=2, information_weight=0.0, **options)
    parameters = known(mean=[3.0, 4.0], raw=[-200.0, -200.0])
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
    method = sr(norm_weight=0.0, information_weight=2.0, **options)
    parameters = known(mean=[1.0], raw=[RAW_HALF], **reference)
    got = loss(method, parameters, label)
    assert got == pytest.approx(math.log(2.0) + 2.0 * expected, abs=1e-5)


def test_a_prediction_is_a_mean_of_softmax():
    """One logit is z ~ N(1, 1), the other 0: the mean of the sigmoid by Gauss-Hermite."""
    method = sr(samples=4000)
    one = math.log(math.e - 1.0)
    model = known(mean=[1.0], raw=[one], head=[[0.0], [1.0]])
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
    method = sr(2, 3, information_weight=0.1, reference=reference)
    references = {CENTRE, SPREAD, SCALE}
    assert references <= {**method.init_client(rng(), rng()), **method.init_server(rng())}.keys()
    assert references & method.shared_spec().keys() == (
        references if reference == "shared" else set()
    )

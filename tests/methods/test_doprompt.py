"""DoPrompt: mixtures by hand, prompts beside the patches of a trained tower, and who is asked."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import BackboneError, ClientView, Examples, MethodError, Task, doprompt
from methods.clip.adapter import load_backbone
from methods.doprompt import PROMPTS, Config, mixed
from methods.prompts.deep import DeepImageEncoder
from tests.methods._models import MODELS, make_model, write_folder
from tests.methods._training import RecordingTrainer, trainer

CLASSES = ("triangle", "circle", "square")
DOMAINS = ("ink", "paint")


@cache
def task() -> Task:
    return Task(CLASSES, DOMAINS, 1, backbone=load_backbone("sotto-tiny"))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def build(**options) -> doprompt.DoPrompt:
    return doprompt.build(Config(**{"context_tokens": 2, **options}), task())


def draw(method, count: int = 6) -> Examples:
    pixels = rng(1).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return Examples(
        {
            **method.prepare({"pixels": pixels}),
            "labels": rng(2).integers(0, len(CLASSES), count),
            "domains": rng(3).integers(0, len(DOMAINS), count),
        }
    )


def start(method) -> dict[str, np.ndarray]:
    """A start whose adapter tells domains apart and whose prompts are seen."""
    found = dict(method.init_client(rng(4), rng(5)))
    return {**found, PROMPTS: 30.0 * found[PROMPTS]}


def batch(method, count: int = 6) -> dict[str, torch.Tensor]:
    return method.tensors(draw(method, count).arrays)


def test_a_mixture_by_hand():
    """Two domains, one place: a quarter of (4, 0) and three of (0, 8)."""
    prompts = torch.tensor([[[4.0, 0.0]], [[0.0, 8.0]]])
    shares = torch.tensor([[[0.25, 0.75]], [[1.0, 0.0]]])
    assert mixed(shares, prompts).tolist() == [[[1.0, 6.0]], [[4.0, 0.0]]]


def test_an_adapter_that_knows_nothing_costs_the_logarithm_of_two():
    """Equal logits of two domains: w = 1/2 everywhere, BCE = ln 2."""
    method = build(domain_weight=1.0)
    personal = start(method)
    for name in ("adapter.outer.weight", "adapter.outer.bias"):
        personal[name] = np.zeros_like(personal[name])
    parameters, some = method.tensors(personal), batch(method)
    np.testing.assert_allclose(method.shares(parameters, method.tower.inputs(some)), 0.5)
    with_it = method.losses(parameters, some)
    without = replace(method, config=replace(method.config, domain_weight=0.0))
    np.testing.assert_allclose(
        (with_it - without.losses(parameters, some)).detach(), math.log(2.0), rtol=1e-5
    )


def test_prompts_are_beside_the_patches_in_every_layer():
    """Oracle: the frozen tower of deep prompts with one layer of them, where the norm before the
    first layer, which these do not pass, is undone."""
    method = build()
    parameters, some = method.tensors(start(method)), batch(method)
    inputs, backbone = method.tower.inputs(some), task().backbone
    deep = DeepImageEncoder.of(backbone)
    prompts = parameters[PROMPTS][0]
    norm = backbone.image_module.ln_pre
    # What the norm returns for this is the prompt: unit variance and zero mean undone by hand.
    wanted = functional.layer_norm(prompts, prompts.shape[-1:], norm.weight, norm.bias, norm.eps)
    with torch.no_grad():
        expected = deep.image_features(deep.embed(inputs), prompts[None])
        found = method.tower.features_beside(parameters, inputs, wanted.expand(len(inputs), -1, -1))
        none = method.tower.features_beside(parameters, inputs, prompts[:0].expand(6, 0, -1))
        plain = method.tower.features(parameters, inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(none, plain, atol=1e-6)
    assert np.abs(found.numpy() - plain.numpy()).max() > 1e-3


def test_the_loss_is_of_both_passes_and_of_domains():
    """Each part from the tower, torch's losses, and the domains' own prompts."""
    method = build(domain_weight=0.7)
    parameters, some = method.tensors(start(method)), batch(method)
    inputs = method.tower.inputs(some)
    with torch.no_grad():
        z = method.tower.features(parameters, inputs)
        hidden = functional.gelu(
            z @ parameters["adapter.inner.weight"].T + parameters["adapter.inner.bias"]
        )
        logits = hidden @ parameters["adapter.outer.weight"].T + parameters["adapter.outer.bias"]
        expected = torch.zeros(6)
        for row in range(6):
            shares = logits[row].reshape(2, 2).softmax(-1)
            domain = int(some["domains"][row])
            own = parameters[PROMPTS][domain]
            mixture = torch.stack(
                [
                    sum(shares[place, d] * parameters[PROMPTS][d, place] for d in (0, 1))
                    for place in (0, 1)
                ]
            )
            for prompts in (own, mixture):
                feature = method.tower.features_beside(
                    parameters, inputs[row : row + 1], prompts[None]
                )
                seen = feature @ parameters["head.weight"].T + parameters["head.bias"]
                expected[row] += functional.cross_entropy(seen, some["labels"][row : row + 1])
            flags = torch.eye(2)[domain].expand(2, 2)
            expected[row] += 0.7 * functional.binary_cross_entropy(shares, flags)
        np.testing.assert_allclose(method.losses(parameters, some), expected, rtol=1e-4)


def test_the_feature_that_the_adapter_sees_is_held():
    """The tower's gradient of the domains' loss comes from nowhere."""
    method = build()
    parameters, some = method.tensors(start(method)), batch(method)
    leaves = {n: t.requires_grad_(t.is_floating_point()) for n, t in parameters.items()}
    shares = method.shares(leaves, method.tower.inputs(some))
    names = [n for n in leaves if n.startswith("extractor.")]
    found = torch.autograd.grad(
        shares[:, :, 0].sum(), [leaves[n] for n in names], allow_unused=True
    )
    assert all(one is None for one in found)
    adapter = torch.autograd.grad(
        method.shares(leaves, method.tower.inputs(some))[:, :, 0].sum(),
        leaves["adapter.inner.bias"],
    )[0]
    assert adapter.abs().max() > 0.0


def test_an_image_s_domain_is_never_asked_for():
    method = build()
    view, data = ClientView({}, personal=start(method)), draw(method)
    pixels = {"pixels": data.arrays["pixels"]}
    found = method.predict(view, pixels, CLASSES)
    np.testing.assert_array_equal(found, method.predict(view, data.arrays, CLASSES))
    alone = np.concatenate(
        [method.predict(view, {"pixels": row[None]}, CLASSES) for row in pixels["pixels"]]
    )
    np.testing.assert_allclose(found, alone, atol=1e-4)
    assert "domains" in method.needs


def test_training_has_four_rates_and_lowers_the_loss():
    method, taken = build(), RecordingTrainer()
    view, data = ClientView({}, personal=start(method)), draw(method)
    method.client_update(view, data, taken, rng())
    assert [group.learning_rate for group in taken.groups] == [None, 1e-4, 5e-6, 5e-4]
    named = [name for group in taken.groups for name in group.names]
    assert sorted(named) == sorted(method.personal_layers)
    result = method.client_update(view, data, trainer(steps=4, learning_rate=0.05), rng(1))
    assert dict(result.update) == {}

    def loss(personal) -> float:
        some = batch(method)
        with torch.no_grad():
            return float(method.losses(method.tensors(personal), some).mean())

    assert loss(result.personal) < loss(view.personal)


def test_what_it_says_of_itself(tmp_path):
    method = build()
    assert method.centralised
    assert method.shared_spec() == {}
    with pytest.raises(MethodError, match="client: none"):
        method.predict(ClientView({}), draw(method).arrays, CLASSES)
    config = MODELS["resnet-gelu"]
    backbone = load_backbone(write_folder(tmp_path, config, make_model(config)))
    with pytest.raises(BackboneError, match="takes no prompts; valid"):
        doprompt.build(Config(), Task(CLASSES, DOMAINS, 1, backbone=backbone))

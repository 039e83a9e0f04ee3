"""DoPrompt and HCVP: prompts beside the patches in each layer, contrasts and mixtures by hand."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Task, doprompt, hcvp
from methods.clip.adapter import load_backbone
from methods.doprompt import PROMPTS, mixed
from methods.hcvp import MAP, contrast
from methods.prompts.deep import DeepImageEncoder
from tests.methods._training import rng

CLASSES = ("triangle", "circle", "square")
DOMAINS = ("ink", "paint")


@cache
def task() -> Task:
    return Task(CLASSES, DOMAINS, 1, backbone=load_backbone("sotto-tiny"))


def doprompt_of(**options) -> doprompt.DoPrompt:
    return doprompt.build(doprompt.Config(**{"context_tokens": 2, **options}), task())


def start_of(method) -> dict[str, np.ndarray]:
    """A start whose adapter tells domains apart and whose prompts are seen."""
    found = dict(method.init_client(rng(4), rng(5)))
    return {**found, PROMPTS: 30.0 * found[PROMPTS]}


def batch_of(method, count: int = 6) -> dict[str, torch.Tensor]:
    pixels = rng(1).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    raw = {"pixels": pixels, "tokens": task().backbone.encode_tokens(pixels)}
    return method.tensors(
        {
            **method.prepare({name: raw[name] for name in method.needs & raw.keys()}),
            "labels": rng(2).integers(0, len(CLASSES), count),
            "domains": rng(3).integers(0, len(DOMAINS), count),
        }
    )


def test_a_mixture_by_hand():
    """Two domains, one place: a quarter of (4, 0) and three of (0, 8)."""
    prompts = torch.tensor([[[4.0, 0.0]], [[0.0, 8.0]]])
    shares = torch.tensor([[[0.25, 0.75]], [[1.0, 0.0]]])
    assert mixed(shares, prompts).tolist() == [[[1.0, 6.0]], [[4.0, 0.0]]]


def test_prompts_are_beside_the_patches_in_every_layer():
    """Oracle: the frozen tower of deep prompts with one layer of them, where the norm before the
    first layer, which these do not pass, is undone."""
    method = doprompt_of()
    parameters, some = method.tensors(start_of(method)), batch_of(method)
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


def test_an_adapter_below_zero_knows_no_domain():
    """ReLU makes zero of -1, so all domains are alike; another activation would not."""
    method = doprompt_of()
    start = method.init_client(rng(4), rng(5))
    inner = {
        f"adapter.inner.{name}": start[f"adapter.inner.{name}"] * 0 for name in ("weight", "bias")
    }
    outer = {"adapter.outer.bias": start["adapter.outer.bias"] * 0}
    below = {**inner, "adapter.inner.bias": inner["adapter.inner.bias"] - 1}
    parameters = method.tensors({**start, **below, **outer})
    inputs = method.tower.inputs(batch_of(method, 2))
    assert (method.shares(parameters, inputs) == 0.5).all()


def test_the_loss_is_of_both_passes_and_of_domains():
    """Each part from the tower, torch's losses, and the domains' own prompts."""
    method = doprompt_of(domain_weight=0.7)
    parameters, some = method.tensors(start_of(method)), batch_of(method)
    inputs = method.tower.inputs(some)
    with torch.no_grad():
        z = method.tower.features(parameters, inputs)
        hidden = functional.relu(
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


ALL = {"domain_contrast": 0.5, "task_contrast": 0.25, "class_contrast": 2.0}


def hcvp_of(**options) -> hcvp.Hcvp:
    return hcvp.build(hcvp.Config(**options), task())


def test_hcvps_contrast_by_hand():
    """Rows at 0, 0 and 90 degrees, t = 1; the first two are alike.

    Rows 1 and 2: the other is at cosine 1, the third at 0: -ln(e / (e + 1)) = 0.313262. Row 3 has
    nobody: -ln(1e-7 / 2) = 16.8.
    """
    rows = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    alike = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    found = contrast(rows, alike, 1.0)
    assert found.tolist() == pytest.approx([0.313262, 0.313262, math.log(2e7)], rel=1e-5)
    # At t = 1/2 cosines count twice: -ln(e^2 / (e^2 + 1)).
    assert contrast(rows, alike, 0.5)[0] == pytest.approx(math.log1p(math.exp(-2.0)), rel=1e-5)
    assert contrast(rows[:1], alike[:1, :1], 1.0).tolist() == [0.0]


def test_a_task_prompt_is_the_mean_of_a_convolution_of_one_position():
    """Oracle: torch's 1x1 convolution over map and prompt at each position, then the mean."""
    method = hcvp_of()
    personal = method.init_client(rng(1), rng(2))
    whole = torch.tensor(rng(3).normal(size=(2, 9, 128)), dtype=torch.float32)
    parameters = method.tensors(personal)
    domain, asked = method.prompts(parameters, {MAP: whole.mean(1)})
    expected = functional.linear(
        whole.mean(1), parameters["domain_prompt.weight"], parameters["domain_prompt.bias"]
    )
    np.testing.assert_allclose(domain, expected, atol=1e-6)
    beside = torch.cat((whole, expected[:, None].expand(-1, 9, -1)), dim=2).transpose(1, 2)
    weight = parameters["task_prompt.weight"][:, :, None]
    convolved = functional.conv1d(beside, weight, parameters["task_prompt.bias"])
    np.testing.assert_allclose(asked, convolved.mean(2), atol=1e-5)


def frozen_feature(inputs, prompts):
    """The deep encoder's feature, where each image's prompts of each layer are handed over.

    It takes prompts alike for all images, and puts the first behind a norm, which is run here.
    """
    deep = DeepImageEncoder.of(task().backbone)
    visual, rows = deep.visual, []
    for row in range(len(inputs)):
        patches = deep.embed(inputs[row : row + 1])
        state, size = torch.cat((patches, prompts[0][row][None]), dim=1), patches.shape[1]
        for index, block in enumerate(visual.transformer.resblocks):
            if index:
                state = torch.cat((state[:, :size], prompts[index][row][None]), dim=1)
            state = block(state)
        rows.append(functional.normalize(deep.tower.pool(state[:, :size]), dim=-1))
    return torch.cat(rows)


@pytest.mark.parametrize("modulation", ["shared", "layers", "separate"])
def test_each_layer_sees_both_prompts_as_they_are_passed(modulation):
    method = hcvp_of(modulation=modulation)
    personal = {
        name: value * (1.0 if name.startswith(("extractor", "head")) else 3.0)
        for name, value in method.init_client(rng(1), rng(2)).items()
    }
    parameters, some = method.tensors(personal), batch_of(method, 3)
    with torch.no_grad():
        both = method.prompts(parameters, some)
        prompts = [torch.stack(both, 1)]
        for layer in (1, 2, 3):
            names = {
                "shared": ("modulation", "modulation"),
                "layers": (f"modulation{layer}",) * 2,
                "separate": ("modulation_p", "modulation_q"),
            }[modulation]
            passed = [
                one @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
                for one, name in zip(both, names, strict=True)
            ]
            prompts.append(torch.stack(passed, 1))
        feature = frozen_feature(method.tower.inputs(some), prompts)
        expected = feature @ parameters["head.weight"].T + parameters["head.bias"]
        found = method.logits(parameters, some)
        plain = method.tower.features(parameters, method.tower.inputs(some))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    assert (plain - feature).abs().max() > 1e-3


def test_factors_add_their_contrasts():
    """Each with what counts as alike: domain, domain and class, class."""
    plain, method = hcvp_of(), hcvp_of(**ALL, temperature=0.7)
    assert (plain.couples_examples, method.couples_examples) == (False, True)
    parameters, some = method.tensors(method.init_client(rng(1), rng(2))), batch_of(method)
    with torch.no_grad():
        both = method.prompts(parameters, some)
        feature = method._feature(parameters, some, both)
        labels, domains = some["labels"], some["domains"]
        expected = plain.losses(parameters, some)
        for factor, rows, key in (
            (0.5, both[0], domains),
            (0.25, both[1], domains * len(CLASSES) + labels),
            (2.0, feature, labels),
        ):
            expected = expected + factor * contrast(rows, key[:, None] == key, 0.7)
        np.testing.assert_allclose(method.losses(parameters, some), expected, rtol=1e-5)
        one = functional.cross_entropy(method.logits(parameters, some), labels, reduction="none")
        np.testing.assert_allclose(plain.losses(parameters, some), one, rtol=1e-5)

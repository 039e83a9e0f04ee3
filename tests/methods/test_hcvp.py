"""HCVP: the contrast by hand, prompts that an image makes, and what each layer sees."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import Examples, Task, hcvp
from methods.clip.adapter import load_backbone
from methods.hcvp import MAP, Config, contrast
from methods.prompts.deep import DeepImageEncoder
from tests.methods._training import rng

CLASSES = ("triangle", "circle", "square")
DOMAINS = ("ink", "paint")
ALL = {"domain_contrast": 0.5, "task_contrast": 0.25, "class_contrast": 2.0}


@cache
def task() -> Task:
    return Task(CLASSES, DOMAINS, 1, backbone=load_backbone("sotto-tiny"))


def build(**options) -> hcvp.Hcvp:
    return hcvp.build(Config(**options), task())


def draw(method, count: int = 6) -> Examples:
    pixels = rng(1).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    tokens = task().backbone.encode_tokens(pixels)
    return Examples(
        {
            **method.prepare({"pixels": pixels, "tokens": tokens}),
            "labels": rng(2).integers(0, len(CLASSES), count),
            "domains": rng(3).integers(0, len(DOMAINS), count),
        }
    )


def batch(method, count: int = 6) -> dict[str, torch.Tensor]:
    return method.tensors(draw(method, count).arrays)


def test_the_contrast_by_hand():
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
    method = build()
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
    method = build(modulation=modulation)
    personal = {
        name: value * (1.0 if name.startswith(("extractor", "head")) else 3.0)
        for name, value in method.init_client(rng(1), rng(2)).items()
    }
    parameters, some = method.tensors(personal), batch(method, 3)
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
    plain, method = build(), build(**ALL, temperature=0.7)
    assert (plain.couples_examples, method.couples_examples) == (False, True)
    parameters, some = method.tensors(method.init_client(rng(1), rng(2))), batch(method)
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

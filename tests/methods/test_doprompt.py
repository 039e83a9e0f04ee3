"""DoPrompt: mixtures by hand, prompts beside the patches of a trained tower, and who is asked."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch.nn import functional

from methods import Examples, Task, doprompt
from methods.clip.adapter import load_backbone
from methods.doprompt import PROMPTS, Config, mixed
from methods.prompts.deep import DeepImageEncoder
from tests.methods._training import rng

CLASSES = ("triangle", "circle", "square")
DOMAINS = ("ink", "paint")


@cache
def task() -> Task:
    return Task(CLASSES, DOMAINS, 1, backbone=load_backbone("sotto-tiny"))


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

"""Deep prompts against plain open_clip with hooks that put the prompts in place."""

from __future__ import annotations

import contextlib

import numpy as np
import open_clip
import pytest
import torch
from torch.nn import functional

from methods.clip.adapter import Backbone, load_backbone
from methods.prompts.deep import DeepImageEncoder, DeepTextEncoder
from tests.methods._models import MODELS, TEXT, VIT, make_model, some_quick, write_folder

CLASSES = ("circle", "old grey flower", "star")
OPENING = "a photo of a"
DEEP = {
    name: MODELS[name]
    for name in ("vit-gelu", "vit-quickgelu", "custom-text", "layer-scale", "custom-blocks")
} | {
    "average": {
        "vision_cfg": {**VIT, "layers": 3, "pool_type": "avg", "pos_embed_type": "sin_cos_2d"},
        "text_cfg": TEXT,
    },
    "norm-after-pool": {
        "vision_cfg": {**VIT, "pool_type": "avg", "final_ln_after_pool": True},
        "text_cfg": TEXT,
    },
    "no-first-norm": {"vision_cfg": {**VIT, "no_ln_pre": True}, "text_cfg": TEXT},
    "custom-image-blocks": {"vision_cfg": {**VIT, "qk_norm": True}, "text_cfg": TEXT},
    "one-layer": MODELS["one-layer"] | {"vision_cfg": {**VIT, "layers": 1}},
}


KINDS = some_quick(["sotto-tiny", *DEEP], "sotto-tiny", "average", "norm-after-pool")


@pytest.fixture(scope="module", params=KINDS)
def backbone(request, tmp_path_factory) -> Backbone:
    if request.param == "sotto-tiny":
        return load_backbone("sotto-tiny")
    config = DEEP[request.param]
    folder = tmp_path_factory.mktemp("deep")
    return load_backbone(write_folder(folder, config, make_model(config)))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5


@contextlib.contextmanager
def filled(blocks, prompts, places: slice):
    """Before block i of the first J, the rows at `places` are overwritten by prompts[i]."""

    def hook(index):
        def fill(block, arguments, options):
            state = arguments[0].clone()
            state[:, places] = prompts[index]
            return (state, *arguments[1:]), options

        return fill

    hooks = [
        block.register_forward_pre_hook(hook(index), with_kwargs=True)
        for index, block in enumerate(blocks[: len(prompts)])
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def plain_texts(backbone: Backbone, contexts, opening: str) -> torch.Tensor:
    """Features by `encode_text` on whole padded texts, hooks overwriting positions 1 to l."""
    model = backbone._model
    tower = getattr(model, "text", model)
    length = contexts.shape[1]
    first = contexts[0] + tower.positional_embedding[1 : 1 + length]
    prompts = [first, *contexts[1:]]
    ids = open_clip.SimpleTokenizer(context_length=backbone.context_length)(
        [f"{opening} {name}." for name in CLASSES]
    )
    with filled(tower.transformer.resblocks, prompts, slice(1, 1 + length)):
        return model.encode_text(ids, normalize=True)


def plain_images(backbone: Backbone, pixels, prompts) -> torch.Tensor:
    """Features by open_clip's own layers, prompts overwriting the last l rows, then cut off."""
    visual = backbone._model.visual
    length = prompts.shape[1]
    embedded = visual._embeds(pixels)
    room = torch.zeros((len(pixels), length, embedded.shape[2]))
    rows = [visual.ln_pre(prompts[0]), *prompts[1:]]
    with filled(visual.transformer.resblocks, rows, slice(-length, None)):
        states = visual.transformer(torch.cat((embedded, room), dim=1))
    # By hand what a tower's pooling is, over the class token and the patches alone.
    own = states[:, : embedded.shape[1]]
    if visual.pool_type == "tok":
        pooled = visual.ln_post(own[:, 0])
    elif visual.final_ln_after_pool:
        pooled = visual.ln_post(own[:, 1:].mean(1))
    else:
        pooled = visual.ln_post(own)[:, 1:].mean(1)
    return functional.normalize(pooled @ visual.proj, dim=-1)


def same_gradients(one: torch.Tensor, other: torch.Tensor, leaf: torch.Tensor) -> None:
    weights = draw(*one.shape, seed=9)
    mine, theirs = (torch.autograd.grad((x * weights).sum(), leaf)[0] for x in (one, other))
    assert float(theirs.abs().max()) > 0
    torch.testing.assert_close(mine, theirs, atol=4e-6 * float(theirs.abs().max()), rtol=0)
    assert all(bool(layer.any()) for layer in mine), "a layer's prompts reach nothing"


@pytest.mark.parametrize("depth", [1, 2, None])
def test_texts_are_open_clips_with_hooks(backbone, depth):
    encoder = DeepTextEncoder(backbone, 2, OPENING)
    depth = encoder.depth if depth is None else min(depth, encoder.depth)
    contexts = draw(depth, 2, backbone.token_dim).requires_grad_()
    features = encoder.text_features(contexts, CLASSES)
    expected = plain_texts(backbone, contexts, OPENING)
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)
    same_gradients(features, expected, contexts)


@pytest.mark.parametrize(("depth", "length"), [(1, 3), (2, 1), (None, 3)])
def test_images_are_open_clips_with_hooks(backbone, depth, length):
    encoder = DeepImageEncoder.of(backbone)
    depth = encoder.depth if depth is None else min(depth, encoder.depth)
    images = np.random.default_rng(2).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    pixels = backbone.to_pixels(images)
    prompts = draw(depth, length, encoder.width).requires_grad_()
    features = encoder.image_features(encoder.embed(pixels), prompts)
    expected = plain_images(backbone, pixels, prompts)
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=0)
    same_gradients(features, expected, prompts)

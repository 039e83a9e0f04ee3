"""Small random models of open_clip, one for each kind of tower that the adapter takes."""

from __future__ import annotations

import json

import open_clip
import pytest
import torch
from safetensors.torch import save_file

VIT = {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}

MODELS = {
    "vit-gelu": {"vision_cfg": VIT, "text_cfg": TEXT},
    "vit-quickgelu": {"vision_cfg": VIT, "text_cfg": TEXT, "quick_gelu": True},
    "resnet-gelu": {"vision_cfg": RESNET, "text_cfg": TEXT},
    "resnet-quickgelu": {"vision_cfg": RESNET, "text_cfg": TEXT, "quick_gelu": True},
    "custom-text": {"vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "layer-scale": {"vision_cfg": VIT, "text_cfg": {**TEXT, "ls_init_value": 0.3}},
    "one-layer": {"vision_cfg": VIT, "text_cfg": {**TEXT, "layers": 1}},
    "eos-pool": {
        "vision_cfg": VIT,
        "text_cfg": {**TEXT, "pool_type": "eos", "eos_id": 49407},
        "custom_text": True,
    },
    "projection-bias": {
        "vision_cfg": VIT,
        "text_cfg": {**TEXT, "proj_bias": True},
        "custom_text": True,
    },
    "custom-blocks": {"vision_cfg": VIT, "text_cfg": {**TEXT, "qk_norm": True}},
}


def make_model(config):
    """A small random model of open_clip, statistics of batch norms included."""
    config = {"embed_dim": 48, **config}
    custom = config.pop("custom_text", False)
    torch.manual_seed(0)
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and tensor.ndim:
                tensor.add_(torch.rand_like(tensor) * 0.05)
    return model.eval()


def write_folder(folder, config, model, **preprocess):
    settings = {"model_cfg": {"embed_dim": 48, **config}, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))
    tensors = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


def some_quick(names, *quick):
    """The names as parameters, of which a quick run has some."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]

"""A CLIP small enough to train prompts through in milliseconds, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import open_clip
import torch
from safetensors.torch import save_file

from methods.clip.adapter import Backbone, load_backbone

EMBED_DIM = 128
CONTEXT_LENGTH = 24
TEXT_WIDTH = 32

MODEL: Final[Mapping[str, Any]] = {
    # Wide enough for the gate of every method's preset; the towers themselves are tiny.
    "embed_dim": EMBED_DIM,
    "vision_cfg": {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 16},
    "text_cfg": {
        "context_length": CONTEXT_LENGTH,
        "vocab_size": 49408,
        "width": TEXT_WIDTH,
        "heads": 2,
        "layers": 2,
    },
}


def random_backbone(folder: Path, seed: int = 0) -> Backbone:
    """Save a randomly initialised open_clip model as a local checkpoint, and load that."""
    document = {"model_cfg": MODEL, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(document))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = open_clip.CLIP(
            EMBED_DIM,
            open_clip.CLIPVisionCfg(**MODEL["vision_cfg"]),
            open_clip.CLIPTextCfg(**MODEL["text_cfg"]),
        )
        # As initialised, all texts look nearly alike; larger tokens tell classes apart.
        with torch.no_grad():
            model.token_embedding.weight.mul_(20.0)
            model.positional_embedding.mul_(5.0)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return load_backbone(f"local-dir:{folder}")

"""Test data for methods: a small task, and random examples and experts.

All arrays are read-only, so a method that writes to an array raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from methods import Arrays, Examples, Method, Task
from methods.clip.adapter import Backbone, load_backbone
from platform.contract.cases import PIXELS

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


def random_backbone(folder: Path) -> Backbone:
    """Save a randomly initialised open_clip model as a local checkpoint, and load it."""
    document = {"model_cfg": MODEL, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(document))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.CLIP(
            EMBED_DIM,
            open_clip.CLIPVisionCfg(**MODEL["vision_cfg"]),
            open_clip.CLIPTextCfg(**MODEL["text_cfg"]),
        )
        # At first all texts have nearly the same features; larger tokens separate the classes.
        with torch.no_grad():
            model.token_embedding.weight.mul_(20.0)
            model.positional_embedding.mul_(5.0)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return load_backbone(f"local-dir:{folder}")


CLASSES: Final = ("circle", "ring", "red square", "star")
DOMAINS: Final = ("ink", "chalk")
POPULATION: Final = 10
TOKENS, TOKEN_WIDTH = 5, 32
WORDS: Final = tuple("river market goal engine the of a Senate café 2-1 $5.".split())


def small_task(backbone: Backbone) -> Task:
    """Return four classes in two domains for ten clients."""
    return Task(CLASSES, DOMAINS, POPULATION, backbone)


def draw_raw(method: Method, seed: int, count: int = 8) -> Arrays:
    """Return random raw arrays, as a data layer would pass them to `Method.prepare`."""
    rng = np.random.default_rng([99, seed])
    features = rng.normal(size=(count, EMBED_DIM)).astype(np.float32)
    side = method.pixel_size or PIXELS
    arrays: dict[str, NDArray[Any]] = {
        "features": features / np.linalg.norm(features, axis=1, keepdims=True),
        "tokens": rng.normal(size=(count, TOKENS, TOKEN_WIDTH)).astype(np.float32),
        "pixels": rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8),
        "text": np.array([" ".join(rng.choice(WORDS, 6)) for _ in range(count)]),
    }
    return frozen({name: arrays[name] for name in sorted(method.needs - {"domains"})})


def draw_examples(method: Method, seed: int, count: int = 8) -> Examples:
    """Return training examples as the platform would pass them to this method."""
    rng = np.random.default_rng([98, seed])
    known: dict[str, NDArray[Any]] = {"labels": rng.integers(0, len(CLASSES), count)}
    if "domains" in method.needs:
        known["domains"] = rng.integers(0, len(DOMAINS), count)
    return Examples(frozen({**method.prepare(draw_raw(method, seed, count)), **known}))


def draw_batch(method: Method, seed: int, count: int = 5) -> Arrays:
    """Return a batch for `predict`, without labels and domains."""
    return frozen(dict(method.prepare(draw_raw(method, seed, count))))


def draw_experts(method: Method, count: int | None = None) -> tuple[Arrays, ...]:
    """Return random pool entries: `count`, or as many as the method asks for."""
    policy = method.pool_policy()
    if policy is None:
        return ()
    rng = np.random.default_rng(17)
    number = policy.k if count is None else count
    return tuple(
        frozen({n: rng.normal(0, 0.3, s.shape).astype(s.dtype) for n, s in policy.spec.items()})
        for _ in range(number)
    )


def handed_out(method: Method) -> tuple[Arrays, ...]:
    """Return a round's experts; none if the pool closes, because clients then refuse experts."""
    policy = method.pool_policy()
    return () if policy is None or policy.closes else draw_experts(method)


def frozen(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays, read-only."""
    for value in arrays.values():
        value.flags.writeable = False
    return arrays

"""What adapters of `parity.py` share: a small CLIP on both sides, our trainer, our gradients."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import torch
from _parity_run import Pair
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from methods import Aggregate, Arrays, ClientView, Examples, Task
from methods.clip.adapter import Backbone, load_backbone
from methods.interface.registry import Registry
from privacy.training import LocalTrainer, TrainingPlan

__all__ = ["ClientView", "Examples", "Pair"]
SEED = 20
RATE = 0.05
"""Learning rate of plain SGD, where an adapter names no other."""
torch.manual_seed(SEED)


def rng(seed: int = SEED) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def settings(**values: Any) -> SimpleNamespace:
    """Nested settings of double-underscored names: `TRAINER__X=1` is read as `.TRAINER.X`."""
    root = SimpleNamespace()
    for key, value in values.items():
        place, *parts = root, *key.split("__")
        for part in parts[:-1]:
            if not hasattr(place, part):
                setattr(place, part, SimpleNamespace())
            place = getattr(place, part)
        setattr(place, parts[-1], value)
    return root


CLASSES = ("cat", "traffic light", "sea_gull", "dog", "rose")
VISION = {"image_size": 32, "layers": 2, "width": 128, "head_width": 64, "patch_size": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 2}


@cache
def clip_pair() -> tuple[Backbone, dict[str, Tensor]]:
    """Our CLIP model, small and random, and its weights under the names of OpenAI's."""
    torch.manual_seed(SEED)
    model = open_clip.CLIP(128, VISION, TEXT, quick_gelu=True)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and tensor.ndim:
                # So large that heads, norms and biases matter; exact in the 16 bits of OpenAI's.
                tensor.add_(torch.rand_like(tensor) * 0.05)
                tensor.copy_(tensor.half().float())
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        config = {"embed_dim": 128, "vision_cfg": VISION, "text_cfg": TEXT, "quick_gelu": True}
        whole = json.dumps({"model_cfg": config, "preprocess_cfg": {}})
        (Path(folder) / "open_clip_config.json").write_text(whole, encoding="utf-8")
        save_file(state, Path(folder) / "open_clip_model.safetensors")
        return load_backbone(f"local-dir:{folder}"), state


def task(classes: Sequence[str] = CLASSES, **named: Any) -> Task:
    named.setdefault("backbone", clip_pair()[0])
    named.setdefault("domains", ("a", "b", "c"))
    named.setdefault("population", 3)
    return Task(tuple(classes), **named)


def ours(name: str, of: Task, **options: Any) -> Any:
    """Our method with these options."""
    registry = Registry()
    return registry.build(name, registry.config_type(name)(**options), of)


def trainer(steps: int, size: int, rate: float = RATE, **plan: Any) -> LocalTrainer:
    """Our trainer, every batch of which is all of `size` examples."""
    return LocalTrainer(
        TrainingPlan(local_steps=steps, batch_size=size, learning_rate=rate, **plan), None
    )


def mean_of(updates: Sequence[Arrays], weights: Sequence[float], **named: Any) -> Aggregate:
    """What a server learns of updates under these weights, which sum to one."""
    values = {
        name: sum(w * one[name] for w, one in zip(weights, updates, strict=True))
        for name in updates[0]
    }
    individual = {f"client-{i}": one for i, one in enumerate(updates)}
    named.setdefault("individual", individual)
    return Aggregate(values, 1.0, len(updates), named.pop("population", len(updates)), **named)


def gradients(
    objective: Any, parameters: Mapping[str, NDArray[Any]], batch: Arrays, penalty: Any = None
) -> tuple[float, dict[str, Tensor]]:
    """Return our mean loss, with the penalty, and its gradient by each parameter."""
    leaves = {name: leaf.requires_grad_() for name, leaf in tensors(parameters).items()}
    encoded = objective.encode(leaves)
    loss = objective.losses(leaves, encoded, tensors(batch)).mean()
    if penalty is not None:
        loss = loss + penalty(leaves, encoded)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.item(), {
        name: torch.zeros_like(leaf) if slope is None else slope
        for (name, leaf), slope in zip(leaves.items(), found, strict=True)
    }

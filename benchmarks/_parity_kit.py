"""One comparison with published code, in a process of its own: `python _parity_kit.py` and JSON.

The process of `parity.py` never imports a user's folder. This one does, and only that one: the
folder comes first on `sys.path`, and nothing of it is copied. What the published code imports and
this environment lacks gets a stand-in of ours: a module of classes that do nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from methods import Aggregate, Arrays, ClientView, Examples, Method, Task
from methods.clip.adapter import Backbone, load_backbone
from methods.interface.registry import Registry
from privacy.training import LocalTrainer, TrainingPlan

Pair = tuple[str, Any, Any]
"""A quantity's name, the published code's value and ours."""
SEED = 20
RATE = 0.05
"""Learning rate of plain SGD, where an adapter names no other."""


class Nothing:
    """Takes any arguments, has any attribute, decorates by doing nothing; made for imports only."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if given else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key: Any) -> Any:
        return Nothing()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the given modules and those below them before anything else, and notes which."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.used = frozenset(names), set[str]()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        parents = [name, *(name[:i] for i, letter in enumerate(name) if letter == ".")]
        if not self.names.intersection(parents):
            return None
        self.used.update(self.names.intersection(parents))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        def made(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Nothing,), {"register": staticmethod(Nothing())})

        module.__getattr__ = made  # type: ignore[method-assign]


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


def flat(values: Any) -> NDArray[np.float64]:
    """One vector of an array, a tensor, a number, or a sequence or mapping of them."""
    if isinstance(values, Mapping):
        values = [values[name] for name in sorted(values)]
    if isinstance(values, list | tuple):
        return np.concatenate([flat(value) for value in values])
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, np.float64).reshape(-1)


def difference(theirs: Any, own: Any) -> dict[str, float]:
    """Return the largest difference, also as a share of the published code's largest value.

    Raises:
        ValueError: If the two are not of one size, or a published value is not finite.
    """
    one, other = flat(theirs), flat(own)
    if one.shape != other.shape:
        raise ValueError(f"{one.size} published values, {other.size} of ours; valid: as many")
    if not np.isfinite(one).all():
        raise ValueError("the published code gives a number that is not finite")
    largest = float(np.abs(one).max(initial=0.0))
    absolute = float(np.abs(one - other).max(initial=0.0))
    return {
        "values": one.size,
        "largest": largest,
        "absolute": absolute if np.isfinite(other).all() else float("inf"),
        "relative": absolute / largest if largest else float(absolute > 0),
    }


def main() -> None:
    adapter, folder, names = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    module, _, function = adapter.partition(":")
    compare: Callable[[Path], Iterator[Pair]] = getattr(importlib.import_module(module), function)
    stand_ins = StandIns(names)
    sys.meta_path.insert(0, stand_ins)
    sys.path.insert(0, str(folder))
    torch.manual_seed(SEED)
    rows = []
    with contextlib.redirect_stdout(io.StringIO()):
        for quantity, theirs, own in compare(folder):
            rows.append({"quantity": quantity, **difference(theirs, own)})
    json.dump({"rows": rows, "stand_ins": sorted(stand_ins.used)}, sys.stdout)


if __name__ == "__main__":
    # Adapters import this file by its name, and must find these very objects.
    sys.modules["_parity_kit"] = sys.modules["__main__"]
    main()

__all__ = ["ClientView", "Examples", "Method", "nn"]

"""A network of one's own: any `nn.Module` that maps images to scores of classes, averaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from methods import MethodError
from methods.interface import method as m
from methods.interface.averaging import AveragedMethod
from methods.networks.method import BatchObjective, blocks, columns_of
from methods.plugins import InProgram
from sotto.errors import invalid

Loss = Callable[[Tensor, Tensor], Tensor]
ROWS = 256
"""Images that are classified at once; changes memory only."""


def averaged(
    module: nn.Module, *, loss: Loss | None = None, size: int = 32, name: str = "averaged"
) -> InProgram:
    """Return FedAvg of a network as a method for `sotto.run`.

    Every client trains the whole network, and the mean change is added. The platform clips, noises
    and masks what clients send, as with any other method; the network does not know.

    Args:
        module: Maps images of shape (B, 3, size, size), with values from 0 to 1, to scores of
            shape (B, C) for the task's C classes. It trains from its present parameters, and is not
            changed. It may neither join the images of a batch, as batch normalisation does, nor
            keep anything of them in a buffer. It predicts as after `eval()`.
        loss: From scores (B, C) and labels (B,) to one loss for each image, (B,). None is
            cross-entropy.
        size: Side of the images in pixels.
        name: The method's name in configurations and records.

    Raises:
        Error: The module has nothing to train, or the name is no name.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise invalid(
            "module", type(module).__name__, "one with parameters that require a gradient"
        )
    if not name.isidentifier():
        raise invalid("name", name, "letters, digits and _")
    loss = loss or _cross_entropies
    told = [repr(module), *(f"{n} {tuple(p.shape)}" for n, p in module.named_parameters())]
    digest = hashlib.sha256("\n".join((*told, loss.__qualname__, str(size))).encode()).hexdigest()

    def build(config: Config, task: m.Task) -> OwnNetwork:
        return OwnNetwork(module.to(task.device), loss, task, pixel_size=size)

    kept = SimpleNamespace(Config=Config, build=build, __doc__=_DOCUMENTED)
    return InProgram(name, kept, digest)


_DOCUMENTED = """FedAvg of a network of one's own.

McMahan et al. 2017, Algorithm 1, on a network that the calling program made.
"""


@dataclass(frozen=True)
class Config:
    """No options."""


def _cross_entropies(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")


@dataclass(frozen=True)
class OwnNetwork(AveragedMethod):
    """Federated averaging of a module; parameters without a gradient stay as they are."""

    module: nn.Module
    loss: Loss
    task: m.Task
    pixel_size: int = field(kw_only=True)
    needs: frozenset[m.Need] = field(default=frozenset({"pixels"}), init=False)
    closed_classes = True

    def __post_init__(self) -> None:
        """Try a copy of the network, and its loss, on images that are drawn."""
        side, device, classes = self.pixel_size, self.task.device, len(self.task.classes)
        drawn = np.random.default_rng(0).random((2, 3, 3, side, side), np.float32)
        # The first image twice, beside other images.
        drawn[1, 0] = drawn[0, 0]
        module, kind = deepcopy(self.module), type(self.module).__name__
        with torch.no_grad():
            found, joining = _tried(module, torch.from_numpy(drawn).to(device))
            if found.shape != (3, classes):
                raise MethodError(
                    f"module: {kind} gives scores of shape {tuple(found.shape)} for 3 images; "
                    f"valid: (3, {classes}), one for each image and class"
                )
            if joining is not None:
                raise MethodError(
                    f"module: {joining} treats an image otherwise beside other images; valid: "
                    "layers that treat each image alone"
                )
            kept = dict(self.module.named_buffers())
            for name, buffer in module.named_buffers():
                if not torch.equal(buffer, kept[name]):
                    raise MethodError(
                        f"module: {kind} changes its buffer {name!r} by images, and no mechanism "
                        "bounds what stays in it; valid: a network that keeps nothing of images"
                    )
            losses = self._losses_of(found, torch.zeros(3, dtype=torch.int64, device=device))
            if not bool(found.isfinite().all() and losses.isfinite().all()):
                raise MethodError(
                    f"module: {kind} gives scores or losses that are not finite for images with "
                    "values from 0 to 1; valid: finite numbers"
                )

    @cached_property
    def _predicting(self) -> nn.Module:
        # Without dropout; the network itself stays in the mode that the program chose.
        return deepcopy(self.module).eval()

    @property
    def _trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def prepare(self, arrays: m.Arrays) -> m.Arrays:
        """Return pixels (n, 3, S, S) uint8."""
        pixels = np.asarray(arrays["pixels"])
        return {"pixels": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))}

    def shared_spec(self) -> Mapping[str, m.TensorSpec]:
        """Return every trained parameter."""
        return {name: m.TensorSpec(tuple(p.shape)) for name, p in self._trained.items()}

    def init_server(self, rng: m.Rng) -> m.Arrays:
        """Return the parameters as the program made them."""
        return {
            name: p.detach().cpu().numpy().astype(np.float32) for name, p in self._trained.items()
        }

    def training_objective(self) -> m.Objective:
        """Return the loss that was given."""

        def losses(parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
            pixels = batch["pixels"].to(torch.float32) / 255.0
            scores = functional_call(self.module, dict(parameters), (pixels,))
            return self._losses_of(scores, batch["labels"])

        return BatchObjective(losses)

    def predict(self, view: m.ClientView, batch: m.Arrays, classes: Sequence[str]) -> m.Logits:
        """Return scores (n, len(classes)) of the averaged network."""
        columns, device = columns_of(classes, self.task.classes), self.task.device
        parameters = {
            n: torch.from_numpy(np.array(a)).to(device) for n, a in view.broadcast.items()
        }
        pieces = []
        with torch.no_grad():
            for some in blocks({"pixels": batch["pixels"]}, ROWS):
                pixels = torch.from_numpy(np.array(some["pixels"])).to(device)
                given = (pixels.to(torch.float32) / 255.0,)
                pieces.append(functional_call(self._predicting, parameters, given))
        found: m.Logits = torch.cat(pieces)[:, columns].cpu().numpy().astype(np.float32)
        return found

    def _losses_of(self, scores: Tensor, labels: Tensor) -> Tensor:
        name = getattr(self.loss, "__qualname__", "loss")
        found = self.loss(scores, labels)
        if not isinstance(found, Tensor) or found.shape != labels.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise MethodError(
                f"loss: {name} gives {shape} for {len(labels)} images; valid: one loss for each "
                'image, as with reduction="none"'
            )
        return found


def _tried(module: nn.Module, batches: Tensor) -> tuple[Tensor, str | None]:
    """Return the scores of the second batch, and the layer that joins images, if there is one.

    The first image of both batches is the same, and so are a layer's random draws. The layer is the
    first to give other rows for the same rows.
    """
    called: dict[str, list[tuple[list[Tensor], list[Tensor]]]] = {}

    def note(path: str, layer: nn.Module, given: Any, found: Any) -> None:
        name = f"{type(layer).__name__} at {path or 'its root'}"
        called.setdefault(name, []).append((_first_rows(given), _first_rows(found)))

    for path, layer in module.named_modules():
        layer.register_forward_hook(partial(note, path))
    with torch.random.fork_rng(devices=[batches.device] if batches.is_cuda else []):
        for batch in batches:
            torch.manual_seed(0)
            found = module(batch)
    for name, calls in called.items():
        half = len(calls) // 2
        for (given, one), (again, other) in zip(calls[:half], calls[half:], strict=False):
            if _are_close(given, again) and not _are_close(one, other):
                return found, name
    return found, None


def _first_rows(values: Any) -> list[Tensor]:
    several = values if isinstance(values, tuple | list) else (values,)
    return [v[0] for v in several if isinstance(v, Tensor) and v.ndim and len(v) == 3]


def _are_close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )

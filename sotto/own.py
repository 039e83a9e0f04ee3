"""A network of one's own: any `nn.Module` that maps images to scores of classes, averaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

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
    trained = module.parameters() if isinstance(module, nn.Module) else ()
    if not any(parameter.requires_grad for parameter in trained):
        valid = "an `nn.Module` with parameters that require a gradient"
        raise invalid("module", type(module).__name__, valid)
    if not name.isidentifier():
        raise invalid("name", name, "letters, digits and _")
    loss = loss or _cross_entropies
    told = [repr(module), *(f"{n} {tuple(p.shape)}" for n, p in module.named_parameters())]
    told += [_name_of(loss), str(size)]
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()

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


def _refused(module: str, valid: str) -> MethodError:
    return MethodError(f"module: {module!r} is not valid; valid: {valid}")


def _name_of(loss: Loss) -> str:
    # A module, or a partial function, has only the name of its class.
    return str(getattr(loss, "__qualname__", type(loss).__qualname__))


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
        drawn = torch.from_numpy(np.random.default_rng(0).random((2, 3, 3, side, side), np.float32))
        # One image beside others, with the same draws of dropout.
        drawn[1, 0] = drawn[0, 0]
        module, kind, found = deepcopy(self.module), type(self.module).__name__, list[Tensor]()
        with torch.no_grad(), torch.random.fork_rng([] if device == "cpu" else [device]):
            for images in drawn.to(device):
                torch.manual_seed(0)
                found.append(module(images))
            if found[0].shape != (3, classes):
                raise MethodError(
                    f"module: {kind} gives scores of shape {tuple(found[0].shape)} for 3 images; "
                    f"valid: (3, {classes}), one for each image and class"
                )
            losses = self._losses_of(found[0], torch.zeros(3, dtype=torch.int64, device=device))
        if not bool(found[0].isfinite().all() and losses.isfinite().all()):
            raise _refused(f"{kind} with scores or losses like NaN", "finite numbers")
        if not torch.allclose(found[0][0], found[1][0], rtol=1e-3, atol=1e-5):
            norms = (n for n, layer in module.named_modules() if isinstance(layer, _BatchNorm))
            layer = next((f"{type(module.get_submodule(n)).__name__} at {n}" for n in norms), kind)
            raise _refused(layer, "a network that treats each image of a batch alone")
        kept = dict(self.module.named_buffers())
        for name, buffer in module.named_buffers():
            if not torch.equal(buffer, kept[name]):
                raise _refused(f"{kind}.{name}", "buffers that images do not change")

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
        found = self.loss(scores, labels)
        if not isinstance(found, Tensor) or found.shape != labels.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise MethodError(
                f"loss: {_name_of(self.loss)} gives {shape} for {len(labels)} images; valid: one "
                'loss for each image, as with reduction="none"'
            )
        return found

"""A method of somebody else's: averaged by a server with momentum, in one file with one preset."""

from __future__ import annotations

from pathlib import Path

METHOD = '''\
"""Momentum: a linear classifier on frozen features, averaged by a server with momentum.

Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", section 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from methods import BackboneError, TensorSpec
from methods.interface.averaging import AveragedMethod
from methods.networks.method import BatchObjective

VARIANTS = ({"momentum": 0.0},)


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        momentum: Of the server.
        scale: Of the logits.
    """

    momentum: float = 0.9
    scale: float = 10.0


@dataclass(frozen=True)
class Momentum(AveragedMethod):
    config: Config
    classes: tuple
    width: int

    @property
    def averaged(self):
        """Nothing: the step has momentum."""
        return frozenset()

    @property
    def closed_classes(self):
        return True

    def shared_spec(self):
        return {"weight": TensorSpec((len(self.classes), self.width))}

    def init_server(self, rng):
        shape = (len(self.classes), self.width)
        weight = rng.standard_normal(shape).astype(np.float32)
        return {"weight": weight, "velocity": np.zeros(shape, np.float32)}

    def broadcast(self, state, client=None):
        return {"weight": state["weight"]}

    def training_objective(self):
        def losses(parameters, batch):
            logits = self.config.scale * batch["features"] @ parameters["weight"].T
            return functional.cross_entropy(logits, batch["labels"], reduction="none")

        return BatchObjective(losses)

    def server_update(self, state, aggregate, pool, rng):
        velocity = self.config.momentum * state["velocity"] + aggregate.values["weight"]
        return {
            "weight": (state["weight"] + velocity).astype(np.float32),
            "velocity": velocity.astype(np.float32),
        }

    def predict(self, view, batch, classes):
        for name in classes:
            if name not in self.classes:
                from methods import MethodError

                raise MethodError(f"classes: {name!r} is unknown; valid: {self.classes}")
        weight = view.broadcast["weight"][[self.classes.index(name) for name in classes]]
        return (self.config.scale * batch["features"] @ weight.T).astype(np.float32)


def build(config, task):
    """Build the method."""
    if task.backbone is None:
        raise BackboneError("task.model: null gives no features; valid: the name of a CLIP model")
    return Momentum(config, task.classes, task.backbone.embed_dim)
'''
PRESET = "name: momentum\nmomentum: 0.9  # section 4.3\nscale: 10.0\n"


def write_momentum(folder: Path, *changes: tuple[str, str], name: str = "momentum") -> Path:
    """A folder with the method and its preset; each change replaces a text of the method."""
    text = METHOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    (folder / f"{name}.yaml").write_text(PRESET.replace("name: momentum", f"name: {name}"))
    return folder

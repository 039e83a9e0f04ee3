"""Tallying: no model, only a vector that is drawn towards a client's labels in a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from methods import LocalResult, ParameterGroup, Task, TensorSpec
from methods.interface.defaults import MethodDefaults


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        length: Coordinates of the vector.
    """

    length: int = 4


@dataclass(frozen=True)
class Loss:
    """Half the squared distance of each coordinate to a tenth of the label."""

    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {}

    def losses(self, parameters, encoded, batch):
        distance = parameters["tally"][None, :] - batch["labels"][:, None] / 10.0
        return 0.5 * (distance**2).sum(dim=1)


@dataclass(frozen=True)
class Tallying(MethodDefaults):
    """The method."""

    needs: frozenset = field(default=frozenset({"pixels"}), init=False)
    pixel_size: int | None = field(default=8, init=False)
    has_personal_state: bool = field(default=False, init=False)
    config: Config

    def shared_spec(self):
        return {"tally": TensorSpec((self.config.length,))}

    def init_server(self, rng):
        return {"tally": np.zeros(self.config.length, np.float32)}

    def client_update(self, view, data, trainer, rng):
        start = {"tally": view.broadcast["tally"]}
        groups = (ParameterGroup(("tally",)),)
        trained = trainer.fit(Loss(), start, data.arrays, groups=groups, rng=rng)
        return LocalResult({"tally": trained["tally"] - start["tally"]}, None, {})

    def server_update(self, state, aggregate, pool, rng):
        return {"tally": (state["tally"] + aggregate.values["tally"]).astype(np.float32)}

    def predict(self, view, batch, classes):
        return np.zeros((len(batch["pixels"]), len(classes)), np.float32)


def build(config: Config, task: Task) -> Tallying:
    """Builds the method."""
    return Tallying(config)

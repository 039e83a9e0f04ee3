"""Tallying: no data and no model, only a vector a client and round, the same in every attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from methods import LocalResult, Task, TensorSpec
from methods._defaults import MethodDefaults


@dataclass(frozen=True)
class Config:
    """Options.

    Attributes:
        length: Coordinates of the vector.
    """

    length: int = 4


@dataclass(frozen=True)
class Tallying(MethodDefaults):
    """The method."""

    needs: frozenset = field(default=frozenset({"pixels"}), init=False)
    pixel_size: int | None = field(default=8, init=False)
    config: Config

    def shared_spec(self):
        return {"tally": TensorSpec((self.config.length,))}

    def init_server(self, rng):
        return {"tally": np.zeros(self.config.length, np.float32)}

    def init_client(self, shared_rng, client_rng):
        return {"rounds": np.zeros(1, np.float32)}

    def client_update(self, view, data, trainer, rng):
        vector = 0.1 * rng.standard_normal(self.config.length, np.float32)
        return LocalResult({"tally": vector}, None, {"rounds": view.personal["rounds"] + 1.0})

    def server_update(self, state, aggregate, pool, rng):
        return {"tally": (state["tally"] + aggregate.values["tally"]).astype(np.float32)}

    def predict(self, view, batch, classes):
        return np.zeros((len(batch["pixels"]), len(classes)), np.float32)


def build(config: Config, task: Task) -> Tallying:
    """Builds the method."""
    return Tallying(config)

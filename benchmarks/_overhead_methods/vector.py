"""Vector: 512 averaged values, and no training.

No paper. The update is the labels' mean in every place, so a round costs only the work around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods import (
    Aggregate,
    Arrays,
    ClientView,
    Examples,
    LocalResult,
    Task,
    TensorSpec,
    Trainer,
)
from methods.interface.defaults import MethodDefaults
from methods.interface.method import Need


@dataclass(frozen=True)
class Config:
    """Options."""

    values: int = 512


@dataclass(frozen=True)
class Vector(MethodDefaults):
    """One array, averaged."""

    config: Config
    needs: frozenset[Need] = field(default=frozenset({"pixels"}), init=False)
    pixel_size: int | None = field(default=8, init=False)
    has_personal_state: bool = field(default=False, init=False)

    def prepare(self, arrays: Arrays) -> Arrays:
        """Return no arrays: the method learns nothing from images."""
        return {}

    def shared_spec(self) -> Mapping[str, TensorSpec]:
        """The one array."""
        return {"values": TensorSpec((self.config.values,))}

    def init_server(self, rng: np.random.Generator) -> Arrays:
        """Zeros."""
        return {"values": np.zeros(self.config.values, np.float32)}

    def client_update(
        self, view: ClientView, data: Examples, trainer: Trainer, rng: np.random.Generator
    ) -> LocalResult:
        """The mean of the labels, in every place."""
        mean = np.float32(0.01 * data.arrays["labels"].mean())
        update = np.full(self.config.values, mean, np.float32)
        return LocalResult({"values": update}, None, {}, {})

    def server_update(
        self,
        state: Arrays,
        aggregate: Aggregate,
        pool: Sequence[Arrays],
        rng: np.random.Generator,
    ) -> Arrays:
        """Add the mean update."""
        total = state["values"] + aggregate.values["values"]
        return {"values": total.astype(np.float32)}

    def predict(
        self, view: ClientView, batch: Arrays, classes: Sequence[str]
    ) -> NDArray[np.float32]:
        """The first class, always."""
        scores = np.zeros((len(batch["labels"]) if "labels" in batch else 1, len(classes)))
        return scores.astype(np.float32)


def build(config: Config, task: Task) -> Vector:
    """Build the method."""
    return Vector(config)

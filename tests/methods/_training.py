"""Trainers for the tests of methods: the real one, and one that only takes notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from privacy.training import LocalTrainer, TrainingPlan


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensors(arrays: Mapping[str, object]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


@dataclass
class RecordingTrainer:
    """Trains nothing and keeps what it was asked to train."""

    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    groups: tuple = ()
    objective: object = None
    penalty: object = None
    fits: int = 0

    def fit(self, objective, parameters, examples, *, groups, rng, **options):
        self.parameters = {name: np.array(value) for name, value in parameters.items()}
        self.groups, self.objective, self.examples = tuple(groups), objective, dict(examples)
        self.penalty = options.get("penalty")
        self.fits += 1
        return {name: np.array(value) for name, value in parameters.items()}


def trainer(
    *,
    steps: int | None = 3,
    epochs: int | None = None,
    learning_rate: float = 0.5,
    batch_size: int = 5,
    clipping: float | None = None,
) -> LocalTrainer:
    plan = TrainingPlan(
        local_steps=None if epochs else steps,
        local_epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    return LocalTrainer(plan, clipping)

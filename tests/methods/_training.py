"""Clients, sums and trainers for the tests of methods: the real one, and one that takes notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from methods import Aggregate, Arrays, ClientView, Method
from privacy.training import TrainingPlan
from tests._batches import BatchTrainer


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensors(arrays: Mapping[str, object]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def newcomer(method: Method) -> ClientView:
    """A client before its first round, with what it is sent."""
    return ClientView(method.init_server(rng(1)), (), method.init_client(rng(2), rng(3)))


def mean_of(*updates: Arrays, individual: bool = False) -> Aggregate:
    """What the server learns of updates: their plain mean, and each by itself if it sees them."""
    values = {name: np.mean([one[name] for one in updates], axis=0) for name in updates[0]}
    single = {f"client-{i}": one for i, one in enumerate(updates)} if individual else None
    return Aggregate(values, float(len(updates)), len(updates), 10, single)


@dataclass
class RecordingTrainer:
    """Trains nothing and keeps what it was asked to train."""

    learning_rate = 0.1
    charged_steps = None

    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    groups: tuple = ()
    objective: object = None
    penalty: object = None
    steps: int | None = None
    fits: int = 0

    def steps_for(self, num_examples):
        return 7

    def fit(self, objective, parameters, examples, *, groups, rng, **options):
        self.parameters = {name: np.array(value) for name, value in parameters.items()}
        self.groups, self.objective, self.examples = tuple(groups), objective, dict(examples)
        self.penalty, self.steps = options.get("penalty"), options.get("steps")
        self.fits += 1
        return {name: np.array(value) for name, value in parameters.items()}


def trainer(
    *,
    steps: int | None = 3,
    epochs: int | None = None,
    learning_rate: float = 0.5,
    batch_size: int = 5,
    clipping: float | None = None,
) -> BatchTrainer:
    plan = TrainingPlan(
        local_steps=None if epochs else steps,
        local_epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    return BatchTrainer(plan, clipping)

"""An objective without an encoder whose gradients are the data: what training adds is visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import ParameterGroup
from privacy.randomness import NoiseSource
from privacy.training import DpSgd, LocalTrainer, TrainingPlan
from tests._batches import BatchTrainer

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Toy:
    """An objective of a loss that is given, and of an encoder where one is."""

    loss: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
    encoder: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda parameters: {}
    encoder_parameters: frozenset[str] = frozenset()

    def encode(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return self.encoder(parameters)

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        encoded: Mapping[str, Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        return self.loss(parameters, encoded, batch)


# Loss of example i: <shared, x_i> + <personal, y_i>, so the gradients are x_i and y_i.
LINEAR = Toy(lambda p, e, b: b["x"] @ p["shared"] + b["y"] @ p["personal"])


def mechanism(**changes: Any) -> DpSgd:
    fields: dict[str, Any] = {
        "noise_multiplier": 0.0,
        "clipping_norm": 1.0,
        "sampling_probability": 1.0,
        "steps": 1,
        "expected_batch_size": 1.0,
    }
    return DpSgd(**fields | changes)


def trainer(dp_sgd: DpSgd, noise: NoiseSource, **plan: Any) -> LocalTrainer:
    fields: dict[str, Any] = {"local_steps": 1, "batch_size": 1, "learning_rate": 1.0}
    return BatchTrainer(TrainingPlan(**fields | plan), dp_sgd=dp_sgd, noise=noise)


def make_examples(x: NDArray[Any], y: NDArray[Any] | None = None) -> Arrays:
    y = np.zeros((len(x), 1)) if y is None else y
    return {"x": x, "y": y, "labels": np.zeros(len(x), dtype=np.int64)}


def make_parameters(shared: int, personal: int = 1) -> Arrays:
    return {"shared": np.zeros(shared), "personal": np.zeros(personal)}


def fit(learner: LocalTrainer, examples: Arrays, seed: int = 0, **options: Any) -> Arrays:
    """Trains from zero at learning rate 1: the result is minus the sum of the releases."""
    widths = examples["x"].shape[1], examples["y"].shape[1]
    return learner.fit(
        options.pop("objective", LINEAR),
        options.pop("parameters", make_parameters(*widths)),
        examples,
        groups=[ParameterGroup(("shared",)), ParameterGroup(("personal",))],
        rng=np.random.default_rng(seed),
        **options,
    )

"""The small CLIP in double precision, and derivatives without any automatic differentiation."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from methods import Examples, Objective
from methods.clip.adapter import Backbone
from methods.clip.text_tower import TextTower


def double_backbone(backbone: Backbone) -> Backbone:
    """The same model with weights and sums in float64."""
    model = copy.deepcopy(backbone._model).double()
    return dataclasses.replace(backbone, _model=model, _text=TextTower.of(model, "double"))


def to_double(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Floating-point arrays as float64 tensors, integers as they are."""
    return {
        name: torch.tensor(value, dtype=torch.float64 if value.dtype.kind == "f" else None)
        for name, value in arrays.items()
    }


def mean_loss(objective: Objective, parameters, examples: Examples) -> torch.Tensor:
    """The mean loss over all examples, in float64."""
    tensors = {n: torch.as_tensor(value, dtype=torch.float64) for n, value in parameters.items()}
    encoded = objective.encode(tensors)
    return objective.losses(tensors, encoded, to_double(examples.arrays)).mean()


def numeric_gradient(
    loss: Callable[[Mapping[str, np.ndarray]], torch.Tensor],
    parameters: Mapping[str, np.ndarray],
    name: str,
    coordinates: Sequence[tuple[int, ...]],
    width: float = 1e-5,
) -> list[float]:
    """Central differences of the loss at some coordinates of one parameter."""
    slopes = []
    for place in coordinates:
        values = []
        for sign in (1, -1):
            moved = np.array(parameters[name], np.float64)
            moved[place] += sign * width
            with torch.no_grad():
                values.append(float(loss({**parameters, name: moved})))
        slopes.append((values[0] - values[1]) / (2 * width))
    return slopes

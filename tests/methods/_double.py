"""The small CLIP in double precision, and losses there."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

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

"""Layers as names, shapes and starts: a part of a network is a mapping of names to layers.

A part can be shared, personal, or a module of an expert pool; that decision needs names and shapes
only. Values are arrays by name, so a network has no state of its own.

Layer normalisation (Ba et al. 2016) uses each row's own mean and variance, not a batch's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface.method import TensorSpec, Weighting


def linear_start(
    rng: np.random.Generator, shape: tuple[int, ...], inputs: int
) -> NDArray[np.float32]:
    """Return weights or biases as torch's linear layers start: uniform in +-1/sqrt(inputs)."""
    bound = 1.0 / math.sqrt(inputs)
    return rng.uniform(-bound, bound, shape).astype(np.float32)


Parameters = Mapping[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class Layer:
    """One array of a network.

    Attributes:
        fan_in: Width of its input, which sets the range of its start; None for tables of
            embeddings, which start standard normal, and 0 for arrays that start at `constant`.
        constant: Start of an array without a random start.
        values: Start of an array that was trained before, in place of the other two.
    """

    shape: tuple[int, ...]
    fan_in: int | None
    constant: float = 0.0
    values: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)

    def start(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a start as torch's own layers have it, or `values`."""
        if self.values is not None:
            return np.array(self.values, np.float32)
        if self.fan_in is None:
            return rng.standard_normal(self.shape, dtype=np.float32)
        if self.fan_in == 0:
            return np.full(self.shape, self.constant, np.float32)
        return linear_start(rng, self.shape, self.fan_in)


Layers = Mapping[str, Layer]


def start(layers: Layers, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Return values of all layers, drawn in the order of their names."""
    return {name: layers[name].start(rng) for name in sorted(layers)}


def specs(layers: Layers, weighting: Weighting = Weighting.EXAMPLES) -> dict[str, TensorSpec]:
    """Return specs of layers that leave a client, averaged by number of examples or plainly."""
    return {name: TensorSpec(layer.shape, weighting=weighting) for name, layer in layers.items()}


def linear_layers(prefix: str, inputs: int, outputs: int) -> dict[str, Layer]:
    """Return weight (outputs, inputs) and bias (outputs,) of a linear layer."""
    return {
        f"{prefix}.weight": Layer((outputs, inputs), inputs),
        f"{prefix}.bias": Layer((outputs,), inputs),
    }


def linear(parameters: Parameters, prefix: str, rows: Tensor) -> Tensor:
    """Return a linear layer on rows (B, inputs): (B, outputs)."""
    return functional.linear(rows, parameters[f"{prefix}.weight"], parameters[f"{prefix}.bias"])


def under(prefix: str, parameters: Parameters) -> Parameters:
    """Return the parameters whose names begin with a prefix, without that prefix."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in parameters.items()
        if name.startswith(prefix)
    }


def norm_layers(prefix: str, width: int) -> dict[str, Layer]:
    """Return scale (width,), one at the start, and shift (width,), zero at the start."""
    return {
        f"{prefix}.weight": Layer((width,), 0, constant=1.0),
        f"{prefix}.bias": Layer((width,), 0),
    }


def norm(parameters: Parameters, prefix: str, rows: Tensor) -> Tensor:
    """Return rows (..., width) normalised, scaled and shifted."""
    weight, bias = parameters[f"{prefix}.weight"], parameters[f"{prefix}.bias"]
    return functional.layer_norm(rows, rows.shape[-1:], weight, bias)

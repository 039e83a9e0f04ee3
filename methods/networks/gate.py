"""The gating network of PM-MoE: from an example to a score of each expert.

Feng et al. 2025, "PM-MoE: Mixture of Experts on Private Model Parameters for Personalized Federated
Learning" (WWW), "Analysis of Gating Network Parameters": one to four linear layers of its widths,
its seven activations, its six initialisations. The paper names the initialisations and no more;
where one needs a number it is written here. Its published code has ReLU behind the first layer and
drops a tenth of each hidden layer out, of which the paper says nothing: `first_relu`, `dropout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers
from methods.networks.starts import linear_start

Drop = Callable[[Tensor], Tensor]
"""From a hidden layer's outputs (..., H) to the same with some of them zero."""
GATE = "moe."
"""What the names of a gate's arrays begin with."""
PRELU_START = 0.25
"""Slope of PReLU below zero at the start, as in He et al. 2015 and torch."""


@dataclass(frozen=True)
class GateConfig:
    """Options of the gating network.

    Attributes:
        gate_layers: Linear layers; the hidden ones are 128, 256 and 128 wide.
        activation: Behind each hidden layer.
        initialisation: How the weights start; biases start as torch's.
        first_relu: Whether ReLU is behind the first layer, whatever is behind the others.
        dropout: Share of each hidden layer's outputs that a step of training leaves out, the others
            being scaled up. Where gradients are taken example by example, the same for all of them.
    """

    gate_layers: Annotated[int, Ge(1), Le(4)] = 4
    activation: Literal["relu", "leaky_relu", "prelu", "elu", "selu", "silu", "mish"] = "leaky_relu"
    initialisation: Literal["uniform", "normal", "xavier", "kaiming", "orthogonal", "spectral"] = (
        "orthogonal"
    )
    first_relu: bool = False
    dropout: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0


@dataclass(frozen=True)
class Gate:
    """A gate without state; its parameters are passed in.

    Attributes:
        inputs: Width G of what it is fed.
        experts: Number E of experts that it tells apart.
        config: Its options.
    """

    inputs: int
    experts: int
    config: GateConfig

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths from the input to the scores."""
        hidden = {1: (), 2: (128,), 3: (128, 256), 4: (128, 256, 128)}[self.config.gate_layers]
        return (self.inputs, *hidden, self.experts)

    @property
    def layers(self) -> Layers:
        """All arrays by name, each name beginning with `moe.`."""
        layers: dict[str, Layer] = {}
        for number, (inputs, outputs) in enumerate(self._sizes(), 1):
            layers.update(linear_layers(f"{GATE}{number}", inputs, outputs))
            if self._activation(number) == "prelu" and number < self.config.gate_layers:
                layers[f"{GATE}{number}.slope"] = Layer((1,), 0)
        return layers

    def start(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return fresh parameters."""
        draw, arrays = _STARTS[self.config.initialisation], {}
        for name, layer in self.layers.items():
            if name.endswith(".weight"):
                arrays[name] = draw(rng, layer.shape).astype(np.float32)
            elif name.endswith(".slope"):
                arrays[name] = np.full(layer.shape, PRELU_START, np.float32)
            else:
                arrays[name] = layer.start(rng)
        return arrays

    def scores(self, parameters: Parameters, rows: Tensor, drop: Drop | None = None) -> Tensor:
        """Return scores (B, E) of rows (B, G), before the softmax.

        Args:
            parameters: The gate's arrays, among others.
            rows: What it is fed.
            drop: Leaves out some of a hidden layer's outputs, in training; None for none.
        """
        for number in range(1, self.config.gate_layers):
            rows = self._activate(linear(parameters, f"{GATE}{number}", rows), parameters, number)
            rows = rows if drop is None else drop(rows)
        return linear(parameters, f"{GATE}{self.config.gate_layers}", rows)

    def drop(self, rng: np.random.Generator) -> Drop | None:
        """Return what training leaves out, drawn from a generator of its own; None for nothing."""
        rate = self.config.dropout
        if not rate:
            return None
        own = np.random.default_rng(rng.integers(2**63))

        def drop(rows: Tensor) -> Tensor:
            kept = torch.from_numpy(own.random(tuple(rows.shape)) >= rate)
            return rows * (kept.to(rows) / (1.0 - rate))

        return drop

    def _activation(self, number: int) -> str:
        return "relu" if self.config.first_relu and number == 1 else self.config.activation

    def _activate(self, rows: Tensor, parameters: Parameters, number: int) -> Tensor:
        name = self._activation(number)
        if name == "prelu":
            return functional.prelu(rows, parameters[f"{GATE}{number}.slope"])
        return _ACTIVATIONS[name](rows)

    def _sizes(self) -> list[tuple[int, int]]:
        return list(zip(self.widths, self.widths[1:], strict=False))


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "silu": functional.silu,
    "mish": functional.mish,
}


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return uniform in +-1/sqrt(inputs), as torch's linear layers."""
    return linear_start(rng, shape, shape[1])


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return normal of variance 1/inputs, which keeps the size of a linear layer's rows."""
    return rng.normal(0.0, 1.0 / math.sqrt(shape[1]), shape)


def _xavier(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return Glorot and Bengio 2010, Eq. 16: uniform in +-sqrt(6/(inputs + outputs))."""
    bound = math.sqrt(6.0 / sum(shape))
    return rng.uniform(-bound, bound, shape)


def _kaiming(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return He et al. 2015, Eq. 10: normal of variance 2/inputs."""
    return rng.normal(0.0, math.sqrt(2.0 / shape[1]), shape)


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return Saxe et al. 2014: orthonormal rows or columns.

    Whichever are fewer, uniformly drawn.
    """
    tall = rng.standard_normal((max(shape), min(shape)))
    columns, upper = np.linalg.qr(tall)
    # Without the signs of the diagonal the draw would depend on how QR chooses them.
    columns = columns * np.where(np.diag(upper) < 0, -1.0, 1.0)
    return columns if shape[0] >= shape[1] else columns.T


def _spectral(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return a normal draw divided by its largest singular value (Miyato et al. 2018, Eq. 8)."""
    drawn = rng.standard_normal(shape)
    return np.asarray(drawn / np.linalg.norm(drawn, 2))


_STARTS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.floating]]] = {
    "uniform": _uniform,
    "normal": _normal,
    "xavier": _xavier,
    "kaiming": _kaiming,
    "orthogonal": _orthogonal,
    "spectral": _spectral,
}

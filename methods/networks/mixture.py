"""A mixture of frozen modules under a gate; denoising drops the least similar modules (PM-MoE).

Feng et al. 2025, "PM-MoE: Mixture of Experts on Private Model Parameters for Personalized Federated
Learning" (WWW).

The gate ("Analysis of Gating Network Parameters"): one to four linear layers of the paper's widths,
its seven activations, its six initialisations. The paper only names the initialisations; numbers
that they need are below. The published code has ReLU behind the first layer and dropout of a tenth
of each hidden layer; the paper mentions neither: `first_relu`, `dropout`.

Denoising ("Energy-based Personalized Modules Denoising") is not in the published code. What the
paper leaves open is decided here:

- The paper gives T no value: T is an option, 1 by default.
- The score is of one pair of outputs, so of one example: experts drop out example by example.
- "The bottom gamma-proportion of experts" counts the others, k != j, rounded down; the client's own
  expert is the anchor and stays.
- An output of length zero has no direction: its product with any other counts as zero.

The mixture ("Mixture of Personalized Modules"): weights are the softmax of the gate's scores over
the experts that denoising left; of these the k largest count. As in the paper's formulas and its
published code they are not scaled up again afterwards, so a mixture of few experts is smaller than
each; `renormalise` scales them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.method import Arrays
from methods.networks.layers import Layer, Layers, Parameters, linear, linear_layers, linear_start
from methods.networks.method import FED, GATED, ModularMethod, blocks

Drop = Callable[[Tensor], Tensor]
"""From a hidden layer's outputs (..., H) to the same with some outputs set to zero."""
GATE = "moe."
"""Beginning of the names of a gate's arrays."""
PRELU_START = 0.25
"""Slope of PReLU below zero at the start, as in He et al. 2015 and torch."""


@dataclass(frozen=True)
class GateConfig:
    """Options of the gating network.

    Attributes:
        gate_layers: Linear layers; the hidden ones are 128, 256 and 128 wide.
        activation: Behind each hidden layer.
        initialisation: How the weights start; biases start as torch's.
        first_relu: Whether ReLU is behind the first layer, in place of `activation`.
        dropout: Share of each hidden layer's outputs that a step of training leaves out, the others
            being scaled up. Gradients of single examples share one draw.
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
    """A gate of E experts on rows of width G, without state: callers pass its parameters."""

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
        for number, (inputs, outputs) in enumerate(pairwise(self.widths), 1):
            layers.update(linear_layers(f"{GATE}{number}", inputs, outputs))
            if self._activation(number) == "prelu" and number < self.config.gate_layers:
                layers[f"{GATE}{number}.slope"] = Layer((1,), 0)
        return layers

    def start(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return fresh parameters."""
        kind, arrays = self.config.initialisation, {}
        for name, layer in self.layers.items():
            if name.endswith(".weight"):
                arrays[name] = _drawn(kind, rng, layer.shape).astype(np.float32)
            elif name.endswith(".slope"):
                arrays[name] = np.full(layer.shape, PRELU_START, np.float32)
            else:
                arrays[name] = layer.start(rng)
        return arrays

    def scores(self, parameters: Parameters, rows: Tensor, drop: Drop | None = None) -> Tensor:
        """Return scores (B, E) of rows (B, G), before the softmax; `drop` is for training."""
        for number in range(1, self.config.gate_layers):
            rows, name = linear(parameters, f"{GATE}{number}", rows), self._activation(number)
            if name == "prelu":
                rows = functional.prelu(rows, parameters[f"{GATE}{number}.slope"])
            else:
                # All other names are torch's.
                rows = getattr(functional, name)(rows)
            rows = rows if drop is None else drop(rows)
        return linear(parameters, f"{GATE}{self.config.gate_layers}", rows)

    def drop(self, rng: np.random.Generator) -> Drop | None:
        """Return what training leaves out, drawn by its own generator; None without dropout."""
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


def _drawn(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return weights (outputs, inputs) as one of the paper's initialisations draws them."""
    outputs, inputs = shape
    if kind == "uniform":
        return linear_start(rng, shape, inputs)
    if kind == "normal":
        # Variance 1/inputs keeps the size of a linear layer's rows.
        return rng.normal(0.0, 1.0 / math.sqrt(inputs), shape)
    if kind == "xavier":
        # Glorot and Bengio 2010, Eq. 16.
        bound = math.sqrt(6.0 / (outputs + inputs))
        return rng.uniform(-bound, bound, shape)
    if kind == "kaiming":
        # He et al. 2015, Eq. 10.
        return rng.normal(0.0, math.sqrt(2.0 / inputs), shape)
    if kind == "spectral":
        # Divided by the largest singular value (Miyato et al. 2018, Eq. 8).
        drawn = rng.standard_normal(shape)
        return np.asarray(drawn / np.linalg.norm(drawn, 2))
    # Saxe et al. 2014: orthonormal rows or columns (the fewer), drawn uniformly. Without the signs
    # of the diagonal the draw would depend on how QR chooses them.
    columns, upper = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    columns = columns * np.where(np.diag(upper) < 0, -1.0, 1.0)
    return columns if outputs >= inputs else columns.T


ROUNDING = 1e-9
"""Keeps 0.29 of 100 at 29, although the product in binary is slightly less."""


def confidence(own: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Return negative Helmholtz free energies (..., E) of outputs beside the own output.

    H^k = T log sum_d exp(v^k_d / T) with v^k = (h^k * h^j) / (|h^k| |h^j|), coordinate by
    coordinate; the coordinates of v^k add up to the cosine of the two. The score is high where the
    outputs agree. Shapes are h^j (..., H) and h^k (..., E, H).
    """
    # In double precision: T log H is the same for all experts and would hide their differences.
    there, here = others.to(torch.float64), own.to(torch.float64)
    product = functional.normalize(there, dim=-1) * functional.normalize(here, dim=-1).unsqueeze(-2)
    score: Tensor = temperature * torch.logsumexp(product / temperature, dim=-1)
    return score


def number_dropped(gamma: float, experts: int) -> int:
    """Return floor(gamma (E - 1)), the number of dropped experts; E includes the own expert."""
    return math.floor(gamma * (experts - 1) + ROUNDING)


def kept_experts(outputs: Tensor, own: int, gamma: float, temperature: float) -> Tensor:
    """Return which experts stay for each example, (B, E) bool, of outputs (B, E, H).

    The own expert stays. Of the others, the floor(gamma (E - 1)) with the lowest confidence go;
    among equals, the first in the order of experts.
    """
    kept = torch.ones(outputs.shape[:2], dtype=torch.bool, device=outputs.device)
    dropped = number_dropped(gamma, outputs.shape[1])
    if dropped:
        scores = confidence(outputs[:, own], outputs, temperature)
        scores[:, own] = torch.inf
        worst = scores.sort(dim=1, stable=True).indices[:, :dropped]
        kept.scatter_(1, worst, False)
    return kept


OUTPUTS, KEPT = "moe.outputs", "moe.kept"
"""Outputs of all experts for each example (B, E, H), and which denoising kept (B, E)."""
AT_ONCE = 128
"""Examples whose outputs torch computes together; changes memory and speed only."""


@dataclass(frozen=True)
class Mixture:
    """One client's gate over frozen modules, in place of its own module.

    Attributes:
        base: The method whose network it is in.
        model: The arrays of the client's network.
        modules: All experts' arrays, (E, ...) each.
        own: Number of the client's own expert.
        gate: Weighs them.
        top_k: Number of experts that count for an example, None for all.
        renormalise: Whether their weights are scaled to add up to one.
        gamma: Share of the others that denoising drops.
        temperature: T of the free energy.
    """

    base: ModularMethod
    model: Parameters
    modules: Parameters
    own: int
    gate: Gate
    top_k: int | None
    renormalise: bool
    gamma: float
    temperature: float

    def seen(self, batch: Arrays) -> dict[str, NDArray[Any]]:
        """Return all that a gate's training and predictions need of examples, without gradients.

        `batch` is what the base's `prepare` gave. The result has `OUTPUTS`, `KEPT`, and the parts
        that the gate and `combine` read, row i being example i.
        """
        pieces = []
        with torch.no_grad():
            for some in blocks(batch, AT_ONCE):
                parts = self.base.parts(self.model, self.base.tensors(some))
                outputs = self.outputs(parts[FED])
                kept = kept_experts(outputs, self.own, self.gamma, self.temperature)
                read = {name: parts[name] for name in (GATED, *self.base.combined)}
                pieces.append({**read, OUTPUTS: outputs, KEPT: kept})
        return {name: torch.cat([p[name] for p in pieces]).cpu().numpy() for name in pieces[0]}

    def outputs(self, fed: Tensor) -> Tensor:
        """Return outputs (B, E, H) of all experts on rows (B, ...)."""
        # Convolutions over stacked weights are grouped: on a CPU they take twice the time of one
        # network after the other, and they hold all networks' layers in memory at once.
        is_image = fed.dim() > 2
        chunk = 1 if is_image else None
        together = torch.func.vmap(
            self.base.module_output, in_dims=(0, None), out_dims=1, chunk_size=chunk
        )
        outputs: Tensor = together(self.modules, fed)
        return outputs

    def weights(self, parameters: Parameters, seen: Parameters, drop: Drop | None = None) -> Tensor:
        """Return the weight of each expert for each example, (B, E)."""
        scores = self.gate.scores(parameters, seen[GATED], drop)
        return shares(scores, seen[KEPT], self.top_k, renormalise=self.renormalise)

    def logits(self, parameters: Parameters, seen: Parameters, drop: Drop | None = None) -> Tensor:
        """Return logits (B, C) with the mixture in place of the module, from `seen`'s result."""
        output = mixed(self.weights(parameters, seen, drop), seen[OUTPUTS])
        return self.base.combine(parameters, seen, output)

    def cross_entropies(
        self, parameters: Parameters, seen: Parameters, drop: Drop | None = None
    ) -> Tensor:
        """Return cross-entropy of each example, (B,)."""
        logits = self.logits(parameters, seen, drop)
        return functional.cross_entropy(logits, seen["labels"], reduction="none")


def stacked(experts: Sequence[Arrays], layers: Layers) -> dict[str, NDArray[Any]]:
    """Return experts, at least one, as one array (E, ...) of each name; refuse unequal ones."""
    for expert in experts:
        for name, layer in layers.items():
            found = tuple(expert[name].shape) if name in expert else None
            if found != layer.shape:
                raise MethodError(
                    f"experts: {name!r} has shape {found}, which does not fit this network or its "
                    f"number of classes; valid: {layer.shape}"
                )
    return {name: np.stack([expert[name] for expert in experts]) for name in layers}


def shares(scores: Tensor, kept: Tensor, top_k: int | None, *, renormalise: bool) -> Tensor:
    """Return weights (..., E) of experts from a gate's scores (..., E), zero for those left out.

    Of the experts that are `kept` (at least one), the `top_k` with the largest weights count, all
    for None. `renormalise` scales their weights to add up to one.
    """
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    if top_k is not None and top_k < weights.shape[-1]:
        largest, places = weights.topk(top_k, dim=-1)
        weights = torch.zeros_like(weights).scatter(-1, places, largest)
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights


def mixed(weights: Tensor, outputs: Tensor) -> Tensor:
    """Return the weighted sum (B, H) of outputs (B, E, H)."""
    return (weights.unsqueeze(-2) @ outputs).squeeze(-2)

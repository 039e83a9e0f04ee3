"""A mixture of frozen modules: all outputs of all experts at once, then one weighted sum of them.

Feng et al. 2025 (PM-MoE, WWW), section "Mixture of Personalized Modules". Weights are the softmax
of a gate's scores over the experts that denoising left; of these the k largest count. As in the
paper's formulas and its published code they are not scaled up again afterwards, so a mixture of few
experts is smaller than each; `renormalise` does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.errors import MethodError
from methods.interface.method import Arrays
from methods.networks.blocks import blocks
from methods.networks.energy import kept_experts
from methods.networks.gate import Drop, Gate
from methods.networks.layers import Layers, Parameters
from methods.networks.modular import FED, GATED, ModularMethod

OUTPUTS, KEPT = "moe.outputs", "moe.kept"
"""Of all experts for each example (B, E, H), and which of them denoising left (B, E)."""
AT_ONCE = 128
"""Examples whose outputs are computed together; changes memory and speed only."""


@dataclass(frozen=True)
class Mixture:
    """One client's gate over frozen modules, in the place of its own module.

    Attributes:
        base: The method whose network it is in.
        model: The arrays of the client's network.
        modules: All experts' arrays, (E, ...) each.
        own: Which expert is the client's own.
        gate: Weighs them.
        top_k: How many count for an example, None for all.
        renormalise: Whether the weights of those add up to one.
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
        """Return all that a gate's training and its use need of examples, as nothing else changes.

        Args:
            batch: What the base's `prepare` gave, row i being example i.

        Returns:
            `OUTPUTS`, `KEPT`, and of the parts of the base's network what the gate is fed and what
            `combine` reads, row i being example i.
        """
        with torch.no_grad():
            pieces = [self._seen(some) for some in blocks(batch, AT_ONCE)]
        return {name: torch.cat([p[name] for p in pieces]).cpu().numpy() for name in pieces[0]}

    def _seen(self, batch: Arrays) -> dict[str, Tensor]:
        parts = self.base.parts(self.model, self.base.tensors(batch))
        outputs = self.outputs(parts[FED])
        kept = kept_experts(outputs, self.own, self.gamma, self.temperature)
        read = {name: parts[name] for name in (GATED, *self.base.combined)}
        return {**read, OUTPUTS: outputs, KEPT: kept}

    def outputs(self, fed: Tensor) -> Tensor:
        """Return outputs (B, E, H) of all experts on rows (B, ...)."""
        # Convolutions over stacked weights are grouped ones, which take a processor twice the time
        # of one network after the other on all rows, and hold all networks' layers at once.
        is_image = fed.dim() > 2
        chunk = 1 if is_image else None
        return expert_outputs(self.base.module_output, self.modules, fed, chunk)

    def weights(self, parameters: Parameters, seen: Parameters, drop: Drop | None = None) -> Tensor:
        """Return what each expert counts for each example, (B, E)."""
        scores = self.gate.scores(parameters, seen[GATED], drop)
        return shares(scores, seen[KEPT], self.top_k, renormalise=self.renormalise)

    def logits(self, parameters: Parameters, seen: Parameters, drop: Drop | None = None) -> Tensor:
        """Return logits (B, C) with the mixture in the module's place.

        Args:
            parameters: The client's network and its gate.
            seen: What `seen` made of the examples.
            drop: What the gate leaves out, in training.
        """
        output = mixed(self.weights(parameters, seen, drop), seen[OUTPUTS])
        return self.base.combine(parameters, seen, output)

    def cross_entropies(
        self, parameters: Parameters, seen: Parameters, drop: Drop | None = None
    ) -> Tensor:
        """Return cross-entropy of each example, (B,)."""
        logits = self.logits(parameters, seen, drop)
        return functional.cross_entropy(logits, seen["labels"], reduction="none")


def stacked(experts: Sequence[Arrays], layers: Layers) -> dict[str, NDArray[Any]]:
    """Return experts as one array (E, ...) of each name.

    Args:
        experts: One or more modules.
        layers: What a module is made of.

    Raises:
        MethodError: If an expert lacks an array, or has one of another shape.
    """
    for expert in experts:
        for name, layer in layers.items():
            _require_shape(expert, name, layer.shape)
    return {name: np.stack([expert[name] for expert in experts]) for name in layers}


def _require_shape(expert: Arrays, name: str, shape: tuple[int, ...]) -> None:
    found = tuple(expert[name].shape) if name in expert else None
    if found != shape:
        raise MethodError(
            f"experts: {name!r} of one has shape {found}, which is no module of this network "
            f"(or not for as many classes); valid: {shape}"
        )


def expert_outputs(
    run: Callable[[Parameters, Tensor], Tensor],
    modules: Parameters,
    fed: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """Return outputs (B, E, H) of stacked modules (E, ...) on the same rows (B, ...).

    Args:
        run: What one module makes of rows, (B, H).
        modules: All of them.
        fed: The rows.
        chunk: How many modules run together, None for all; changes memory and speed only.
    """
    together = torch.func.vmap(run, in_dims=(0, None), out_dims=1, chunk_size=chunk)
    outputs: Tensor = together(modules, fed)
    return outputs


def shares(scores: Tensor, kept: Tensor, top_k: int | None, *, renormalise: bool) -> Tensor:
    """Return what each expert counts.

    Args:
        scores: A gate's scores (..., E).
        kept: Which experts may count (..., E) bool, one at least.
        top_k: How many count, all of them if there are fewer; None for all.
        renormalise: Whether the weights of those that count add up to one.

    Returns:
        Weights (..., E), zero for those that do not count.
    """
    weights = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    if top_k is not None and top_k < weights.shape[-1]:
        largest, places = weights.topk(top_k, dim=-1)
        weights = torch.zeros_like(weights).scatter(-1, places, largest)
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights


def mixed(weights: Tensor, outputs: Tensor) -> Tensor:
    """Return the weighted sum (B, H) of outputs (B, E, H)."""
    return (weights.unsqueeze(-2) @ outputs).squeeze(-2)

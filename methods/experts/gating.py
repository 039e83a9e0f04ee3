"""Gates of pFedMoAP: how local and non-local text features become one per image.

Luo et al. 2025, "Mixture of Experts Made Personalized: Federated Prompt Learning for
Vision-Language Models" (ICLR): the attention-based gating network of Eqs. 9 and 11, and the linear
projection that its Table 7 compares with (Shazeer et al. 2017, section 2, without the top-k).
Parameters are passed in; a gate holds none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from methods.interface.method import TensorSpec
from methods.networks.starts import linear_start

PROJECTIONS = ("query", "key", "value", "output")
PUBLISHED_GATE_SCALE = 10.0


class Gate(Protocol):
    """Mixes experts' text features and compares the mixture with the image."""

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return the gate's arrays."""
        ...

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return fresh parameters, uniform in +-1/sqrt(d_gating)."""
        ...

    def pool(self, features: Tensor) -> Tensor:
        """Reduce the last dimension from d to d_gating (the paper's Pooling layer)."""
        ...

    def mix(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features T_MoE (B, C, d_gating).

        Args:
            parameters: The gate's parameters.
            image: Pooled image features (B, d_gating).
            experts: Pooled text features (E, C, d_gating) of all experts, the local one first.
        """
        ...

    def logits(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return sim(pool(I), T_MoE) of Eq. 10, shape (B, C), before the temperature.

        Args:
            parameters: The gate's parameters.
            image: Image features (B, d).
            experts: Pooled text features (E, C, d_gating).
        """
        ...

    def weights(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return what each expert counts for each image (B, E), rows adding up to one.

        Args:
            parameters: The gate's parameters.
            image: Image features (B, d).
            experts: Pooled text features (E, C, d_gating).
        """
        ...


@dataclass(frozen=True)
class _PooledGate:
    """What both gates do before and after mixing.

    Attributes:
        dim: Dimension d_gating that features are pooled to.
        pooling: Mean over neighbouring coordinates, or every r-th coordinate.
        similarity: Cosine, or the plain product with the pooled image feature.
    """

    dim: int
    pooling: Literal["mean", "stride"]
    similarity: Literal["cosine", "dot"]

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return the gate's arrays."""
        raise NotImplementedError

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
        """Return fresh parameters, uniform in +-1/sqrt(d_gating)."""
        return {n: linear_start(rng, spec.shape, self.dim) for n, spec in self.spec().items()}

    def pool(self, features: Tensor) -> Tensor:
        """Reduce the last dimension from d to d_gating (the paper's Pooling layer)."""
        each = features.shape[-1] // self.dim
        blocks = features.reshape(*features.shape[:-1], self.dim, each)
        return blocks.mean(-1) if self.pooling == "mean" else blocks[..., 0]

    def mix(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features T_MoE (B, C, d_gating)."""
        raise NotImplementedError

    def logits(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return sim(pool(I), T_MoE) of Eq. 10, shape (B, C), before the temperature."""
        query = self.pool(image)
        mixed = self.mix(parameters, query, experts)
        if self.similarity == "cosine":
            query, mixed = functional.normalize(query, dim=-1), functional.normalize(mixed, dim=-1)
        return torch.einsum("bd,bcd->bc", query, mixed)

    def weights(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return what each expert counts in the mixture of each image (B, E)."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttentionGate(_PooledGate):
    """The attention-based gating network G of Eq. 11.

    Attributes:
        heads: Number h of attention heads; divides `dim`.
        scale: Factor of the attention scores: 1/sqrt(head size), or the published code's 10.
    """

    heads: int
    scale: Literal["sqrt", "10"]

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return four d_gating x d_gating projections with bias."""
        arrays: dict[str, TensorSpec] = {}
        for name in PROJECTIONS:
            arrays[f"gate.{name}.weight"] = TensorSpec((self.dim, self.dim))
            arrays[f"gate.{name}.bias"] = TensorSpec((self.dim,))
        return arrays

    def mix(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features.

        The image is the query, the experts are keys and values.
        """
        attention = self._attention(parameters, image, experts)
        value = self._heads(_project(parameters, "value", experts))
        mixed = torch.einsum("bche,echd->bchd", attention, value)
        return _project(parameters, "output", mixed.flatten(-2))

    def weights(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return attention to each expert (B, E), its mean over heads and classes (Figure 6)."""
        return self._attention(parameters, self.pool(image), experts).mean((1, 2))

    def _attention(
        self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor
    ) -> Tensor:
        """Return softmax over experts of the scores, (B, C, heads, E)."""
        query = self._heads(_project(parameters, "query", image))
        key = self._heads(_project(parameters, "key", experts))
        scores = torch.einsum("bhd,echd->bche", query, key) * self._factor
        return scores.softmax(-1)

    @property
    def _factor(self) -> float:
        if self.scale == "10":
            return PUBLISHED_GATE_SCALE
        return _inverse_square_root(self.dim // self.heads)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.reshape(*projected.shape[:-1], self.heads, -1)


@dataclass(frozen=True)
class LinearGate(_PooledGate):
    """Weights of the experts by a linear projection of the pooled image feature.

    The paper leaves open what is projected and whether a softmax follows; both are as in Shazeer et
    al. With d_gating = d nothing is pooled, and text features are weighted sums of whole ones.

    Attributes:
        experts: Largest number of experts, the local one included. Where fewer are at hand, the
            softmax is over theirs.
    """

    experts: int

    def spec(self) -> Mapping[str, TensorSpec]:
        """Return one row and one bias an expert."""
        return {
            "gate.linear.weight": TensorSpec((self.experts, self.dim)),
            "gate.linear.bias": TensorSpec((self.experts,)),
        }

    def mix(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return enhanced text features: one weighted mean of the experts' for each image."""
        return torch.einsum("be,ecd->bcd", self._shares(parameters, image, experts), experts)

    def weights(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        """Return the weights of the mean themselves (B, E)."""
        return self._shares(parameters, self.pool(image), experts)

    def _shares(self, parameters: Mapping[str, Tensor], image: Tensor, experts: Tensor) -> Tensor:
        scores = _project(parameters, "linear", image)[:, : len(experts)]
        return scores.softmax(-1)


def _project(parameters: Mapping[str, Tensor], name: str, value: Tensor) -> Tensor:
    weight: Any = parameters[f"gate.{name}.weight"]
    return functional.linear(value, weight, parameters[f"gate.{name}.bias"])


def _inverse_square_root(size: int) -> float:
    return 1.0 / math.sqrt(size)

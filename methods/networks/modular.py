"""Methods whose personal part is one module, which another client's module could stand in for.

PM-MoE (Feng et al. 2025, section 3.2) mixes the converged modules of all clients. For that a
method's network is cut at its personal module: what it is fed, what it gives, and what becomes of
that. A module is an *expert* (PE), a head or an extractor that maps rows to rows, or a vector of
*parameters* (PP), whose output is the vector itself whatever it is fed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from methods.networks.layers import Layers, Parameters, linear
from methods.networks.method import HEAD, SplitMethod

GATED = "gated"
"""The part that a gate over modules is fed, (B, G)."""
FED = "fed"
"""The part that the module is fed, (B, ...)."""


@dataclass(frozen=True)
class ModularMethod(SplitMethod):
    """A network cut at its personal module."""

    combined: ClassVar[tuple[str, ...]] = ()
    """The parts that `combine` reads."""
    refines: ClassVar[bool] = False
    """Whether `personalise` trains the module: then it is what converged, and goes to the pool."""
    has_personal_state: bool = field(default=True, init=False)

    @property
    def module_layers(self) -> Layers:
        """The module's arrays: a part of the personal ones, all of them unless said otherwise."""
        return self.personal_layers

    @property
    def gated_width(self) -> int:
        """G, the width of what a gate over modules is fed."""
        return self.extractor.width

    def parts(self, parameters: Parameters, batch: Parameters) -> dict[str, Tensor]:
        """Return what the rest of the network makes of a batch, row by row.

        Returns:
            `fed`, `gated`, and those that `combined` names.
        """
        features = self.features(parameters, batch)
        return {FED: features, GATED: features}

    def module_output(self, module: Parameters, fed: Tensor) -> Tensor:
        """Return what one module makes of rows (B, ...): (B, H)."""
        return linear(module, HEAD, fed)

    def combine(self, parameters: Parameters, parts: Parameters, output: Tensor) -> Tensor:
        """Return logits (B, C) from a module's output, or from a mixture of several.

        Args:
            parameters: The client's network.
            parts: Those that `combined` names, among others perhaps.
            output: (B, H).
        """
        return output

    def logits(self, parameters: Parameters, batch: Parameters) -> Tensor:
        """Return logits (B, C) with the client's own module."""
        parts = self.parts(parameters, batch)
        return self.combine(parameters, parts, self.module_output(parameters, parts[FED]))

"""Layer normalisation (Ba et al. 2016): each row by its own mean and variance, none of a batch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from methods.networks.layers import Layer, Parameters


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

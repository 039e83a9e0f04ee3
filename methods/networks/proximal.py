"""The proximal term of a network: a pull to where the same network stands elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from methods.networks.layers import Parameters

if TYPE_CHECKING:
    from methods.interface.method import Penalty


def pull_to(anchor: Parameters, weight: float, prefix: str = "") -> Penalty | None:
    """Return the term weight/2 ||w - anchor||^2, None where the weight is zero.

    It sees no data. As a trainer's penalty it costs nothing of an example's bound.

    Args:
        anchor: Where training is held, by the names of the network's arrays.
        weight: Factor of the term.
        prefix: What the names of the arrays in training begin with, before the anchor's.
    """
    if not weight:
        return None

    def pull(parameters: Parameters, encoded: Parameters) -> Tensor:
        flat = [(parameters[prefix + name] - held).flatten() for name, held in anchor.items()]
        return weight * (0.5 * torch.cat(flat).square().sum())

    return pull

"""Training at the server, on what clients have released: a plain loop, as it sees no data."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from methods.networks.layers import Parameters

ServerLoss = Callable[[Parameters], Tensor]
"""From the parameters to a scalar."""


def descend(
    parameters: Parameters,
    losses: Iterable[ServerLoss],
    optimizer: Callable[[list[Tensor]], Optimizer],
) -> dict[str, NDArray[np.float32]]:
    """Take one step for each loss, in order.

    Args:
        parameters: Starting values, which are left as they are.
        losses: One per step; a generator may draw each anew.
        optimizer: Makes the optimiser of some tensors; its state ends with the call.

    Returns:
        The parameters after the last step.
    """
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    steps = optimizer(list(leaves.values()))
    for loss in losses:
        steps.zero_grad()
        torch.autograd.backward(loss(leaves))
        steps.step()
    return {name: leaf.detach().cpu().numpy() for name, leaf in leaves.items()}

"""What a network makes of all of a client's examples at once, where nothing is trained."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.interface.method import Arrays, Examples
from methods.networks.blocks import blocks
from methods.networks.layers import Parameters
from methods.networks.method import SplitMethod

ROWS = 256
"""Examples that are computed at once; changes memory only."""

RowByRow = Callable[[Parameters, Parameters], Tensor]
"""From parameters and a batch to rows (B, W), row i being of example i."""


def features_of(method: SplitMethod, model: Arrays, data: Examples) -> NDArray[np.float32]:
    """Return features (n, D) of all examples, as `rows_of` does."""
    return rows_of(method, method.features, model, data)


def rows_of(
    method: SplitMethod, compute: RowByRow, model: Arrays, data: Examples
) -> NDArray[np.float32]:
    """Return what is computed of each example, (n, W).

    It reads the data past the trainer, so nothing that follows from it may leave under `dp_sgd`.

    Args:
        method: Whose network it is.
        compute: What is computed.
        model: Arrays of the network, those that are read among them.
        data: The n examples, n at least 1.
    """
    parameters, pieces = method.tensors(model), []
    with torch.no_grad():
        for some in blocks(data.arrays, ROWS):
            pieces.append(compute(parameters, method.tensors(some)))
    rows: NDArray[np.float32] = torch.cat(pieces).cpu().numpy()
    return rows

"""Features of all of a client's examples at once, where nothing is trained."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from methods.interface.method import Arrays, Examples
from methods.networks.blocks import blocks
from methods.networks.method import SplitMethod

ROWS = 256
"""Examples that are computed at once; changes memory only."""


def features_of(method: SplitMethod, model: Arrays, data: Examples) -> NDArray[np.float32]:
    """Return features (n, D) of all examples.

    It reads the data past the trainer, so nothing that follows from it may leave under `dp_sgd`.

    Args:
        method: Whose network it is.
        model: Arrays of the network, its extractor's among them.
        data: The n examples, n at least 1.
    """
    parameters, pieces = method.tensors(model), []
    with torch.no_grad():
        for rows in blocks(data.arrays, ROWS):
            pieces.append(method.features(parameters, method.tensors(rows)))
    features: NDArray[np.float32] = torch.cat(pieces).cpu().numpy()
    return features

"""How a layer that a method brings along starts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def linear_start(
    rng: np.random.Generator, shape: tuple[int, ...], inputs: int
) -> NDArray[np.float32]:
    """Return weights or biases as torch's linear layers start: uniform in +-1/sqrt(inputs).

    Args:
        rng: Draws them.
        shape: Of the array.
        inputs: Width of what the layer is fed.
    """
    bound = 1.0 / math.sqrt(inputs)
    return rng.uniform(-bound, bound, shape).astype(np.float32)

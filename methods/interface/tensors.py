"""What leaves a client, tensor by tensor: its shape, how it is combined, what it is made from.

Part of the interface of `methods/interface/method.py`, which has these names too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Weighting(StrEnum):
    """How one shared tensor is combined over the clients of a round."""

    EXAMPLES = "examples"
    """Mean weighted by the number of examples (uniform under a privacy mechanism)."""
    UNIFORM = "uniform"
    """Plain mean."""
    SUM = "sum"
    """Plain sum."""


class Source(StrEnum):
    """What one tensor of an update is made from."""

    TRAINING = "training"
    """The difference that training steps made: zero without any."""
    GRADIENT = "gradient"
    """The mean of something that each example has, such as its gradient at the broadcast."""
    STATISTIC = "statistic"
    """A summary of the client's data, such as its classes' shares, in no such sense a mean."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype, combination rule and source of one array that leaves a client."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    weighting: Weighting = Weighting.EXAMPLES
    source: Source = Source.TRAINING

"""What leaves a client, tensor by tensor: its shape, how it is combined, what it is made from.

And which of it is an entry of the expert pool.

Part of the interface of `methods/interface/method.py`, which has these names too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


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
    PERSONAL = "personal"
    """The same, and besides what the client kept from earlier rounds: by the paper, it is told."""
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


@dataclass(frozen=True)
class PoolPolicy:
    """How a method uses the expert pool.

    Attributes:
        spec: The arrays of one entry.
        k: Number of experts a client is handed, its own excluded.
        select: `nearest` by l2 distance from the client's own newest entry, `random`, or `all`.
        exclude_self: Whether the client's own entries are left out.
        minimum: Smallest pool that is served from; None for the platform's rule 2(k+1).
        fixed: Whether the pool is made once, of what all clients `contribute`; `client_update`
            gives no entry then.
        trains: Whether `contribute` trains, which is a release of its own under `dp_sgd`; for
            `fixed` only.
        when: For `fixed` only. `after` the last round: all entries are fetched before
            `personalise`, in one order for all, own entry included (PM-MoE's second phase), and
            `client_update` is handed no experts. `before` the first round: the clients of all
            rounds are handed entries, as `k`, `select` and `exclude_self` say (CCST's styles).
    """

    spec: Mapping[str, TensorSpec]
    k: int
    select: Literal["nearest", "random", "all"] = "nearest"
    exclude_self: bool = True
    minimum: int | None = None
    fixed: bool = False
    trains: bool = False
    when: Literal["before", "after"] = "after"

    @property
    def opens(self) -> bool:
        """Whether the pool is made once, before the first round."""
        return self.fixed and self.when == "before"

    @property
    def closes(self) -> bool:
        """Whether the pool is made once, after the last round."""
        return self.fixed and self.when == "after"

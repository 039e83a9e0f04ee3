"""Adaptive clipping: the norm follows a quantile of the updates' norms (Andrew et al. 2021).

Each client says with one more coordinate whether its update fitted: +b if its norm was at most C,
else -b. The coordinate is appended after clipping and before noise, so what is noised has norm
sqrt(C^2 + b^2), and that is the ledger's C: the flag's price. From the noised sum follows the
noised fraction f of updates that fitted, and (their Algorithm 1)

    C <- C exp(-learning_rate (f - quantile)).

Everything after the noise is post-processing. The fraction is cut to [0, 1], which noise may leave,
so that no round changes C by more than exp(learning_rate).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy._validate import require_positive, require_probability
from privacy.clipping import ClippedUpdate, clip


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """How the clipping norm follows the clients.

    Attributes:
        quantile: gamma, the fraction of updates that shall fit, strictly between 0 and 1.
        learning_rate: eta_C, of the norm's logarithm.
        flag_ratio: b over C.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    flag_ratio: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        require_probability(quantile=self.quantile)
        require_positive(learning_rate=self.learning_rate, flag_ratio=self.flag_ratio)

    def joint_norm(self, clipping_norm: float) -> float:
        """Return the norm of a clipped update with its flag: sqrt(C^2 + b^2)."""
        return clipping_norm * math.hypot(1.0, self.flag_ratio)

    def append_flag(self, update: NDArray[Any], clipping_norm: float) -> ClippedUpdate:
        """Clip an update and say with one more coordinate whether it had to be.

        Args:
            update: Finite numbers of shape (n,).
            clipping_norm: C of the round.

        Returns:
            The vector of shape (n + 1,) of norm at most `joint_norm`; norm and flag are of the
            update itself and private.

        Raises:
            NonFiniteUpdate: A coordinate is NaN or infinite.
        """
        clipped = clip(update, clipping_norm)
        flag = self.flag_ratio * clipping_norm * (-1.0 if clipped.was_clipped else 1.0)
        return ClippedUpdate(np.append(clipped.vector, flag), clipped.norm, clipped.was_clipped)

    def clipped_fraction(self, mean_flag: float, clipping_norm: float) -> float:
        """Return the noised fraction of clipped updates from the mean of the flags, in [0, 1].

        A mean over more clients than are in the sum counts each missing one as half a clipped one.
        """
        fitted = (1.0 + mean_flag / (self.flag_ratio * clipping_norm)) / 2.0
        return 1.0 - min(1.0, max(0.0, fitted))

    def next_norm(self, clipping_norm: float, clipped_fraction: float) -> float:
        """Return the next round's C."""
        excess = (1.0 - clipped_fraction) - self.quantile
        return clipping_norm * math.exp(-self.learning_rate * excess)

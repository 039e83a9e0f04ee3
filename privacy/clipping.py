"""Clipping, and the coordinates that travel beside a clipped update: a clip flag and a metric.

`clip` brings the whole upload, as one vector, inside a ball of known radius. The accountant is told
that a clipped vector has norm at most C, so that must hold for the float64 numbers that are sent,
not only on paper. A sum of n squares in floating point is off by at most a factor 1 +- n u, with u
= 2^-53, whatever the order of summation (Higham 2002, section 3.1). With m = (n + 8) u a vector is
left alone only where its computed norm times 1 + m is within C; every other one is scaled to C (1 -
4 m), which covers the rounding of the norm, of the factor and of each product. At a million
coordinates the price is 5e-10 of the norm.

`AdaptiveClipping`: the norm follows a quantile of the updates' norms (Andrew et al. 2021). Each
client says with one more coordinate whether its update fitted: +b if its norm was at most C, else
-b. The coordinate is appended after clipping and before noise, so what is noised has norm sqrt(C^2
+ b^2), and that is the ledger's C: the flag's price. From the noised sum follows the noised
fraction f of updates that fitted, and (their Algorithm 1)

    C <- C exp(-learning_rate (f - quantile)).

Everything after the noise is post-processing. The fraction is cut to [0, 1], which noise may leave,
so that no round changes C by more than exp(learning_rate).

`NoisedMetric`: a client's metric is one more coordinate, noised with the rest. A share a in [0, 1],
such as a validation accuracy, becomes the coordinate b (2a - 1) in [-b, b]. It is appended after
clipping and before noise, so what is noised has norm at most sqrt(C^2 + b^2), and that is the
ledger's C: the metric's price, paid once with the update's. The coordinate is centred because the
norm bounds how far one client can move it; b a would waste half of that.

From the noised mean m of the coordinates follows the mean metric (1 + m / b) / 2, which is
post-processing. It is unbiased and therefore not cut to [0, 1]: cut, the means of good rounds would
be off by half of their noise and tie at 1. It is a mean only over the number of clients that are in
the sum: divided by a larger number, m / b shrinks and each client too many counts as one half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy._validate import finite_vector, require_positive, require_probability

_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, eq=False)
class ClippedUpdate:
    """An update inside the ball, and how it came to be there.

    Attributes:
        vector: float64 of shape (n,), of exact norm at most the clipping norm.
        norm: L2 norm before clipping; it depends on the client's data and must not leave it.
        was_clipped: Whether the vector was scaled; likewise private.
    """

    vector: NDArray[np.float64]
    norm: float
    was_clipped: bool


def clip(update: NDArray[Any], clipping_norm: float) -> ClippedUpdate:
    """Return scale `update` by min(1, clipping_norm / norm), erring on the inside.

    Formal guarantee: the exact L2 norm of the returned float64 vector is at most `clipping_norm`,
    so one client moves a sum by at most `clipping_norm` under add_or_remove_one and by twice that
    under replace_one.

    Edge cases: the empty and the zero vector pass unchanged; values whose squares overflow or
    vanish are handled by dividing by the largest magnitude first; a norm within rounding of
    `clipping_norm` counts as clipped. The guarantee assumes a `clipping_norm` above 1e-200.

    Args:
        update: Numbers of shape (n,), in any float dtype.
        clipping_norm: C, in the units of the update.

    Returns:
        The clipped vector (a copy), the norm before, and whether it was scaled.

    Raises:
        NonFiniteUpdate: A coordinate is NaN or infinite.
        ValueError: The update is no vector, or `clipping_norm` is not finite and positive.
    """
    require_positive(clipping_norm=clipping_norm)
    vector = finite_vector(update)
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0.0:
        return ClippedUpdate(vector.copy(), 0.0, was_clipped=False)
    direction = vector / largest
    relative_norm = float(np.sqrt(np.dot(direction, direction)))
    norm = largest * relative_norm
    margin = (vector.size + 8) * _UNIT_ROUNDOFF
    if norm * (1.0 + margin) <= clipping_norm:
        return ClippedUpdate(vector.copy(), norm, was_clipped=False)
    clipped = direction * (clipping_norm / relative_norm * (1.0 - 4.0 * margin))
    return ClippedUpdate(clipped, norm, was_clipped=True)


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


@dataclass(frozen=True, kw_only=True)
class NoisedMetric:
    """How a metric travels with an update.

    Attributes:
        ratio: b over C.
    """

    ratio: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a ratio that means nothing."""
        require_positive(ratio=self.ratio)

    def bound(self, clipping_norm: float) -> float:
        """Return b, the largest absolute coordinate."""
        return self.ratio * clipping_norm

    def coordinate(self, value: float, clipping_norm: float) -> float:
        """Return the coordinate of one client's metric.

        Args:
            value: a, in [0, 1]; private.
            clipping_norm: C of the update in this round.

        Raises:
            ValueError: The metric is no share, so the ledger's norm would not hold.
        """
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"value is {value}; it must lie in [0, 1]")
        return self.bound(clipping_norm) * (2.0 * value - 1.0)

    def mean(self, mean_coordinate: float, clipping_norm: float) -> float:
        """Return the mean metric from the noised mean of the coordinates; noise may leave [0, 1].

        Args:
            mean_coordinate: m, the mean over exactly the clients in the sum.
            clipping_norm: C of the updates in this round.
        """
        return (1.0 + mean_coordinate / self.bound(clipping_norm)) / 2.0

    def deviation(self, coordinate_deviation: float, clipping_norm: float) -> float:
        """Return the standard deviation of the mean metric from that of the mean coordinate."""
        return coordinate_deviation / (2.0 * self.bound(clipping_norm))

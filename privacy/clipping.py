"""Clipping, and the coordinates that travel beside a clipped update: a clip flag and a metric.

`clip` scales the whole upload, as one vector, so that its L2 norm is at most C. The accountant
relies on that bound, so it must hold for the float64 numbers that are sent, not only on paper. A
sum of n squares in floating point is off by at most a factor 1 +- n u, with u = 2^-53, whatever the
order of summation (Higham 2002, section 3.1). With m = (n + 8) u, `clip` leaves a vector as it is
only where its computed norm times 1 + m is within C. It scales every other vector to C (1 - 4 m),
which covers the rounding of the norm, of the factor and of each product. At a million coordinates
that costs 5e-10 of the norm.

`AdaptiveClipping`: C follows a quantile of the updates' norms (Andrew et al. 2021). Each client
appends one coordinate that says whether its update fitted: +b if its norm was at most C, else -b.
It is appended after clipping and before noise. So the vector that gets the noise has norm
sqrt(C^2 + b^2), and the ledger charges that norm. The noised sum gives the noised fraction f of
updates that fitted, and the next C is (their Algorithm 1)

    C <- C exp(-learning_rate (f - quantile)).

Everything after the noise is post-processing. Noise may move the fraction out of [0, 1]; it is cut
back, so that no round changes C by more than exp(learning_rate).

`NoisedMetric`: a client's metric is one more coordinate, noised with the rest. A share a in [0, 1],
such as a validation accuracy, becomes the coordinate b (2a - 1) in [-b, b]. It is appended after
clipping and before noise. So the vector that gets the noise has norm at most sqrt(C^2 + b^2), and
the ledger charges that norm, once for update and metric. The coordinate is centred, because b a
would use only half of the range that the norm allows.

The noised mean m of the coordinates gives the mean metric (1 + m / b) / 2, which is
post-processing. It is unbiased and is not cut to [0, 1]: a cut would lower the means of good rounds
by half of their noise and make them tie at 1. The sum must be divided by the number of clients in
it. Divided by a larger number, m / b shrinks, and each missing client counts as one half.
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
    """A clipped update, and whether it had to be scaled.

    Attributes:
        vector: float64 of shape (n,), of exact norm at most the clipping norm.
        norm: L2 norm before clipping; it depends on the client's data and must not leave it.
        was_clipped: Whether the vector was scaled; likewise private.
    """

    vector: NDArray[np.float64]
    norm: float
    was_clipped: bool


def clip(update: NDArray[Any], clipping_norm: float) -> ClippedUpdate:
    """Scale `update` by min(1, clipping_norm / norm); rounding never leaves it too long.

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
    """A clipping norm that follows a quantile of the updates' norms.

    Attributes:
        quantile: gamma, the wanted fraction of updates that fit, strictly between 0 and 1.
        learning_rate: eta_C, of the norm's logarithm.
        flag_ratio: b over C.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    flag_ratio: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        require_probability(quantile=self.quantile)
        require_positive(learning_rate=self.learning_rate, flag_ratio=self.flag_ratio)

    def joint_norm(self, clipping_norm: float) -> float:
        """Return the norm of a clipped update with its flag: sqrt(C^2 + b^2)."""
        return clipping_norm * math.hypot(1.0, self.flag_ratio)

    def append_flag(self, update: NDArray[Any], clipping_norm: float) -> ClippedUpdate:
        """Clip an update, and append a coordinate that says whether it was scaled.

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

        If the mean is over more clients than the sum has, each missing one counts as half clipped.
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
        """Refuse a ratio out of range."""
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
            ValueError: The metric is not in [0, 1], so the ledger's norm would not hold.
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

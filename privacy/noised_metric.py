"""A client's metric beside its update: one more coordinate, noised with the rest.

A share a in [0, 1], such as a validation accuracy, becomes the coordinate b (2a - 1) in [-b, b]. It
is appended after clipping and before noise, so what is noised has norm at most sqrt(C^2 + b^2), and
that is the ledger's C: the metric's price, paid once with the update's. The coordinate is centred
because the norm bounds how far one client can move it; b a would waste half of that.

From the noised mean m of the coordinates follows the mean metric (1 + m / b) / 2, which is
post-processing. It is unbiased and therefore not cut to [0, 1]: cut, the means of good rounds would
be off by half of their noise and tie at 1. It is a mean only over the number of clients that are in
the sum: divided by a larger number, m / b shrinks and each client too many counts as one half.
"""

from __future__ import annotations

from dataclasses import dataclass

from privacy._validate import require_positive


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

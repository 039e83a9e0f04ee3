"""Coordinates that are clipped, noised and charged with an update, beside the update's own.

Adaptive clipping appends a flag that says whether the update had to be clipped, noised selection
the client's validation accuracy. Each is bounded by a multiple of C, so that update and extra
coordinates together are one vector of known norm, with one charge. Private experts append counts,
which the mechanism itself knows of, as they may be free. What the noised sum tells of all of them
is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from platform.errors import ProtocolError
from platform.protection.group_choice import Grouping, GroupReading
from platform.wire.layout import Summed
from privacy import (
    AdaptiveClipping,
    ClientMechanism,
    NoisedMetric,
    clip,
    noise_in_sum,
    with_clipping_norm,
)

FLAG = "clip_flag"
VALIDATION = "validation"


@dataclass(frozen=True)
class NoisedMean:
    """The mean of the validation accuracies of a round's clients, as the noised sum tells it.

    Attributes:
        mean: The mean; noise may leave [0, 1].
        deviation: Standard deviation of its noise.
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class Extras:
    """What a run appends to its updates.

    Attributes:
        adaptive: How the clipping norm follows the clients, None where it is fixed.
        metric: How validation accuracies travel, None where they stay with the clients.
        clipping_norm: C of the update alone in this round; None where nothing is appended, or
            clipped, and before the first round where it adapts.
        groups: How clients are counted by the groups that they are in, None without groups.
    """

    adaptive: AdaptiveClipping | None = None
    metric: NoisedMetric | None = None
    clipping_norm: float | None = None
    groups: Grouping | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The coordinates in the order in which they are appended."""
        flag = () if self.adaptive is None else (FLAG,)
        metric = () if self.metric is None else (VALIDATION,)
        return (*flag, *metric, *(() if self.groups is None else self.groups.names))

    @property
    def count_bound(self) -> float:
        """The coordinate of one client in its group, 0 without groups."""
        return 0.0 if self.groups is None else self.groups.bound(self._norm)

    def joint_norm(self, clipping_norm: float) -> float:
        """Return the norm of an update clipped to C with all that is appended: the ledger's C.

        But for counts, of which the mechanism says itself what they cost.
        """
        norm = clipping_norm
        if self.adaptive is not None:
            norm = self.adaptive.joint_norm(clipping_norm)
        return norm if self.metric is None else math.hypot(norm, self.metric.bound(clipping_norm))

    def bounds(self, clipping_norm: float) -> tuple[float, ...]:
        """Return the largest absolute value of each coordinate beside an update clipped to C.

        But for counts.
        """
        flag = () if self.adaptive is None else (self.adaptive.flag_ratio * clipping_norm,)
        return flag if self.metric is None else (*flag, self.metric.bound(clipping_norm))

    def append(
        self,
        vector: NDArray[np.float64],
        validation: float | None,
        group: int | None = None,
    ) -> NDArray[np.float64]:
        """Clip an update and append what is sent beside it; unchanged where nothing is.

        Args:
            vector: The update, (n,).
            validation: The client's validation accuracy, in [0, 1]; private.
            group: The group that the client is in; private.

        Returns:
            A vector of norm at most `joint_norm`, and counts.

        Raises:
            ProtocolError: If accuracy or group is needed and missing.
        """
        vector = self._with_flag_and_metric(vector, validation)
        if self.groups is None:
            return vector
        return np.append(vector, self.groups.coordinates(self._norm, group))

    def group_reading(self, summed: Summed, deviation: float) -> GroupReading | None:
        """Return what a sum tells of its groups, None without groups.

        Args:
            summed: What the sum yields.
            deviation: Of the noise on each coordinate of the sum.
        """
        return None if self.groups is None else self.groups.read(summed, self._norm, deviation)

    @property
    def _norm(self) -> float | None:
        """Of all that is clipped beside counts."""
        return None if self.clipping_norm is None else self.joint_norm(self.clipping_norm)

    def _with_flag_and_metric(
        self, vector: NDArray[np.float64], validation: float | None
    ) -> NDArray[np.float64]:
        norm = self.clipping_norm
        if norm is None:
            return vector
        if self.adaptive is not None:
            vector = self.adaptive.append_flag(vector, norm).vector
        else:
            vector = clip(vector, norm).vector
        if self.metric is None:
            return vector
        if validation is None:
            raise ProtocolError("message: the upload needs a validation accuracy in [0, 1]")
        return np.append(vector, self.metric.coordinate(validation, norm))

    def clipped_fraction(self, summed: Summed) -> float | None:
        """Return the noised fraction of clipped updates, None where the norm is fixed.

        Where the number of survivors is secret, each lost client counts as half a clipped one.
        """
        if self.adaptive is None or self.clipping_norm is None:
            return None
        mean = _mean_of_survivors(summed, FLAG)
        mean = summed.extras[FLAG] if mean is None else mean
        return self.adaptive.clipped_fraction(mean, self.clipping_norm)

    def next_clipping_norm(self, clipped_fraction: float | None) -> float | None:
        """Return the next round's, None where the norm is fixed."""
        if self.adaptive is None or self.clipping_norm is None or clipped_fraction is None:
            return None
        return self.adaptive.next_norm(self.clipping_norm, clipped_fraction)

    def released_validation(self, summed: Summed) -> float | None:
        """Return the noised mean of the survivors' validation accuracies.

        None where they stay with the clients, and where the number of survivors is secret or none:
        a centred sum over a guessed number is no mean.
        """
        if self.metric is None or self.clipping_norm is None:
            return None
        mean = _mean_of_survivors(summed, VALIDATION)
        return None if mean is None else self.metric.mean(mean, self.clipping_norm)

    def released_deviation(self, coordinate_deviation: float) -> float | None:
        """Return standard deviation of that mean, from that of the mean of one coordinate."""
        if self.metric is None or self.clipping_norm is None:
            return None
        return self.metric.deviation(coordinate_deviation, self.clipping_norm)

    def noised_mean(self, summed: Summed, mechanism: ClientMechanism) -> NoisedMean | None:
        """Return `released_validation` with its noise; the mechanism is that of the round."""
        mean, survivors = self.released_validation(summed), summed.survivors
        if mean is None or survivors is None:
            return None
        deviation = self.released_deviation(noise_in_sum(mechanism, survivors) / survivors)
        return None if deviation is None else NoisedMean(mean, deviation)


def _mean_of_survivors(summed: Summed, name: str) -> float | None:
    """Return a coordinate's mean over those who are in the sum, whatever the sum was divided by."""
    if not summed.survivors:
        return None
    return summed.extras[name] * (summed.total_weight / summed.survivors)


def around(mechanism: ClientMechanism, clipping_norm: float) -> ClientMechanism:
    """Return the same mechanism around another norm.

    Raises:
        ProtocolError: If there is none to speak of.
    """
    if mechanism.clipping_norm is None:
        raise ProtocolError("message: nothing is clipped in this run")
    return with_clipping_norm(mechanism, clipping_norm)

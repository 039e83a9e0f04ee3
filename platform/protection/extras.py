"""Extra coordinates that are clipped, noised and charged together with an update.

Adaptive clipping appends a flag that says whether the update had to be clipped. Noised selection
appends the client's validation accuracy. Each is bounded by a multiple of C, so that update and
extra coordinates are one vector of known norm, with one charge. Private experts append counts. The
mechanism itself handles counts, because they may be free. Numbers computed from the noised sum are
post-processing.

With private experts a client's update is in one of K blocks and zero in the others, which makes its
count free of charge (`privacy.GroupCounts`). So the client checks this for every method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Groups
from methods.interface.groups import splits
from platform.errors import ProtocolError
from platform.wire.layout import Summed
from privacy import (
    AdaptiveClipping,
    ClientMechanism,
    GroupCounts,
    NoisedMetric,
    clip,
    noise_in_sum,
    with_clipping_norm,
)

COUNT = "group_count"
FLOOR_DEVIATIONS = 1.0
"""The default floor, in standard deviations of a count's noise. With three, experts did not move in
the first rounds, when clients are still spread over all experts."""

_NO_GROUP = "message: the upload needs the one group that its client is in"


def require_one_block(update: Arrays, group: int | None, groups: int) -> None:
    """Refuse an update that is not zero outside the block of its group.

    A neighbour could then be farther away than the ledger says. Arrays are (K, ...), one block
    after the other. `group` is the block that the client chose.
    """
    if group is None or not 0 <= group < groups:
        raise ProtocolError(_NO_GROUP)
    for array in update.values():
        if array.shape[:1] != (groups,) or np.delete(array, group, axis=0).any():
            raise ProtocolError("message: the update is not in the block of its group alone")


@dataclass(frozen=True)
class Grouping:
    """How a run counts the clients of each group.

    Attributes:
        counts: K and b.
        floor: The least that a group's block is divided by, in clients; None for the default.
        unclipped: b if the mechanism clips nothing, so that there is no C.
        split: Whether an empty group's expert becomes a copy of a crowded one.
    """

    counts: GroupCounts
    floor: float | None = None
    unclipped: float = 1.0
    split: bool = False

    @property
    def number(self) -> int:
        """K."""
        return self.counts.groups

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the K coordinates, in order."""
        return tuple(f"{COUNT}.{group}" for group in range(self.number))

    def bound(self, norm: float | None) -> float:
        """Return b beside a vector that is clipped to `norm`; None if nothing is clipped."""
        return self.unclipped if norm is None else self.counts.bound(norm)

    def coordinates(self, norm: float | None, group: int | None) -> NDArray[np.float64]:
        """Return the K coordinates of one client, b in its group's place; refuse one without."""
        if group is None:
            raise ProtocolError(_NO_GROUP)
        told = np.zeros(self.number)
        told[group] = self.bound(norm)
        return told

    def read(self, summed: Summed, norm: float | None, deviation: float) -> GroupReading:
        """Return how many clients a sum counts in each group.

        `norm` is that of the vector that is clipped beside the counts, None if nothing is clipped,
        and `deviation` that of the noise on each coordinate of the sum.
        """
        bound, found = self.bound(norm), np.array([summed.extras[name] for name in self.names])
        clients = found * summed.total_weight / bound
        if not deviation:
            # Without noise the counts are whole, and only the grid has rounded them.
            clients = np.rint(clients)
        spread = deviation / bound
        least = max(1.0, FLOOR_DEVIATIONS * spread) if self.floor is None else self.floor
        return GroupReading(clients, spread, least, self.split)


@dataclass(frozen=True)
class GroupReading:
    """The counts of groups in a round's sum.

    Attributes:
        counts: Clients in each group, (K,), with the sum's noise.
        deviation: Standard deviation of that noise; at 0 no count may be shown.
        floor: The smallest divisor of a block; public.
    """

    counts: NDArray[np.float64]
    deviation: float
    floor: float
    split: bool = False

    @property
    def copied(self) -> tuple[tuple[int, int], ...]:
        """Groups with too small a count, each with the crowded group whose expert it copies."""
        return tuple(splits(Groups(self.counts, self.floor))) if self.split else ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Groups with too small a count, whose experts stay as they are."""
        copied = {empty for empty, _ in self.copied}
        small = (int(group) for group in np.flatnonzero(self.counts < self.floor))
        return tuple(group for group in small if group not in copied)


FLAG = "clip_flag"
VALIDATION = "validation"


@dataclass(frozen=True)
class NoisedMean:
    """The mean of the validation accuracies of a round's clients, from the noised sum.

    Attributes:
        mean: The mean; noise may leave [0, 1].
    """

    mean: float
    deviation: float


@dataclass(frozen=True)
class Extras:
    """The coordinates that a run appends to its updates.

    Attributes:
        adaptive: How the clipping norm follows the clients, None where it is fixed.
        metric: How validation accuracies travel, None where they stay with the clients.
        clipping_norm: Norm to which the update is clipped before extras are appended. None without
            extras, where nothing is clipped, and before the first round where the norm adapts.
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
        """Return the norm of an update clipped to C with its extras: the ledger's C.

        Counts are not part of it: the mechanism itself prices them.
        """
        norm = clipping_norm
        if self.adaptive is not None:
            norm = self.adaptive.joint_norm(clipping_norm)
        return norm if self.metric is None else math.hypot(norm, self.metric.bound(clipping_norm))

    def bounds(self, clipping_norm: float) -> tuple[float, ...]:
        """Return the largest absolute value of each coordinate beside C, without counts."""
        flag = () if self.adaptive is None else (self.adaptive.flag_ratio * clipping_norm,)
        return flag if self.metric is None else (*flag, self.metric.bound(clipping_norm))

    def append(
        self, vector: NDArray[np.float64], validation: float | None, group: int | None = None
    ) -> NDArray[np.float64]:
        """Clip an update and append the extras, norm at most `joint_norm`, and counts.

        The update is (n,), the accuracy in [0, 1]; without extras it is unchanged. Accuracy and
        group are private, and must be there where they are needed.
        """
        norm = self.clipping_norm
        if norm is not None:
            if self.adaptive is not None:
                vector = self.adaptive.append_flag(vector, norm).vector
            else:
                vector = clip(vector, norm).vector
            if self.metric is not None:
                if validation is None:
                    raise ProtocolError("message: the upload needs a validation accuracy in [0, 1]")
                vector = np.append(vector, self.metric.coordinate(validation, norm))
        if self.groups is None:
            return vector
        return np.append(vector, self.groups.coordinates(self._norm, group))

    def group_reading(self, summed: Summed, deviation: float) -> GroupReading | None:
        """Return the counts of groups in a sum, None without groups."""
        return None if self.groups is None else self.groups.read(summed, self._norm, deviation)

    @property
    def _norm(self) -> float | None:
        """Norm of the vector that is clipped beside counts."""
        return None if self.clipping_norm is None else self.joint_norm(self.clipping_norm)

    def clipped_fraction(self, summed: Summed) -> float | None:
        """Return the noised fraction of clipped updates, None if the norm is fixed.

        If the number of survivors is secret, each lost client counts as half a clipped client.
        """
        if self.adaptive is None or self.clipping_norm is None:
            return None
        mean = _mean_of_survivors(summed, FLAG)
        mean = summed.extras[FLAG] if mean is None else mean
        return self.adaptive.clipped_fraction(mean, self.clipping_norm)

    def next_clipping_norm(self, clipped_fraction: float | None) -> float | None:
        """Return the next round's clipping norm, None if the norm is fixed."""
        if self.adaptive is None or self.clipping_norm is None or clipped_fraction is None:
            return None
        return self.adaptive.next_norm(self.clipping_norm, clipped_fraction)

    def released_validation(self, summed: Summed) -> float | None:
        """Return the noised mean of the survivors' validation accuracies.

        None if they stay with the clients, or if the number of survivors is secret or 0: a centred
        sum over a guessed number is not a mean.
        """
        if self.metric is None or self.clipping_norm is None:
            return None
        mean = _mean_of_survivors(summed, VALIDATION)
        return None if mean is None else self.metric.mean(mean, self.clipping_norm)

    def released_deviation(self, coordinate_deviation: float) -> float | None:
        """Return the standard deviation of that mean, given that of one coordinate's mean."""
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
    """Return a coordinate's mean over the clients in the sum, for every divisor of the sum."""
    if not summed.survivors:
        return None
    return summed.extras[name] * (summed.total_weight / summed.survivors)


def around(mechanism: ClientMechanism, clipping_norm: float) -> ClientMechanism:
    """Return the same mechanism around another norm; `ProtocolError` if nothing is clipped."""
    if mechanism.clipping_norm is None:
        raise ProtocolError("message: nothing is clipped in this run")
    return with_clipping_norm(mechanism, clipping_norm)

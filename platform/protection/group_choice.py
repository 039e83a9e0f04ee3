"""Which group a client is in, as coordinates behind its update: what private experts are counted by.

A client's update is in one of K blocks and zero in the others, which is what makes its count free
of charge (`privacy.GroupCounts`). So that is checked here, on the client, whatever the method did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.errors import ProtocolError
from platform.wire.layout import Summed
from privacy import GroupCounts

COUNT = "group_count"
FLOOR_DEVIATIONS = 3.0
"""The default floor, in standard deviations of a count's noise: below it a mean of updates in ten
or more coordinates is mostly noise, whatever is divided by."""


def require_one_block(update: Arrays, group: int | None, groups: int) -> None:
    """Check that an update is in the block of its group alone.

    Args:
        update: Arrays (K, ...), one block after the other.
        group: The block that the client chose.
        groups: K.

    Raises:
        ProtocolError: If it is not; a neighbour could be farther away than the ledger says.
    """
    if group is None or not 0 <= group < groups:
        raise ProtocolError("message: the upload needs the one group that its client is in")
    for array in update.values():
        others = np.delete(np.asarray(array), group, axis=0)
        if array.shape[0] != groups or others.any():
            raise ProtocolError("message: the update is not in the block of its group alone")


def count_names(counts: GroupCounts) -> tuple[str, ...]:
    """Return the names of the K coordinates, in order."""
    return tuple(f"{COUNT}.{group}" for group in range(counts.groups))


def counted(counts: GroupCounts, bound: float, group: int) -> NDArray[np.float64]:
    """Return the K coordinates of one client, b in its group's place."""
    coordinates = np.zeros(counts.groups)
    coordinates[group] = bound
    return coordinates


@dataclass(frozen=True)
class GroupReading:
    """What a round's sum tells of its groups.

    Attributes:
        counts: Clients in each group, (K,), with the sum's noise.
        deviation: Standard deviation of that noise; 0 where there is none, and then no count may
            be shown.
        floor: The least that a block is divided by; public.
    """

    counts: NDArray[np.float64]
    deviation: float
    floor: float

    @property
    def kept(self) -> tuple[int, ...]:
        """Groups of too small a count, whose experts stay as they are."""
        return tuple(int(group) for group in np.flatnonzero(self.counts < self.floor))


def read_counts(
    counts: GroupCounts, bound: float, summed: Summed, *, deviation: float, floor: float | None
) -> GroupReading:
    """Return how many clients a sum counts in each group.

    Args:
        counts: How clients were counted.
        bound: b.
        summed: What the sum yields.
        deviation: Of the noise on each coordinate of the sum; 0 without noise.
        floor: As configured; None for the default.
    """
    found = np.array([summed.extras[name] for name in count_names(counts)])
    clients = found * summed.total_weight / bound
    if not deviation:
        # Without noise whole clients are in the sum, and the grid's rounding is not of them.
        clients = np.rint(clients)
    spread = deviation / bound
    least = max(1.0, FLOOR_DEVIATIONS * spread) if floor is None else floor
    return GroupReading(clients, spread, least)

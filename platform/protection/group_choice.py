"""Private experts in an upload: whose block an update is in, and how groups are counted.

A client's update is in one of K blocks and zero in the others, which is what makes its count free
of charge (`privacy.GroupCounts`). So that is checked here, on the client, whatever the method did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, Groups
from methods.interface.groups import splits
from platform.errors import ProtocolError
from platform.wire.layout import Summed
from privacy import GroupCounts

COUNT = "group_count"
FLOOR_DEVIATIONS = 1.0
"""The default floor, in standard deviations of a count's noise. Three kept experts from moving in
the first rounds, when clients are still spread over all of them."""

_NO_GROUP = "message: the upload needs the one group that its client is in"


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
        raise ProtocolError(_NO_GROUP)
    for array in update.values():
        if array.shape[:1] != (groups,) or np.delete(array, group, axis=0).any():
            raise ProtocolError("message: the update is not in the block of its group alone")


@dataclass(frozen=True)
class Grouping:
    """How clients are counted by the groups that they are in.

    Attributes:
        counts: K and b.
        floor: The least that a group's block is divided by, in clients; None for the default.
        unclipped: b where nothing is clipped, and so nothing to measure it by.
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
        """Return b beside a vector that is clipped to `norm`; None where nothing is."""
        return self.unclipped if norm is None else self.counts.bound(norm)

    def coordinates(self, norm: float | None, group: int | None) -> NDArray[np.float64]:
        """Return the K coordinates of one client, b in its group's place.

        Raises:
            ProtocolError: If it is in none.
        """
        if group is None:
            raise ProtocolError(_NO_GROUP)
        told = np.zeros(self.number)
        told[group] = self.bound(norm)
        return told

    def read(self, summed: Summed, norm: float | None, deviation: float) -> GroupReading:
        """Return how many clients a sum counts in each group.

        Args:
            summed: What the sum yields.
            norm: Of all that is clipped beside the counts; None where nothing is.
            deviation: Of the noise on each coordinate of the sum; 0 without noise.
        """
        bound, found = self.bound(norm), np.array([summed.extras[name] for name in self.names])
        clients = found * summed.total_weight / bound
        if not deviation:
            # Without noise whole clients are in the sum, and the grid's rounding is not of them.
            clients = np.rint(clients)
        spread = deviation / bound
        least = max(1.0, FLOOR_DEVIATIONS * spread) if self.floor is None else self.floor
        return GroupReading(clients, spread, least, self.split)


@dataclass(frozen=True)
class GroupReading:
    """What a round's sum tells of its groups.

    Attributes:
        counts: Clients in each group, (K,), with the sum's noise.
        deviation: Standard deviation of that noise; 0 where there is none, and then no count may
            be shown.
        floor: The least that a block is divided by; public.
        split: Whether an empty group's expert becomes a copy of a crowded one.
    """

    counts: NDArray[np.float64]
    deviation: float
    floor: float
    split: bool = False

    @property
    def copied(self) -> tuple[tuple[int, int], ...]:
        """Groups of too small a count, each with the crowded one whose copy its expert is now."""
        return tuple(splits(Groups(self.counts, self.floor))) if self.split else ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Groups of too small a count, whose experts stay as they are."""
        copied = {empty for empty, _ in self.copied}
        small = (int(group) for group in np.flatnonzero(self.counts < self.floor))
        return tuple(group for group in small if group not in copied)

"""How a pool entry lies in a message: as a difference, on a grid, in integers of a fitting type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from platform.errors import ProtocolError, RunStopped
from platform.wire.vectors import Spec
from privacy import Grid

LARGEST_COORDINATE = 1e30
"""Far above any trained value, and 2^20 of them still fit into float32."""


def entry_base(broadcast: Arrays, spec: Spec) -> Mapping[str, NDArray[Any]]:
    """Return what an entry is a difference to: the broadcast where it has the tensor, else zero."""
    return {
        name: broadcast[name] if name in broadcast else np.zeros(tensor.shape, np.float32)
        for name, tensor in spec.items()
    }


def level_type(grid: Grid) -> type[np.uint32] | type[np.uint64]:
    """Return the smallest type of a message's integers that holds a level."""
    return np.uint32 if grid.largest_level < 1 << 32 else np.uint64


def require_storable(vector: NDArray[np.float64]) -> None:
    """Check that coordinates stay finite as float32, in which states are kept, also summed up.

    Raises:
        ProtocolError: If one does not.
    """
    if vector.size and float(np.abs(vector).max()) > LARGEST_COORDINATE:
        raise ProtocolError("message: a coordinate is too large for its type")


def require_same(update: Arrays, difference: Arrays) -> None:
    """Check that an entry is the shared update itself, so that one noise may serve both.

    Raises:
        RunStopped: If it is not.
    """
    alike = set(update) == set(difference) and all(
        np.array_equal(update[name], difference[name]) for name in update
    )
    if not alike:
        raise RunStopped(
            "pool.noise: 'same' needs a pool entry that is the shared update itself; this "
            "method's is not, use pool.noise = independent"
        )

"""How many clients are in each group of a round, as the server may know it.

Part of the interface of `methods/interface/method.py`, which has this name too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Groups:
    """How many clients of a sum are in each group, as the noised sum tells it.

    Attributes:
        counts: (K,), with noise; negative ones too.
        floor: The least that a group's sum may be divided by, and that its count must reach for
            its expert to move; fixed before anything is released.
    """

    counts: NDArray[np.float64]
    floor: float

"""What a client's protection made of its round: all that may leave the client, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from methods import Arrays
from privacy import Channel, NoiseState


@dataclass(frozen=True)
class Prepared:
    """What may leave the client in one attempt.

    Attributes:
        levels: The protected update as integers, before weights; None where it travels exactly.
        vector: The protected update as numbers.
        entry: The pool entry as it is sent, empty without one.
        channels: Which releases these are.
        state: What the noise of the client's next attempt goes on from, empty where it is drawn
            afresh. It never leaves the client.
    """

    levels: NDArray[np.uint64] | None
    vector: NDArray[np.float64]
    entry: Arrays
    channels: tuple[Channel, ...]
    state: NoiseState = field(default_factory=dict, repr=False, kw_only=True)

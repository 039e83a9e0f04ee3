"""What a server can still check when it sees nothing but the sum.

The protocol bounds no vector, so a malicious client may add anything. If honest updates are clipped
to norm C, a sum of n of them has norm at most n C, and noise and rounding add a known amount but
for a negligible probability. A longer sum proves that somebody cheated (or that the ring wrapped
around); a shorter one proves nothing.

Only a sum that has all its noise may be checked. Whether a bare sum passes is a bit of the data,
and a malicious client chooses which: with C in the direction of another client it learns that
client's sign. The refusal states no number for the same reason.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privacy.errors import ProtocolViolation

_FAILURE_BITS = 40


def largest_norm(
    *,
    length: int,
    cohort_size: int,
    clipping_norm: float,
    noise_in_sum: float = 0.0,
    step: float = 0.0,
) -> float:
    """Return the L2 norm that an honest sum exceeds with probability below 2^-40.

    The noise's squared norm is that of a chi-square with `length` degrees of freedom, bounded by
    d + 2 sqrt(d x) + 2 x but for e^-x (Laurent and Massart 2000, lemma 1).

    Args:
        length: Number of coordinates d.
        cohort_size: Number n of vectors in the sum.
        clipping_norm: Norm C that every honest vector keeps to, in the units of the update.
        noise_in_sum: Standard deviation of all noise on each coordinate of the sum.
        step: Distance between the quantiser's levels; rounding moves a coordinate by half of it,
            in each vector and in the noise that is added to the sum.

    Returns:
        The norm, in the units of the update.
    """
    slack = _FAILURE_BITS * math.log(2)
    chi = math.sqrt(length + 2 * math.sqrt(length * slack) + 2 * slack)
    rounding = 0.5 * step * (cohort_size + 1) * math.sqrt(length)
    return cohort_size * clipping_norm + noise_in_sum * chi + rounding


def require_plausible_norm(total: NDArray[np.float64], bound: float) -> None:
    """Refuse a sum that honest clients cannot have made.

    Args:
        total: The sum with all its noise, in the units of the update, shape (length,).
        bound: From `largest_norm`.

    Raises:
        ProtocolViolation: If the sum is longer or not finite.
    """
    # Written so that NaN is refused as well.
    if not float(np.linalg.norm(total)) <= bound:
        raise ProtocolViolation("the sum is longer than clipped updates and their noise can be")

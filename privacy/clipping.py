"""Clipping: the whole upload, as one vector, is brought inside a ball of known radius.

The accountant is told that a clipped vector has norm at most C, so that must hold for the float64
numbers that are sent, not only on paper. A sum of n squares in floating point is off by at most a
factor 1 +- n u, with u = 2^-53, whatever the order of summation (Higham 2002, section 3.1). With
m = (n + 8) u a vector is left alone only where its computed norm times 1 + m is within C; every
other one is scaled to C (1 - 4 m), which covers the rounding of the norm, of the factor and of
each product. At a million coordinates the price is 5e-10 of the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy._validate import finite_vector, require_positive

_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, eq=False)
class ClippedUpdate:
    """An update inside the ball, and how it came to be there.

    Attributes:
        vector: float64 of shape (n,), of exact norm at most the clipping norm.
        norm: L2 norm before clipping; it depends on the client's data and must not leave it.
        was_clipped: Whether the vector was scaled; likewise private.
    """

    vector: NDArray[np.float64]
    norm: float
    was_clipped: bool


def clip(update: NDArray[Any], clipping_norm: float) -> ClippedUpdate:
    """Return scale `update` by min(1, clipping_norm / norm), erring on the inside.

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

"""Checks of arguments, so that every message in `privacy` has the same form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import NonFiniteUpdate


def require_positive(**values: float) -> None:
    """Raise `ValueError` unless every named value is finite and above zero."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be finite and above zero")


def require_not_negative(**values: float) -> None:
    """Raise `ValueError` unless every named value is finite and not below zero."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be finite and not below zero")


def require_probability(**values: float) -> None:
    """Raise `ValueError` unless every named value lies strictly between zero and one."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; it must lie strictly between 0 and 1")


def require_member(valid: tuple[str, ...], **values: str) -> None:
    """Raise `ValueError` unless every named value is one of `valid`."""
    for name, value in values.items():
        if value not in valid:
            raise ValueError(f"{name} is {value!r}; valid are {', '.join(valid)}")


def finite_vector(update: NDArray[Any]) -> NDArray[np.float64]:
    """Return `update` as a float64 vector; refuse NaN and infinity, which no norm bounds.

    Raises:
        ValueError: It is not a vector.
        NonFiniteUpdate: It holds NaN or infinity; the message does not say where.
    """
    vector = np.asarray(update, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"the update has {vector.ndim} axes; it must be one flat vector")
    if not np.isfinite(vector).all():
        raise NonFiniteUpdate("the update has a coordinate that is not finite; all must be")
    return vector

"""Named tensors as one flat vector and back, in the order of their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, TensorSpec, UpdateSpecMismatch
from methods.interface.subspace import flat, length, shaped

Spec = Mapping[str, TensorSpec]


def vector_length(spec: Spec) -> int:
    """Return number of coordinates of all tensors."""
    return length(spec)


def require_spec(arrays: Arrays, spec: Spec) -> None:
    """Check names and shapes.

    Raises:
        UpdateSpecMismatch: Naming the first tensor that differs.
    """
    if set(arrays) != set(spec):
        raise UpdateSpecMismatch(
            f"update: its tensors are {sorted(arrays)}; the method announced {sorted(spec)}"
        )
    for name, tensor in spec.items():
        if arrays[name].shape != tensor.shape:
            raise UpdateSpecMismatch(
                f"update: tensor {name!r} has shape {arrays[name].shape}; the method announced "
                f"{tensor.shape}"
            )


def flatten(arrays: Arrays, spec: Spec) -> NDArray[np.float64]:
    """Return all tensors as one float64 vector.

    Raises:
        UpdateSpecMismatch: If the tensors are not those announced.
    """
    require_spec(arrays, spec)
    return flat(arrays, spec)


def unflatten(vector: NDArray[Any], spec: Spec) -> dict[str, NDArray[np.float32]]:
    """Return the inverse of `flatten`, in float32."""
    return {name: np.asarray(part, np.float32) for name, part in shaped(vector, spec).items()}


def tensor_at(coordinate: int, spec: Spec) -> str:
    """Return name of the tensor that a coordinate of the flat vector belongs to."""
    for name in sorted(spec):
        coordinate -= math.prod(spec[name].shape)
        if coordinate < 0:
            return name
    raise IndexError("the coordinate lies beyond the vector")

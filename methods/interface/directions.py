"""Directions of a public subspace, and tensors as one vector and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods.interface.method import Arrays, TensorSpec

BASIS: Final = "subspace.basis"
ORIGIN: Final = "subspace.origin"
"""What directions were found from, that all parties have alike: a digest (8,) of
uint32."""
COORDINATES: Final = "subspace.coordinates"
Spec = Mapping[str, TensorSpec]


def top_directions(jacobian: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
    """Return the top right singular vectors (k, d) of a matrix (m, d).

    Where its rank is below k, the rest completes an orthonormal basis, in directions along which
    nothing moves.
    """
    # Eigenvectors of J^T J: d is some hundreds, while m has a row for each number of each feature.
    _, vectors = np.linalg.eigh(jacobian.T @ jacobian)
    return np.ascontiguousarray(vectors[:, ::-1][:, :rank].T)


def origin_of(fingerprint: str | None, classes: Sequence[str]) -> NDArray[np.uint32]:
    """Return the digest of a frozen model and of a class list, (8,).

    Args:
        fingerprint: Of the model's weights; None without one.
        classes: Class names in label order.
    """
    text = json.dumps([fingerprint, list(classes)])
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), "<u4").copy()


def random_directions(rank: int, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return k orthonormal directions (k, d), uniform over all such frames."""
    q, r = np.linalg.qr(rng.standard_normal((size, rank)))
    # Without the signs the frame would not be uniform (Mezzadri 2007).
    return np.ascontiguousarray((q * np.sign(np.diag(r))).T)


def length(spec: Spec) -> int:
    """Return d, how many numbers the tensors have."""
    return sum(math.prod(tensor.shape) for tensor in spec.values())


def flat(arrays: Arrays, spec: Spec) -> NDArray[np.float64]:
    """Return tensors one after another in the order of their names, (d,)."""
    vector, offset = np.empty(length(spec)), 0
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        vector[offset : offset + size] = np.asarray(arrays[name]).reshape(-1)
        offset += size
    return vector


def shaped(vector: Any, spec: Spec) -> dict[str, Any]:
    """Return the tensors of a flat vector (d,), a numpy array or a torch tensor."""
    parts, offset = {}, 0
    for name in sorted(spec):
        size = math.prod(spec[name].shape)
        parts[name] = vector[offset : offset + size].reshape(spec[name].shape)
        offset += size
    return parts
